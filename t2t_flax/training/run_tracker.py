"""One run in the training loop: its evaluations, checkpoints, logs and end."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from t2t_flax.config.named_sources import VALID_PREFIX
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.supervisor import RunSupervisor
from t2t_flax.errors import UserError
from t2t_flax.monitoring.progress import Progress
from t2t_flax.monitoring.timers import Clock
from t2t_flax.tasks import lower_is_better
from t2t_flax.training.checkpoint_schedule import is_scheduled
from t2t_flax.training.checksums import compile_checksums
from t2t_flax.training.divergence import NonFiniteUpdate
from t2t_flax.training.hooks import Hook, make_hooks
from t2t_flax.training.lora import merge_on_devices, without_adapters
from t2t_flax.training.resume import TrainProgress, open_checkpoints, report_full_disk, restore_or_init, save
from t2t_flax.training.setup import TrainingSetup, ValidationLoss
from t2t_flax.training.train_logger import TrainLogger
from t2t_flax.training.train_state import TrainState


class Due(NamedTuple):
    """What is due after an update: validation loss, decoding the validation set, a scheduled checkpoint."""

    loss: bool
    decoding: bool
    checkpoint: bool

    @property
    def evaluation(self) -> bool:
        return self.loss or self.decoding


def due_after(run: TrainingSetup, step: int) -> Due:
    """What the config wants after update `step`, a function of the step alone. An epoch is the number of updates that the
    batch sampler gives it.
    """
    c, epoch = run.config, run.batches.updates_per_epoch

    def every(*intervals: int) -> bool:
        return any(n and step % n == 0 for n in intervals)

    return Due(
        loss=every(c.eval.every_steps, c.eval.every_epochs * epoch),
        decoding=every(c.eval.decode_every_steps),
        checkpoint=is_scheduled(c, epoch, step),
    )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How the loop ended: `reason` is "steps", "patience" or the name of a signal. `state`: None once it has been dropped
    to free its memory. `seconds`: by bucket, see `Clock`. `hooks`: of the run; those of a finished one await the scores of the
    final evaluation.
    """

    state: TrainState | None
    step: int
    reason: str
    seconds: dict[str, float]
    hooks: Sequence[Hook] = ()

    @property
    def finished(self) -> bool:
        return self.reason in ("steps", "patience")


class ValidationScore(Protocol):
    """Decodes the validation set and returns its metrics as `valid_NAME`."""

    def __call__(
        self,
        params,
        after_batch: Callable[[], None],
        compiling: Callable[[], contextlib.AbstractContextManager],
    ) -> dict[str, float]:
        """Calls `after_batch` after each batch, and compiles within `compiling()`."""
        ...


class RunTracker:
    """Host-side state of a run. `index`: its position among the runs that train together."""

    def __init__(self, index: int, run: TrainingSetup, score: ValidationScore | None, group: ProcessGroup):
        self.index, self.run, self._score = index, run, score
        self.checkpoints = open_checkpoints(run, group)
        self.hooks = make_hooks(run.config, run.workdir, group)
        self.metric: float | None = None
        """Of the evaluation after the current update; higher is better."""
        self.outcome: Outcome | None = None
        self.failure: NonFiniteUpdate | None = None

    @property
    def running(self) -> bool:
        return self.outcome is None and self.failure is None

    def restore_or_init(self, say: Callable[[str], None]) -> TrainState:
        """The state of the newest checkpoint, or a new one."""
        state, self.progress = restore_or_init(self.run, self.checkpoints, say)
        self.checkpoints.prepare_to_save()
        self.clock = Clock(self.progress.seconds)
        return state

    def compile(self, state: TrainState) -> None:
        """Compiles the programs for evaluating and saving `state`."""
        self._valid_loss = validation_loss(self.run)
        compile_checksums(state)

    def open_logs(self) -> None:
        """Opens metrics.jsonl and the progress bar, which process 0 shows for the first run."""
        steps, lead = self.run.config.train.steps, self.checkpoints.group.is_lead
        self.logger = TrainLogger(self.run, self.clock, self.progress, self.hooks)
        self.bar = Progress("train", steps, start=self.progress.step, quiet=self.index > 0 or not lead)

    def end_at_start(self) -> str:
        """Why a restored run has nothing to train, "steps" or "patience"; empty where it has."""
        if self.progress.evaluation_due or not self.progress.step:
            return ""
        return self.end_after(self.progress.step, "")

    def end_after(self, step: int, signal: str) -> str:
        """Why the run ends after `step`: "patience", `signal` or "steps"; empty if it continues."""
        patience = self.run.config.eval.patience
        if patience and self.progress.evaluations_without_better >= patience:
            return "patience"
        return signal or ("steps" if step >= self.run.config.train.steps else "")

    def log_update(self, step: int, batch, values: dict[str, float]) -> None:
        """Logs an update. One that is not finite may end this run, but not the others."""
        try:
            self.logger.log_update(step, batch, values, self.bar)
        except NonFiniteUpdate as error:
            self.failure = error
            self._end_hooks(step)

    def evaluate(self, step: int, due: Due, state: TrainState, supervisor: RunSupervisor) -> None:
        """Evaluates and logs what is due. Raises StopRequested where all processes stop in the middle of it; the evaluation
        is then discarded, and remains due.
        """
        config, values = self.run.config, {}
        with self.clock.measure("eval"):
            params = merge_on_devices(config.train, state.eval_params)
            if self._valid_loss and due.loss:
                means = self._valid_loss(params, supervisor.raise_if_stopping)
                values |= {f"valid_{name}": mean for name, mean in means.items()}
                values["valid_ppl"] = math.exp(min(means["nll"], 700.0))
            if due.decoding:
                compiling = functools.partial(supervisor.exit_on_signal, "compiling the search")
                values |= self._score(params, supervisor.raise_if_stopping, compiling)
        self.progress.evaluation_due = False
        self.metric = note_metric(self.progress, values, step, config.eval.metric)
        for hook in self.hooks:
            hook.on_evaluation(step, values)
        self.logger.write(step, values)
        self.bar.say(f"step {step}: " + "  ".join(f"{k} {v:.4f}" for k, v in values.items()))

    def save(self, step: int, state: TrainState, supervisor: RunSupervisor) -> None:
        """Starts a checkpoint, or adds the evaluation to the one that was saved before it. May wait for the previous save, up to
        Orbax's timeout of an hour; compiles the first time.
        """
        for hook in self.hooks:
            hook.on_checkpoint(step)
        self.logger.send()
        with self.clock.measure("save"), supervisor.expect_no_progress():
            self.progress.step, self.progress.seconds = step, self.clock.seconds
            save(self.run, self.checkpoints, state, self.progress, self.metric)

    def check_saves(self) -> None:
        """Raises errors of background saves, a full disk as UserError."""
        report_full_disk(self.checkpoints, self.checkpoints.check_for_errors)

    def wait_for_saves(self, supervisor: RunSupervisor) -> None:
        """Returns when all checkpoints are on disk. Raises as `check_saves`."""
        with self.clock.measure("save"), supervisor.expect_no_progress():
            report_full_disk(self.checkpoints, self.checkpoints.wait)

    def end(self, state: TrainState, step: int, reason: str) -> None:
        self.outcome = Outcome(state, step, reason, self.clock.rounded(), self.hooks)
        self.logger.close()
        if not self.outcome.finished:
            self._end_hooks(step)

    def _end_hooks(self, step: int) -> None:
        for hook in self.hooks:
            hook.on_end(step, {})

    def close(self) -> None:
        """Waits for the checkpoints, and closes all files."""
        report_full_disk(self.checkpoints, self.checkpoints.wait)
        self.checkpoints.close()
        self.logger.close()


def common_step(trackers: list[RunTracker]) -> int:
    """The common update of all runs. Raises UserError if they differ."""
    steps = {tracker.progress.step for tracker in trackers}
    if len(steps) > 1:
        places = ", ".join(f"{t.run.workdir} at {t.progress.step}" for t in trackers)
        raise UserError(
            f"runs that train together must be at the same update, but they are at different updates: {places}. Train those "
            "that are behind by themselves first."
        )
    return steps.pop()


def validation_loss(run: TrainingSetup) -> Callable[..., dict[str, float]] | None:
    """The function that computes the validation losses, see `ValidationLoss` and `with_means`; None if the config does not need
    it.
    """
    if not (run.corpus.valid and (run.config.eval.every_steps or run.config.eval.every_epochs)):
        return None
    besides = run.abstract.opt_state, run.abstract.ema
    params = without_adapters(run.abstract.params)
    programs: dict[Any, Any] = {}
    losses = {
        name: ValidationLoss(run.config, run.model, run.mesh, params, store, name, besides, programs)
        for name, store in run.corpus.valid.items()
    }
    return lambda params, after_batch: with_means({name: loss(params, after_batch) for name, loss in losses.items()})


def with_means(values: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """{metric: its mean over the validation sets, "metric/SET": that of each set with a name} from {set: {metric: value}}.

    The mean does not weigh the sets by their size: every direction of a model counts as much as any other.
    """
    first, *_ = values.values()
    means = {metric: float(np.mean([of_set[metric] for of_set in values.values()])) for metric in first}
    named = [(name.removeprefix(VALID_PREFIX), of_set) for name, of_set in values.items() if name != "valid"]
    return means | {f"{metric}/{name}": value for name, of_set in named for metric, value in of_set.items()}


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
