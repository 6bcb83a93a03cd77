"""One run in the training loop: its evaluations, checkpoints, logs and end."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from t2t_flax import config as config_lib
from t2t_flax.config.overrides import changes_of_training, stored_config
from t2t_flax.distributed.supervisor import RunSupervisor
from t2t_flax.errors import NonFiniteUpdate
from t2t_flax.tasks import lower_is_better
from t2t_flax.training.checkpoints import Checkpoints, is_scheduled
from t2t_flax.training.checksums import checksums
from t2t_flax.training.hooks import Hook, make_hooks
from t2t_flax.training.progress import MetricsWriter, Progress, measure, read_metrics
from t2t_flax.training.setup import DeviceBatch, Prefetcher, TrainingSetup, compile_train_steps, validation_loss
from t2t_flax.training.train_state import TrainProgress, TrainState, init_state, parameters_of
from t2t_flax.training.workdir import begin


def restore_or_init(
    setup: TrainingSetup, checkpoints: Checkpoints, say: Callable[[str], None]
) -> tuple[TrainState, TrainProgress]:
    """The newest checkpoint, else a new state. Raises UserError."""
    restored = checkpoints.restore_latest(setup.abstract, setup.config, setup.digests)
    if restored:
        state, meta = restored
        progress = TrainProgress(**meta["progress"])
        note = f"resuming {setup.workdir} after update {meta['step']}"
        if progress.metric_of != setup.metric_of:
            if progress.best_metric is not None:
                note += (
                    f"; config.eval.metric = {setup.config.eval.metric} is now of other validation data or translations"
                )
            progress.metric_of = setup.metric_of
            progress.best_metric, progress.best_step, progress.evaluations_without_better = None, 0, 0
        if changed := changes_of_training(stored_config(meta), setup.config):
            progress.config_changes.append({"step": meta["step"], "changed": changed})
            note += ", with " + ", ".join(f"{key} {old} -> {new}" for key, (old, new) in changed.items())
        say(note)
        return state, progress
    parameters = parameters_of(setup.config)
    start = lambda own: parameters.start(setup, own, checkpoints.group, say)  # noqa: E731
    state, _ = init_state(setup.config, setup.model, setup.tx, setup.mesh, start=start)
    return state, TrainProgress(metric_of=setup.metric_of, evaluation_due=parameters.starts_trained)


def checkpoint_meta(setup: TrainingSetup, progress: TrainProgress) -> dict[str, Any]:
    """The metadata of a checkpoint, from which `restore_or_init` resumes."""
    return {
        "step": progress.step,
        "updates_per_epoch": setup.batches.updates_per_epoch,
        "corpus_target_tokens": setup.corpus.train.meta["target"]["tokens"],
        "config": config_lib.as_json(setup.config),
        "digests": setup.digests,
        "progress": dataclasses.asdict(progress),
    }


class DueAfterUpdate(NamedTuple):
    """What is due after an update: validation loss, decoding the validation set, a scheduled checkpoint."""

    loss: bool
    decoding: bool
    checkpoint: bool

    @property
    def evaluation(self) -> bool:
        return self.loss or self.decoding


def due_after(run: TrainingSetup, step: int) -> DueAfterUpdate:
    """What the config wants after update `step`, a function of the step alone. An epoch is `Batches.updates_per_epoch`."""
    c, epoch = run.config, run.batches.updates_per_epoch

    def every(*intervals: int) -> bool:
        return any(n and step % n == 0 for n in intervals)

    return DueAfterUpdate(
        loss=every(c.eval.every_steps, c.eval.every_epochs * epoch),
        decoding=every(c.eval.decode_every_steps),
        checkpoint=is_scheduled(c, epoch, step),
    )


@dataclasses.dataclass(frozen=True)
class TrainingEnd:
    """How the training of a run ended.

    `reason` is "steps", "patience" or the name of a signal. `state`: None once it has been dropped to free its memory.
    `seconds`: by bucket, see `TrainProgress`. `hooks`: of the run; those of a finished one await the scores of the final
    evaluation.
    """

    state: TrainState | None
    step: int
    reason: str
    seconds: dict[str, float]
    hooks: Sequence[Hook] = ()

    @property
    def finished(self) -> bool:
        return not self.reason.startswith("SIG")


MOST_SKIPPED = 10
"""Updates in a row that are skipped with train.non_finite = skip."""

ValidationScore = Callable[..., dict[str, float]]
"""(params, after_batch, compiling) -> metrics of the decoded validation set as `valid_NAME`. It calls `after_batch()` after each
batch, and compiles within the context `compiling()`.
"""


class Run:
    """A run on this process: its state, and what the loop does with it. `setup`: its parts."""

    def __init__(self, setup: TrainingSetup, score: ValidationScore | None, supervisor: RunSupervisor):
        self.setup, self._score, self._supervisor = setup, score, supervisor
        c, group = setup.config.checkpoint, supervisor.group
        last = max(c.keep_last, c.average_last)
        self.checkpoints = Checkpoints(
            setup.workdir / "checkpoints", keep_last=last, keep_best=c.keep_best, group=group
        )
        self.hooks = make_hooks(setup.config, setup.workdir, group)
        self.metric: float | None = None
        """Of the evaluation after the current update; higher is better."""
        self.ended: TrainingEnd | None = None
        self.failure: NonFiniteUpdate | None = None

    @property
    def running(self) -> bool:
        return self.ended is None and self.failure is None

    @property
    def evaluation_due(self) -> bool:
        """Whether it is to be evaluated before its first update."""
        return self.running and self.progress.evaluation_due

    def restore(self, say: Callable[[str], None]) -> int:
        """Takes the state of the newest checkpoint, or a new one. Returns the number of its last update."""
        self.checkpoints.clean_up()
        self.state, self.progress = restore_or_init(self.setup, self.checkpoints, say)
        self.checkpoints.delete_old()
        return self.progress.step

    def compile(self) -> None:
        """Compiles all programs: for updating, evaluating and saving."""
        with self.measure("compile"):
            self._programs = compile_train_steps(self.setup, self.hooks)
            self._valid_loss = validation_loss(self.setup)
            for tree in (self.state.params, self.state.opt_state, self.state.ema):
                checksums(tree)

    def measure(self, bucket: str) -> contextlib.AbstractContextManager[None]:
        """Adds the block's time to a bucket of the run's seconds."""
        return measure(bucket, self.progress.seconds)

    def open_logs(self) -> None:
        """Marks the workdir as training, opens metrics.jsonl and the progress bar (in process 0), and starts the hooks."""
        setup, progress, lead = self.setup, self.progress, self._supervisor.group.is_lead
        self._writer = None
        if lead:
            due = progress.evaluation_due
            self._writer = MetricsWriter(setup.workdir, resume_step=progress.step, evaluation_due=due)
        for hook in self.hooks:
            hook.on_start(setup, progress)  # may refuse the run
        if lead:
            begin(setup.workdir, setup.config)
        for change in progress.config_changes:
            if change["step"] == progress.step:
                self.write(progress.step, {"config_changed": change["changed"]})
        self.bar = Progress("train", setup.config.train.steps, start=progress.step, quiet=not lead)
        self._unread: tuple[int, DeviceBatch, dict[str, jax.Array]] | None = None
        """The last queued update; its metrics have not been fetched yet."""
        self._since, self._tokens, self._slots = self._busy(), 0, 0

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Appends a line to metrics.jsonl, in process 0, with the tokens so far, and tells the hooks."""
        if self._writer:
            values = values | {
                "total_source_tokens": self.progress.source_tokens,
                "total_target_tokens": self.progress.target_tokens,
            }
            self._writer.write(step, values)
            for hook in self.hooks:
                hook.on_log(step, values)

    def _busy(self) -> float:
        return sum(self.progress.seconds.get(bucket, 0.0) for bucket in ("step", "data"))

    @contextlib.contextmanager
    def finish_saves_on_error(self):
        """Shows the progress bar. If the block raises, lets a save in progress finish, so that the run can resume from it: with
        several processes within 5 s, because another one may be dead, unless the run has diverged, which all of them see.
        """
        with self.bar:
            try:
                yield
            except Exception as error:
                all_alive = jax.process_count() == 1 or isinstance(error, NonFiniteUpdate)
                self.checkpoints.finish_save(None if all_alive else 5.0)
                raise

    def end_if_complete(self) -> None:
        """Ends a restored run that has nothing left to train."""
        step = self.progress.step
        evaluates = self.progress.evaluation_due and step <= self.setup.config.train.steps
        if step and not evaluates and self.reason_to_end(step, ""):
            self.end(step, "")

    def update(self, step: int, batches: Prefetcher) -> None:
        """Queues an update with the next batch, and reads the metrics of the one before: one is always queued."""
        with self.measure("data"):
            batch = batches.next()
        with self.measure("step"), jax.transfer_guard("disallow"):
            for hook in self.hooks:
                hook.before_update(step, self.state, batch)
            self.state, values = self._programs[batch.arrays["target"].shape](self.state, batch.arrays)
        self.read_metrics()
        self._unread = step, batch, values

    def read_metrics(self) -> None:
        """Waits for the last update and logs it."""
        if self._unread:
            (step, batch, metrics), self._unread = self._unread, None
            with self.measure("step"):
                values = {name: float(value) for name, value in jax.device_get(metrics).items()}
            if self.running:
                self._log_update(step, batch, values)

    def _log_update(self, step: int, batch: DeviceBatch, values: dict[str, Any]) -> None:
        """Reports an update to the progress bar, the hooks and, every log.every_steps, metrics.jsonl. A non-finite one is skipped
        or sets `failure`.
        """
        config, source = self.setup.config, batch.batch
        self.progress.source_tokens += source.source_tokens
        self.progress.target_tokens += source.target_tokens
        if finite := bool(values.pop("finite")):
            self.progress.skipped_in_a_row = 0
        else:
            self._skip(step, values)
            if self.failure:
                return
            values = {name: value for name, value in values.items() if math.isfinite(value)}
        self._tokens += source.target_tokens
        self._slots += source.shape.size
        rate = self._tokens / max(self._busy() - self._since, 1e-9)
        self.bar.update(
            step,
            f"loss {values.get('loss', math.nan):.3f}  lr {values['learning_rate']:.2e}  {rate:,.0f} tok/s  "
            f"fill {self._tokens / self._slots:.0%}",
        )
        if due := step % config.log.every_steps == 0:
            if finite:
                values["ppl"] = math.exp(min(values["nll"], 700.0))
            if config.train.non_finite == "skip":
                values["skipped_updates"] = self.progress.skipped_updates
            values |= {
                "epoch": source.epoch,
                "source_tokens": source.source_tokens,
                "target_tokens": source.target_tokens,
                "target_tokens_per_second": rate,
                "fill": source.fill,
                "seconds": self.progress.rounded_seconds(),
            }
            self._since, self._tokens, self._slots = self._busy(), 0, 0
        for hook in self.hooks:
            hook.on_update(step, batch, values)
        if due:
            self.write(step, values)

    def _skip(self, step: int, values: dict[str, float]) -> None:
        """Logs an update that was not applied, or ends the run."""
        progress, loss, norm = self.progress, values["loss"], values["grad_norm"]
        progress.skipped_in_a_row += 1
        why = f"update {step}: loss {loss}, gradient norm {norm}"
        if math.isfinite(loss) and math.isfinite(norm):
            why += ", and parameters that are not finite"
        if self.setup.config.train.non_finite == "stop":
            self.failure = NonFiniteUpdate(step, f"{why}.")
        elif progress.skipped_in_a_row > MOST_SKIPPED:
            self.failure = NonFiniteUpdate(step, f"{why}; {MOST_SKIPPED} updates before it were skipped.")
        if self.failure:
            self._end_hooks(step)
            return
        progress.skipped_updates += 1
        self.write(step, {"skipped": why, "skipped_updates": progress.skipped_updates})
        self.bar.say(f"skipped {why}")

    def expect_evaluation(self, due: DueAfterUpdate) -> None:
        """Records whether an evaluation is due: a run that is interrupted before or during it evaluates first on resume."""
        self.metric, self.progress.evaluation_due = None, due.evaluation

    def evaluate(self, step: int, due: DueAfterUpdate) -> None:
        """Evaluates and logs what is due. Raises StopRequested where all processes stop in the middle of it; the evaluation
        is then discarded, and remains due.
        """
        config, supervisor = self.setup.config, self._supervisor
        values: dict[str, float] = {}
        with self.measure("eval"):
            params = parameters_of(config).merge_on_devices(self.state.eval_params)
            if self._valid_loss and due.loss:
                means = self._valid_loss(params, supervisor.raise_if_stopping)
                values |= {f"valid_{name}": mean for name, mean in means.items()}
                values["valid_ppl"] = math.exp(min(means["nll"], 700.0))
            if self._score and due.decoding:
                compiling = functools.partial(supervisor.exit_on_signal, "compiling the search")
                values |= self._score(params, supervisor.raise_if_stopping, compiling)
        self.progress.evaluation_due = False
        self.metric = note_metric(self.progress, values, step, config.eval.metric)
        shown = "  ".join(f"{k} {v:.4f}" for k, v in values.items())
        self.write(step, values)
        self.bar.say(f"step {step}: {shown}")

    def save(self, step: int, *, required: bool) -> None:
        """Starts a checkpoint if it is required or may be among the best. If there is one already, written when the run
        stopped before its evaluation, adds the evaluation to it. May wait for the previous save, up to Orbax's timeout of an
        hour. Raises UserError where the disk is full.
        """
        if not (required or self.metric is not None and self.setup.config.checkpoint.keep_best):
            return
        for hook in self.hooks:
            hook.on_checkpoint(step)
        if self._writer:
            self._writer.send()  # a checkpoint must not outlive the lines before it
        with self.measure("save"), self._supervisor.expect_progress(False):
            self.progress.step = step
            if step in self.checkpoints.steps():
                self.checkpoints.add_evaluation(step, self.progress.of_evaluation(), self.metric)
            else:
                self.checkpoints.save(self.state, checkpoint_meta(self.setup, self.progress), self.metric)

    def wait_for_saves(self) -> None:
        """Returns when all checkpoints are on disk. Raises as `Checkpoints.check_for_errors`."""
        with self.measure("save"), self._supervisor.expect_progress(False):
            self.checkpoints.wait()

    def check_saves(self) -> None:
        """Raises errors of background saves, a full disk as UserError."""
        self.checkpoints.check_for_errors()

    def reason_to_end(self, step: int, signal: str) -> str:
        """Why the run ends after `step`, as in `TrainingEnd`; empty if it continues."""
        patience = self.setup.config.eval.patience
        if patience and self.progress.evaluations_without_better >= patience:
            return "patience"
        return signal or ("steps" if step >= self.setup.config.train.steps else "")

    def end(self, step: int, signal: str) -> None:
        """Ends the run, which has a reason to. The hooks of a finished one await its final evaluation."""
        reason = self.reason_to_end(step, signal)
        self.ended = TrainingEnd(self.state, step, reason, self.progress.rounded_seconds(), self.hooks)
        self._close_writer()
        if not self.ended.finished:
            self._end_hooks(step)

    def _end_hooks(self, step: int) -> None:
        for hook in self.hooks:
            hook.on_end(step, {})

    def _close_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer:
            writer.close()

    def close(self) -> None:
        """Waits for the checkpoints, and closes all files."""
        self.checkpoints.wait()
        self.checkpoints.close()
        self._close_writer()


def worse_than_start(setup: TrainingSetup) -> str:
    """Return a note where eval.metric is worse at the end of a run than before its first update; "" for any other run."""
    name = f"valid_{setup.config.eval.metric}"
    values = [(line["step"], line[name]) for line in read_metrics(setup.workdir) if name in line]
    if not values or values[0][0]:
        return ""
    (_, start), (last, end) = values[0], values[-1]
    as_good = end <= start if lower_is_better(setup.config.eval.metric) else end >= start
    if as_good or math.isnan(start):
        return ""
    return (
        f"{name} is {end:.4f} after update {last}, worse than the {start:.4f} of the parameters that the run started from: "
        "use --best, or those"
    )


def note_metric(progress: TrainProgress, values: dict[str, float], step: int, name: str) -> float | None:
    """Updates `progress` for patience and the best checkpoint. Returns the evaluation's metric, higher is better; None where
    this evaluation has none, or one that is not finite, which counts as no better than any other.
    """
    value = values.get(f"valid_{name}")
    if value is None:
        return None
    metric = -value if lower_is_better(name) else value
    if math.isfinite(metric) and (progress.best_metric is None or metric > progress.best_metric):
        progress.best_metric, progress.best_step, progress.evaluations_without_better = metric, step, 0
    else:
        progress.evaluations_without_better += 1
    return metric if math.isfinite(metric) else None
