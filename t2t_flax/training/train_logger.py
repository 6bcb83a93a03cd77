"""Logs updates to the progress bar and metrics.jsonl, and handles updates that are not finite."""

import math
from collections.abc import Sequence
from typing import Any

import jax

from t2t_flax.errors import NonFiniteUpdate
from t2t_flax.training.hooks import Hook
from t2t_flax.training.progress import Clock, MetricsWriter, Progress
from t2t_flax.training.setup import DeviceBatch, TrainingSetup
from t2t_flax.training.train_state import TrainProgress

MOST_SKIPPED = 10
"""Updates in a row that are skipped with train.non_finite = skip."""


class TrainLogger:
    """Writes every n-th update of a run to metrics.jsonl, shows each in the progress bar, and tells the hooks. Counts skipped
    updates in `progress`.
    """

    def __init__(self, run: TrainingSetup, clock: Clock, progress: TrainProgress, hooks: Sequence[Hook] = ()):
        self._run, self._clock, self._progress, self._hooks = run, clock, progress, hooks
        self._writer = None
        if jax.process_index() == 0:
            self._writer = MetricsWriter(run.workdir, resume_step=progress.step, evaluation_due=progress.evaluation_due)
        for hook in hooks:
            hook.on_start(run, progress)
        for change in progress.config_changes:
            if change["step"] == progress.step:
                self.write(progress.step, {"config_changed": change["changed"]})
        self._since = self._busy()
        self._tokens = self._slots = 0

    def _busy(self) -> float:
        return self._clock.seconds.get("step", 0.0) + self._clock.seconds.get("data", 0.0)

    def log_update(self, step: int, batch: DeviceBatch, values: dict[str, Any], bar: Progress) -> None:
        """`values`: the update's metrics. Raises NonFiniteUpdate where it was not finite and the run is to stop."""
        finite = bool(values.pop("finite"))
        if not finite:
            self._skip(step, values, bar)
            values = {name: value for name, value in values.items() if math.isfinite(value)}
        else:
            self._progress.skipped_in_a_row = 0
        self._tokens += batch.batch.target_tokens
        self._slots += batch.batch.shape.size
        seconds = max(self._busy() - self._since, 1e-9)
        text = (
            f"loss {values.get('loss', math.nan):.3f}  lr {values['learning_rate']:.2e}  {self._tokens / seconds:,.0f} tok/s  "
            f"fill {self._tokens / self._slots:.0%}"
        )
        bar.update(step, text)
        if due := step % self._run.config.log.every_steps == 0:
            if finite:
                values["ppl"] = math.exp(min(values["nll"], 700.0))
            if self._run.config.train.non_finite == "skip":
                values["skipped_updates"] = self._progress.skipped_updates
            values |= {
                "epoch": batch.batch.epoch,
                "source_tokens": batch.batch.source_tokens,
                "target_tokens": batch.batch.target_tokens,
                "target_tokens_per_second": self._tokens / seconds,
                "fill": batch.batch.fill,
            }
            values["seconds"] = self._clock.rounded()
            self._since = self._busy()
            self._tokens = self._slots = 0
        for hook in self._hooks:
            hook.on_update(step, batch, values)
        if due:
            self.write(step, values)

    def _skip(self, step: int, values: dict[str, float], bar: Progress) -> None:
        """Logs an update that was not applied. Raises NonFiniteUpdate where the run is to stop."""
        self._progress.skipped_in_a_row += 1
        loss, norm = values["loss"], values["grad_norm"]
        why = f"update {step}: loss {loss}, gradient norm {norm}"
        if math.isfinite(loss) and math.isfinite(norm):
            why += ", and parameters that are not finite"
        if self._run.config.train.non_finite == "stop":
            raise NonFiniteUpdate(step, f"{why}.")
        if self._progress.skipped_in_a_row > MOST_SKIPPED:
            raise NonFiniteUpdate(step, f"{why}; {MOST_SKIPPED} updates before it were skipped.")
        self._progress.skipped_updates += 1
        self.write(step, {"skipped": why, "skipped_updates": self._progress.skipped_updates})
        bar.say(f"skipped {why}")

    def write(self, step: int, values: dict[str, Any]) -> None:
        if self._writer:
            self._writer.write(step, values)
            for hook in self._hooks:
                hook.on_log(step, values)

    def send(self) -> None:
        """Returns when the lines so far are stored: a checkpoint must not outlive them."""
        if self._writer:
            self._writer.send()

    def close(self) -> None:
        """Closes the file; a second time nothing is left to close."""
        writer, self._writer = self._writer, None
        if writer:
            writer.close()
