"""The training loop: one run from restore to end, read from top to bottom."""

import contextlib
from collections.abc import Callable

from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.supervisor import RunSupervisor, StopRequested
from t2t_flax.training.progress import seconds_since_start
from t2t_flax.training.run import Run, TrainingEnd, ValidationScore, due_after, worse_than_start
from t2t_flax.training.setup import Prefetcher, TrainingSetup


def train(
    setup: TrainingSetup,
    score: ValidationScore | None,
    say: Callable[[str], None] = print,
    supervisor: RunSupervisor | None = None,
) -> TrainingEnd:
    """Train from the newest checkpoint, or from scratch, to config.train.steps; update t uses batch t - 1.

    `supervisor`: of the processes of the run (default: of this one alone). Raises NonFiniteUpdate where the run diverges, and
    UserError for a checkpoint of another model and for a full disk.
    """
    if supervisor is None:
        with RunSupervisor(ProcessGroup(), setup.config) as supervisor:
            return train(setup, score, say, supervisor)
    run = Run(setup, score, supervisor)
    with contextlib.ExitStack() as stack:
        with supervisor.exit_on_signal("restoring and compiling"):
            start, config = run.restore(say), setup.config
            last, workers = config.train.steps, config.data.num_workers
            # The first batches are made during the compilation.
            batches = stack.enter_context(Prefetcher(setup.batches, setup.mesh, start, last, workers))
            run.compile()
            run.open_logs()
            batches.wait()
            supervisor.group.barrier("compiled")  # a process that takes longer for this than the others is not hanging
        stack.enter_context(run.finish_saves_on_error())
        stack.enter_context(supervisor.expect_progress())
        run.end_if_complete()
        for step in range(start if run.evaluation_due else start + 1, last + 1):
            if not run.running:
                break
            if step > start:
                run.update(step, batches)
            if step == start + 1:
                run.read_metrics()
                say(f"first update {seconds_since_start():.1f} s after the start of the process")
            run.check_saves()
            stopping, due = supervisor.should_stop(), due_after(setup, step)
            if step > start and not (stopping or due.evaluation or due.checkpoint or step == last):
                continue

            run.read_metrics()  # a run that has diverged is neither evaluated nor saved
            if not run.running:
                break
            run.expect_evaluation(due)
            try:
                if due.evaluation and not stopping:
                    run.evaluate(step, due)
            except StopRequested:  # what is not evaluated here starts with the evaluation when it resumes
                stopping = True
            signal = supervisor.signal if stopping else ""
            ending = run.reason_to_end(step, signal)
            run.save(step, required=bool(ending) or due.checkpoint)
            if ending:
                run.wait_for_saves()
                run.end(step, signal)
    run.close()
    if run.failure:
        raise run.failure
    assert run.ended
    if note := run.ended.finished and worse_than_start(setup):
        say(note)
    return run.ended
