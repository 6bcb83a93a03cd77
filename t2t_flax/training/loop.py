"""The training loop: restore, compile, update, evaluate, save."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping

import jax

from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.supervisor import RunSupervisor, StopRequested
from t2t_flax.errors import NonFiniteUpdate
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.checksums import checksums
from t2t_flax.training.hooks import call_hooks, make_hooks
from t2t_flax.training.losses import Sums, perplexity
from t2t_flax.training.parametrization import merged
from t2t_flax.training.parts import DeviceBatch, TrainingEnd, TrainingSetup
from t2t_flax.training.prefetcher import Prefetcher
from t2t_flax.training.progress import (
    MetricsWriter,
    ProgressBar,
    Throughput,
    measure,
    seconds_since_start,
)
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
from t2t_flax.training.setup import compile_programs, train_program
from t2t_flax.training.validation import validation_loss
from t2t_flax.training.workdir import mark_as_training

ValidationScore = Callable[..., dict[str, float]]
"""Function (params, after_batch, while_compiling) -> {valid_NAME: metric}, by decoding.

It calls `after_batch()` after each batch, and compiles inside `with while_compiling():`.
"""


def train(
    setup: TrainingSetup,
    score: ValidationScore | None,
    say: Callable[[str], None] = print,
    supervisor: RunSupervisor | None = None,
) -> TrainingEnd:
    """Train to config.train.steps, from the newest checkpoint or from scratch.

    Updates count from 1, batches from 0: update t uses batch t - 1.

    Args:
        score: decodes and scores the validation sets; None = never.
        say: prints a line for the user.
        supervisor: signals and messages of the run's processes; default: this process alone.

    Raises:
        NonFiniteUpdate: the run diverged.
        UserError: the checkpoint has another model, or the disk is full.
    """
    with contextlib.ExitStack() as stack:
        supervisor = supervisor or stack.enter_context(RunSupervisor(ProcessGroup(), setup.config))
        config, group = setup.config, supervisor.group
        last_step = config.train.steps
        keep_last = max(config.checkpoint.keep_last, config.checkpoint.average_last)
        checkpoints = Checkpoints(
            setup.workdir / "checkpoints",
            keep_last=keep_last,
            keep_best=config.checkpoint.keep_best,
            group=group,
        )

        # ---- Restore. Compile all programs: nothing compiles after the first update.
        with supervisor.exit_on_signal("restoring and compiling"):
            checkpoints.clean_up()
            state, progress = restore_or_init(setup, checkpoints, say)
            checkpoints.delete_old()
            start, timings = progress.step, progress.seconds
            # Batches are prepared while the programs compile.
            batches = stack.enter_context(
                Prefetcher(setup.batches, setup.mesh, start, last_step, config.data.num_workers)
            )
            say("compile the update")
            with measure("compile", timings):
                programs = compile_programs(train_program(setup), setup.batches.shapes, setup.mesh)
                valid_loss = validation_loss(setup)
                # Compile the checksums that a save computes.
                for tree in (state.params, state.opt_state, state.ema):
                    checksums(tree)
            writer: MetricsWriter | None = None
            if group.is_lead:
                writer = MetricsWriter(
                    setup.workdir, resume_step=start, evaluation_pending=progress.evaluation_pending
                )
            hooks = make_hooks(setup, progress, group)  # may refuse the run
            if group.is_lead:
                mark_as_training(setup.workdir, config)
            batches.wait()
            # Processes compile at different speeds: wait here, where a pause does not count as
            # hanging.
            group.barrier("compiled")
        bar = stack.enter_context(
            ProgressBar("train", last_step, start=start, quiet=not group.is_lead)
        )
        throughput = Throughput(timings)
        queued: tuple[int, DeviceBatch, Sums] | None = None

        # ---- Functions that the loop below calls.
        def write_metrics(step: int, values: Mapping[str, object]) -> None:
            """Append a line to metrics.jsonl and call the log hooks, in process 0 only."""
            if writer:
                values = {
                    **values,
                    "total_source_tokens": progress.source_tokens,
                    "total_target_tokens": progress.target_tokens,
                }
                writer.write(step, values)
                call_hooks(hooks, "log", step, values)

        def end_early(step: int) -> None:
            """Close metrics.jsonl, and call the end hooks of a run that stopped or diverged.

            A finished run calls them after its final evaluation (`evaluation.sets`).
            """
            if writer:
                writer.close()
            call_hooks(hooks, "end", step, {})

        def finish_update() -> None:
            """Wait for the queued update; count, show and log it.

            Raises NonFiniteUpdate where the run diverged.
            """
            nonlocal queued
            if not queued:
                return
            (step, batch, metrics), queued = queued, None
            with measure("step", timings):
                values = {name: float(x) for name, x in jax.device_get(metrics).items()}
            progress.source_tokens += batch.host.source_tokens
            progress.target_tokens += batch.host.target_tokens
            throughput.add(batch.host)
            finite = bool(values.pop("finite"))
            if finite:
                progress.skipped_in_a_row = 0
            else:
                try:
                    skipped = skip_or_fail(config, progress, step, values)
                except NonFiniteUpdate:
                    end_early(step)
                    raise
                write_metrics(
                    step, {"skipped": skipped, "skipped_updates": progress.skipped_updates}
                )
                bar.say(f"skipped {skipped}")
                values = {name: x for name, x in values.items() if math.isfinite(x)}
            loss, rate = values.get("loss", math.nan), values["learning_rate"]
            bar.update(step, f"loss {loss:.3f}  lr {rate:.2e}  {throughput}")
            logged = step % config.log.every_steps == 0
            if logged:
                if finite:
                    values["ppl"] = perplexity(values["nll"])
                if config.train.non_finite == "skip":
                    values["skipped_updates"] = progress.skipped_updates
                values |= throughput.describe(batch.host)
                throughput.restart()
            call_hooks(hooks, "update", step, batch, values)
            if logged:
                write_metrics(step, values | {"seconds": progress.rounded_seconds()})

        def evaluate(step: int, due: DueAfterUpdate) -> float | None:
            """Run and log the due evaluations; return eval.metric, higher is better.

            Raises StopRequested where all processes stop before the end. The evaluation is then
            discarded and remains due.
            """
            values: dict[str, float] = {}
            with measure("eval", timings):
                params = merged(setup.parametrization, state.eval_params)
                if valid_loss and due.loss:
                    means = valid_loss(params, supervisor.raise_if_stopping)
                    values |= {f"valid_{name}": mean for name, mean in means.items()}
                    values["valid_ppl"] = perplexity(means["nll"])
                if score and due.decoding:
                    while_compiling = functools.partial(
                        supervisor.exit_on_signal, "compiling the search"
                    )
                    values |= score(params, supervisor.raise_if_stopping, while_compiling)
            progress.evaluation_pending = False
            metric = note_metric(progress, values, step, config.eval.metric)
            write_metrics(step, values)
            bar.say(f"step {step}: " + "  ".join(f"{k} {v:.4f}" for k, v in values.items()))
            return metric

        def save(step: int, metric: float | None) -> None:
            """Start to save a checkpoint in the background.

            If the run stopped between this checkpoint and its evaluation, add the evaluation to it
            instead. May wait for the previous save, up to Orbax's timeout of an hour. Raises
            UserError where the disk is full.
            """
            if writer:
                writer.send()  # store the lines of metrics.jsonl before the checkpoint
            with measure("save", timings), supervisor.expect_progress(False):
                progress.step = step
                if step in checkpoints.steps():
                    checkpoints.add_evaluation(step, progress.evaluation_fields(), metric)
                else:
                    checkpoints.save(state, checkpoint_meta(setup, progress), metric)

        # ---- Update, evaluate, save.
        stack.enter_context(join_save_on_error(checkpoints))
        stack.enter_context(supervisor.expect_progress())
        for change in progress.config_changes:
            if change["step"] == start:
                write_metrics(start, {"config_changed": change["changed"]})
        step, reason = start, ""
        throughput.restart()
        # A resumed run may have ended: by its updates, by patience, or as train.steps was lowered.
        # With an evaluation pending it does not end here: it begins with that evaluation.
        if (start and not progress.evaluation_pending) or start > last_step:
            reason = reason_to_end(config, progress, start)
        while not reason:
            if not progress.evaluation_pending:
                # Dispatch this update, then read the metrics of the one before it: the devices
                # always have an update queued while the host reports.
                step += 1
                with measure("data", timings):
                    batch = batches.next()
                with measure("step", timings), jax.transfer_guard("disallow"):
                    call_hooks(hooks, "before", step, state, batch)
                    state, metrics = programs[batch.arrays["target"].shape](state, batch.arrays)
                finish_update()
                queued = step, batch, metrics
            if step == start + 1:
                finish_update()
                say(f"first update {seconds_since_start():.1f} s after the start of the process")
            checkpoints.check_for_errors()
            stopping, due = supervisor.should_stop(), due_after(setup, step)
            nothing_due = not (due.evaluation or due.checkpoint or progress.evaluation_pending)
            if nothing_due and not stopping and step < last_step:
                continue

            finish_update()  # raises where the run diverged, before it is evaluated or saved
            metric = None
            progress.evaluation_pending = due.evaluation  # until `evaluate` ends: a save stores it
            if due.evaluation and not stopping:
                try:
                    metric = evaluate(step, due)
                except StopRequested:
                    stopping = True
            reason = reason_to_end(config, progress, step, supervisor.signal if stopping else "")
            if reason or due.checkpoint or (metric is not None and config.checkpoint.keep_best):
                save(step, metric)

        # ---- End.
        with measure("save", timings), supervisor.expect_progress(False):
            checkpoints.wait()
        ended = TrainingEnd(state, step, reason, progress.rounded_seconds(), hooks)
        if not ended.finished:
            end_early(step)
        elif writer:
            writer.close()
    checkpoints.close()
    note = worse_than_start(setup) if ended.finished else ""
    if note:
        say(note)
    return ended


@contextlib.contextmanager
def join_save_on_error(checkpoints: Checkpoints) -> Iterator[None]:
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
        checkpoints.join_save(None if jax.process_count() == 1 else 5.0)
        raise
