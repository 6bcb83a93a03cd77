"""The training loop: one function that reads from top to bottom.

It trains a list of runs, of which one is the ordinary case. Several differ in scalars alone and share every update (see
`vectorized`); evaluations, checkpoints, logs and the end of each run are in `run_tracker`.
"""

import contextlib
from collections.abc import Callable

import jax

from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.supervisor import RunSupervisor, StopRequested
from t2t_flax.monitoring.timers import seconds_since_start, split_time
from t2t_flax.training.divergence import NonFiniteUpdate
from t2t_flax.training.prefetch import Prefetcher
from t2t_flax.training.resume import finish_saves_on_error
from t2t_flax.training.run_tracker import Outcome, RunTracker, ValidationScore, common_step, due_after
from t2t_flax.training.setup import TrainingSetup
from t2t_flax.training.train_logger import DelayedMetrics
from t2t_flax.training.vectorized import SingleProgram, VectorizedProgram
from t2t_flax.training.workdir import begin


def train(
    run: TrainingSetup,
    score: ValidationScore | None,
    say: Callable[[str], None] = print,
    supervisor: RunSupervisor | None = None,
) -> Outcome:
    """Trains one run, see `train_runs`. Raises NonFiniteUpdate where it diverges."""
    [outcome] = train_runs([run], [score], say, supervisor)
    if isinstance(outcome, NonFiniteUpdate):
        raise outcome
    return outcome


def train_runs(
    runs: list[TrainingSetup],
    scores: list[ValidationScore | None],
    say: Callable[[str], None] = print,
    supervisor: RunSupervisor | None = None,
    on_finish: Callable[[TrainingSetup, Outcome], None] = lambda run, outcome: None,
) -> list[Outcome | NonFiniteUpdate]:
    """Trains from the newest checkpoints, or from scratch, to config.train.steps. Update t takes batch t - 1.

    Several runs must be at the same update and `can_be_vectorized`. Patience or divergence ends one of them alone, a
    signal stops all at the same update. Returns each run's outcome, or how it diverged. `on_finish` is called for each
    finished run once all runs are saved. `supervisor`: of the processes of the run (default: of this one alone).
    Raises UserError for a checkpoint of another model and for a full disk.
    """
    if supervisor is None:
        with RunSupervisor(ProcessGroup(), runs[0].config) as supervisor:
            return train_runs(runs, scores, say, supervisor, on_finish)
    config, group = runs[0].config, supervisor.group
    with supervisor.exit_on_signal("restoring and compiling"):
        trackers = [RunTracker(i, run, scores[i], group) for i, run in enumerate(runs)]
        states = [tracker.restore_or_init(say) for tracker in trackers]
        start = common_step(trackers)
        with split_time("compile", trackers):
            hooks = trackers[0].hooks
            program = SingleProgram(runs[0], hooks) if len(runs) == 1 else VectorizedProgram(runs, hooks)
            state = program.join(states)
            del states
            for tracker in trackers:
                tracker.compile(program.state_of(state, tracker.index))
        for tracker in trackers:
            if group.is_lead:
                begin(tracker.run.workdir, tracker.run.config)
            tracker.open_logs()
        group.barrier("compiled")  # a process that compiles longer than the others is not hanging
    with contextlib.ExitStack() as stack:
        for tracker in trackers:
            stack.enter_context(finish_saves_on_error(tracker.checkpoints))
            stack.enter_context(tracker.bar)
        stack.enter_context(supervisor.expect_progress())
        batches = stack.enter_context(Prefetcher(runs[0].batches, program.mesh, start, config.train.steps))
        metrics = DelayedMetrics(trackers)
        for tracker in trackers:
            if reason := tracker.end_at_start():
                tracker.end(program.state_of(state, tracker.index), start, reason)
                on_finish(tracker.run, tracker.outcome)
        to_evaluate = [t for t in trackers if t.running and t.progress.evaluation_due]
        for step in range(start if to_evaluate else start + 1, config.train.steps + 1):
            running = [t for t in trackers if t.running]
            if not running:
                break
            if step > start:
                with split_time("data", running):
                    batch = batches.next()
                with split_time("step", running), jax.transfer_guard("disallow"):
                    state, values = program(state, batch.arrays)
                metrics.add(step, batch, values)  # reads the previous update: one is always queued
                if any(hook.idle_every and step % hook.idle_every == 0 for hook in hooks):
                    metrics.flush()
                if step == start + 1:
                    metrics.flush()
                    say(f"first update {seconds_since_start():.1f} s after the start of the process")
                to_evaluate = running
            for tracker in running:
                tracker.check_saves()
            stopping, due = supervisor.should_stop(), due_after(runs[0], step)
            if step > start and not (stopping or due.evaluation or due.checkpoint or step == config.train.steps):
                continue

            metrics.flush()  # a run that has diverged is neither evaluated nor saved
            running = [t for t in running if t.running]
            active = [t for t in to_evaluate if t.running]
            for tracker in active:
                tracker.metric, tracker.progress.evaluation_due = None, due.evaluation
            try:
                for tracker in active if due.evaluation and not stopping else ():
                    tracker.evaluate(step, due, program.state_of(state, tracker.index), supervisor)
            except StopRequested:  # a run that is not evaluated here starts with the evaluation when it resumes
                stopping = True
            reasons = {t: t.end_after(step, supervisor.signal if stopping else "") for t in running}
            for tracker in active:
                best = tracker.metric is not None and config.checkpoint.keep_best
                if any(reasons.values()) or due.checkpoint or best:
                    tracker.save(step, program.state_of(state, tracker.index), supervisor)
            if any(reasons.values()):
                for tracker in running:  # save all first: the process may be killed during the final evaluation of one
                    tracker.wait_for_saves(supervisor)
            for tracker, reason in reasons.items():
                if reason:
                    tracker.end(program.state_of(state, tracker.index), step, reason)
                    if tracker.outcome.finished:
                        on_finish(tracker.run, tracker.outcome)
    for tracker in trackers:
        tracker.close()
    return [tracker.outcome or tracker.failure for tracker in trackers]
