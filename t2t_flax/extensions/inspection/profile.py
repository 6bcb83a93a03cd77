"""Profiler traces of some updates, for TensorBoard's profile tab or Perfetto."""

import tempfile
from pathlib import Path

import jax
from etils import epath

from t2t_flax.extensions.inspection import Inspection
from t2t_flax.files import copy_file, is_remote
from t2t_flax.training.hooks import Hook
from t2t_flax.training.parts import TrainingSetup, TrainProgress


class Profile:
    """Tracer of updates `steps` = (first, last) into `folder`.

    Each process writes its own files. An update is reported while the next one runs, so the trace
    also has parts of the updates before and after. The profiler writes to local disk only; for a
    folder in an object store the trace is copied there when it ends.
    """

    def __init__(self, folder: epath.PathLike, steps: tuple[int, int]):
        self._folder, (self._first, self._last) = epath.Path(folder), steps
        self._tracing = False
        self._local: tempfile.TemporaryDirectory | None = None

    def start_before(self, step: int) -> None:
        """Start the trace if the first update comes within two after `step`."""
        if not self._tracing and step < self._first <= step + 2:
            self._local = (
                tempfile.TemporaryDirectory(prefix="t2t-flax-") if is_remote(self._folder) else None
            )
            jax.profiler.start_trace(self._local.name if self._local else str(self._folder))
            self._tracing = True

    def after(self, step: int) -> None:
        """Start or end the trace once update `step` is reported."""
        self.start_before(step)
        if step >= self._last:
            self.close()

    def close(self) -> None:
        """End the trace, if one is running."""
        if not self._tracing:
            return
        self._tracing = False
        jax.profiler.stop_trace()
        if self._local:
            local = Path(self._local.name)
            for path in sorted(p for p in local.rglob("*") if p.is_file()):
                copy_file(path, self._folder / path.relative_to(local).as_posix())
            self._local.cleanup()


def hooks(setup: TrainingSetup, progress: TrainProgress) -> list[Hook]:
    """Return the hooks of a run whose inspection.profile_steps are set."""
    profile = Profile(setup.workdir / "profile", Inspection.of(setup.config).profile_steps)
    profile.start_before(progress.step)
    return [
        Hook("update", lambda step, batch, values: profile.after(step)),
        Hook("end", lambda step, scores: profile.close()),
    ]
