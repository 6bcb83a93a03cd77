"""What is said of each update: the progress bar, metrics.jsonl, and a stop where the loss is not finite."""

import math
from typing import Any

import jax

from t2t_flax.telemetry import flops
from t2t_flax.telemetry.clock import Clock
from t2t_flax.telemetry.metrics import MetricsWriter
from t2t_flax.telemetry.profile import Profile
from t2t_flax.telemetry.progress import Progress
from t2t_flax.training.feed import Fed
from t2t_flax.training.run import Run


class NonFiniteLoss(Exception):
    """The loss of an update was NaN or infinite; the run stopped, and that state was not saved."""


class UpdateLog:
    """Reads each update's metrics one update late, refuses a loss that is not finite, and writes every n-th."""

    def __init__(self, run: Run, clock: Clock, step: int):
        self._run, self._clock, config = run, clock, run.config
        self._writer = None
        if jax.process_index() == 0:
            self._writer = MetricsWriter(run.workdir, resume_step=step, tensorboard=config.log.tensorboard)
        self._pending: tuple[int, Fed, Any] | None = None
        self._since = self._busy()
        self._tokens, self._hardware, self._useful, self._slots = 0.0, 0.0, 0.0, 0.0
        devices = run.mesh.size
        sheet = flops.data_sheet_peak(jax.devices()[0])
        self._peaks = {
            "data_sheet": sheet and sheet * devices,
            "measured": flops.measured_peak(run.model.dtype) * devices,
        }
        if jax.default_backend() == "cpu":  # simulated devices share the cores that one product already uses
            self._peaks["measured"] /= devices
        self.profile = Profile(run.workdir / "profile", config.log.profile_steps)

    def _busy(self) -> float:
        return self._clock.seconds.get("step", 0.0) + self._clock.seconds.get("data", 0.0)

    def took(self, step: int, fed: Fed, metrics: Any, bar: Progress) -> None:
        before, self._pending = self._pending, (step, fed, metrics)
        if before:
            self._read(*before, bar)

    def flush(self, bar: Progress) -> None:
        if self._pending:
            self._read(*self._pending, bar)
            self._pending = None

    def _read(self, step: int, fed: Fed, metrics: Any, bar: Progress) -> None:
        with self._clock.measure("step"):
            values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        if not all(math.isfinite(values[name]) for name in ("loss", "grad_norm")):
            raise NonFiniteLoss(
                f"update {step}: loss {values['loss']}, gradient norm {values['grad_norm']}. The run stopped; this state "
                "was not saved. Lower the learning rate or set config.optimizer.clip_norm, and give the same command "
                "again: it continues from the checkpoint before."
            )
        model, vocab = self._run.config.model, self._run.model.target_vocab
        self._tokens += fed.real.target
        self._slots += fed.padded.target
        self._useful += 3 * flops.forward_flops(model, vocab, fed.real)
        self._hardware += 3 * flops.forward_flops(model, vocab, fed.padded)
        seconds = max(self._busy() - self._since, 1e-9)
        text = (
            f"loss {values['loss']:.3f}  lr {values['learning_rate']:.2e}  {self._tokens / seconds:,.0f} tok/s  "
            f"fill {self._tokens / self._slots:.0%}"
        )
        bar.update(step, text)
        if step % self._run.config.log.every_steps == 0:
            values |= {
                "ppl": math.exp(min(values["nll"], 700.0)),
                "epoch": fed.batch.epoch,
                "source_tokens": fed.batch.source_tokens,
                "target_tokens": fed.batch.target_tokens,
                "target_tokens_per_second": self._tokens / seconds,
                "fill": self._tokens / self._slots,
            }
            values |= flops.mfu(self._hardware, self._useful, seconds, self._peaks)
            values["seconds"] = self._clock.rounded()
            self.write(step, values)
            self._since = self._busy()
            self._tokens = self._hardware = self._useful = self._slots = 0.0

    def write(self, step: int, values: dict[str, float]) -> None:
        if self._writer:
            self._writer.write(step, values)

    def send(self) -> None:
        """Brings what is only on this machine to where the next checkpoint goes."""
        if self._writer:
            self._writer.send()

    def close(self) -> None:
        self.profile.close()
        if self._writer:
            self._writer.close()
