"""The training loop: restore, compile, update, evaluate, save.

`train` first defines its local functions (log, report, evaluate, save, end). The run itself starts
at the banner "Restore".
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax

from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.supervisor import RunSupervisor, StopRequested
from t2t_flax.errors import NonFiniteUpdate
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.checksums import checksums
from t2t_flax.training.hooks import call_hooks, make_hooks
from t2t_flax.training.parametrization import merged
from t2t_flax.training.parts import DeviceBatch, TrainingEnd, TrainingSetup
from t2t_flax.training.progress import MetricsWriter, Progress, Rate, measure, seconds_since_start
from t2t_flax.training.run import (
    DueAfterUpdate,
    checkpoint_meta,
    due_after,
    note_metric,
    reason_to_end,
    restore_or_init,
    skip_or_fail,
    worse_than_start,
)
from t2t_flax.training.setup import Prefetcher, compile_programs, train_program, validation_loss
from t2t_flax.training.workdir import begin

ValidationScore = Callable[..., dict[str, float]]
"""Function (params, after_batch, compiling) -> {valid_NAME: metric}, by decoding.

It calls `after_batch()` after each batch, and compiles within the context `compiling()`.
"""


def train(
    setup: TrainingSetup,
    score: ValidationScore | None,
    say: Callable[[str], None] = print,
    supervisor: RunSupervisor | None = None,
) -> TrainingEnd:
    """Train to config.train.steps, from the newest checkpoint or from scratch.

    Update t uses batch t - 1.

    Args:
        score: decodes and scores the validation sets; None = never.
        say: prints a line for the user.
        supervisor: signals and messages of the run's processes; default: this process alone.

    Raises:
        NonFiniteUpdate: the run diverged.
        UserError: the checkpoint has another model, or the disk is full.
    """
    if supervisor is None:
        with RunSupervisor(ProcessGroup(), setup.config) as supervisor:
            return train(setup, score, say, supervisor)
    config, mesh, group = setup.config, setup.mesh, supervisor.group
    keep, last, lead = config.checkpoint, config.train.steps, group.is_lead
    keep_last = max(keep.keep_last, keep.average_last)
    folder = setup.workdir / "checkpoints"
    checkpoints = Checkpoints(folder, keep_last=keep_last, keep_best=keep.keep_best, group=group)
    stack = contextlib.ExitStack()
    queued: tuple[int, DeviceBatch, dict[str, jax.Array]] | None = None

    # ---- Local functions. The run itself starts below, at `with stack`.

    def log(step: int, values: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl and call the log hooks, in process 0 only."""
        if writer:
            tokens = {
                f"total_{side}_tokens": getattr(progress, f"{side}_tokens")
                for side in ("source", "target")
            }
            writer.write(step, values | tokens)
            call_hooks(hooks, "log", step, values | tokens)

    def report() -> None:
        """Wait for the queued update; count, show and log it.

        Raises NonFiniteUpdate where the run diverged.
        """
        nonlocal queued
        if not queued:
            return
        (step, batch, metrics), queued = queued, None
        with measure("step", seconds):
            values: dict[str, Any] = {
                name: float(value) for name, value in jax.device_get(metrics).items()
            }
        source = batch.host
        progress.source_tokens += source.source_tokens
        progress.target_tokens += source.target_tokens
        if finite := bool(values.pop("finite")):
            progress.skipped_in_a_row = 0
        else:
            try:
                why = skip_or_fail(config, progress, step, values["loss"], values["grad_norm"])
            except NonFiniteUpdate:
                end(step)
                raise
            log(step, {"skipped": why, "skipped_updates": progress.skipped_updates})
            bar.say(f"skipped {why}")
            values = {name: value for name, value in values.items() if math.isfinite(value)}
        rate.add(source)
        loss, learning_rate = values.get("loss", math.nan), values["learning_rate"]
        bar.update(step, f"loss {loss:.3f}  lr {learning_rate:.2e}  {rate}")
        if logged := step % config.log.every_steps == 0:
            if finite:
                values["ppl"] = math.exp(min(values["nll"], 700.0))
            if config.train.non_finite == "skip":
                values["skipped_updates"] = progress.skipped_updates
            values |= rate.describe(source) | {"seconds": progress.rounded_seconds()}
            rate.restart()
        call_hooks(hooks, "update", step, batch, values)
        if logged:
            log(step, values)

    def evaluate(step: int, due: DueAfterUpdate) -> float | None:
        """Run and log the due evaluations; return eval.metric, higher is better.

        Raises StopRequested where all processes stop before the end. The evaluation is then
        discarded and remains due.
        """
        values: dict[str, float] = {}
        with measure("eval", seconds):
            params = merged(setup.parametrization, state.eval_params)
            if valid_loss and due.loss:
                means = valid_loss(params, supervisor.raise_if_stopping)
                values |= {f"valid_{name}": mean for name, mean in means.items()}
                values["valid_ppl"] = math.exp(min(means["nll"], 700.0))
            if score and due.decoding:
                compiling = functools.partial(supervisor.exit_on_signal, "compiling the search")
                values |= score(params, supervisor.raise_if_stopping, compiling)
        progress.evaluation_due = False
        found = note_metric(progress, values, step, config.eval.metric)
        shown = "  ".join(f"{k} {v:.4f}" for k, v in values.items())
        log(step, values)
        bar.say(f"step {step}: {shown}")
        return found

    def save(step: int, metric: float | None) -> None:
        """Start to save a checkpoint in the background.

        If the run stopped between this checkpoint and its evaluation, add the evaluation to it
        instead. May wait for the previous save, up to Orbax's timeout of an hour. Raises UserError
        where the disk is full.
        """
        if writer:
            writer.send()  # store the lines of metrics.jsonl before the checkpoint
        with measure("save", seconds), supervisor.expect_progress(False):
            progress.step = step
            if step in checkpoints.steps():
                checkpoints.add_evaluation(step, progress.evaluation_fields(), metric)
            else:
                checkpoints.save(state, checkpoint_meta(setup, progress), metric)

    def end(step: int) -> None:
        """Close metrics.jsonl, and call the end hooks of a run that stopped or diverged."""
        if writer:
            writer.close()
        call_hooks(hooks, "end", step, {})

    with stack:
        # ---- Restore. Compile all programs: nothing compiles after the first update.
        with supervisor.exit_on_signal("restoring and compiling"):
            checkpoints.clean_up()
            state, progress = restore_or_init(setup, checkpoints, say)
            checkpoints.delete_old()
            start, seconds = progress.step, progress.seconds
            # Batches are prepared while the programs compile.
            batches = stack.enter_context(
                Prefetcher(setup.batches, mesh, start, last, config.data.num_workers)
            )
            with measure("compile", seconds):
                programs = compile_programs(train_program(setup), setup.batches.shapes, mesh)
                valid_loss = validation_loss(setup)
                # Compile the checksums that `save` computes.
                for tree in (state.params, state.opt_state, state.ema):
                    checksums(tree)
            repeated = progress.evaluation_due
            writer = (
                MetricsWriter(setup.workdir, resume_step=start, evaluation_due=repeated)
                if lead
                else None
            )
            hooks = make_hooks(setup, progress, group)  # may refuse the run
            if lead:
                begin(setup.workdir, config)
            for change in progress.config_changes:
                if change["step"] == start:
                    log(start, {"config_changed": change["changed"]})
            batches.wait()
            # Processes compile at different speeds: wait here, where a pause does not count as
            # hanging.
            group.barrier("compiled")

        # ---- Update, evaluate, save.
        bar = stack.enter_context(Progress("train", last, start=start, quiet=not lead))
        stack.enter_context(finish_saves_on_error(checkpoints))
        stack.enter_context(supervisor.expect_progress())
        step, reason, rate = start, "", Rate(seconds)
        rate.restart()
        # True if the run stopped before the evaluation of `start` was done.
        evaluates = progress.evaluation_due and start <= last
        if start and not evaluates:
            reason = reason_to_end(config, progress, start)
        while not reason:
            if not evaluates:
                # Dispatch this update, then read the metrics of the one before it: the devices
                # always have an update queued while the host reports.
                step += 1
                with measure("data", seconds):
                    batch = batches.next()
                with measure("step", seconds), jax.transfer_guard("disallow"):
                    call_hooks(hooks, "before", step, state, batch)
                    state, metrics = programs[batch.arrays["target"].shape](state, batch.arrays)
                report()
                queued = step, batch, metrics
            if step == start + 1:
                report()
                say(f"first update {seconds_since_start():.1f} s after the start of the process")
            checkpoints.check_for_errors()
            stopping, due = supervisor.should_stop(), due_after(setup, step)
            if not (evaluates or stopping or due.evaluation or due.checkpoint or step == last):
                continue

            report()  # raises where the run diverged, before it is evaluated or saved
            evaluates, metric, progress.evaluation_due = False, None, due.evaluation
            try:
                if due.evaluation and not stopping:
                    metric = evaluate(step, due)
            except StopRequested:  # the resumed run starts with this evaluation
                stopping = True
            reason = reason_to_end(config, progress, step, supervisor.signal if stopping else "")
            if reason or due.checkpoint or (metric is not None and keep.keep_best):
                save(step, metric)

        # ---- End.
        with measure("save", seconds), supervisor.expect_progress(False):
            checkpoints.wait()
        ended = TrainingEnd(state, step, reason, progress.rounded_seconds(), hooks)
        if not ended.finished:
            end(step)
        elif writer:
            writer.close()
    checkpoints.close()
    if note := ended.finished and worse_than_start(setup):
        say(note)
    return ended


@contextlib.contextmanager
def finish_saves_on_error(checkpoints: Checkpoints) -> Iterator[None]:
    """If the block raises, let a save in progress finish: the run can resume from it.

    With several processes the save gets 5 s, because another process may be dead. After a
    NonFiniteUpdate, which all processes raise, it gets as long as it needs.
    """
    try:
        yield
    except NonFiniteUpdate:
        checkpoints.close()
        raise
    except Exception:
        checkpoints.finish_save(None if jax.process_count() == 1 else 5.0)
        raise
