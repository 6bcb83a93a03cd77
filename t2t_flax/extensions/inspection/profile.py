"""Profiler traces of some updates, for TensorBoard's profile tab or Perfetto."""

import tempfile
from pathlib import Path
from typing import Any

import jax
from etils import epath

from t2t_flax.config import Config
from t2t_flax.extensions.inspection import Inspection
from t2t_flax.filesystem import copy_file, is_remote
from t2t_flax.training.hooks import Hook


class Profile(Hook):
    """Traces updates `steps` = (first, last) into `folder`. Each process writes its own files.

    An update is reported while the next one runs, so the trace also has parts of the updates before and after. The profiler
    writes to local disk only; for a folder in an object store the trace is copied there when it ends.
    """

    def __init__(self, folder: epath.PathLike, steps: tuple[int, int]):
        self._folder, (self._first, self._last) = epath.Path(folder), steps
        self._tracing = False
        self._local: tempfile.TemporaryDirectory | None = None

    def on_start(self, run: Any, progress: Any) -> None:
        if progress.step < self._first <= progress.step + 2:
            self._start()

    def on_update(self, step: int, batch: Any, values: dict[str, float]) -> None:
        if step == self._first - 2:
            self._start()
        elif step >= self._last:
            self.close()

    def on_end(self, step: int, scores: dict[str, float]) -> None:
        self.close()

    def _start(self) -> None:
        self._local = tempfile.TemporaryDirectory(prefix="t2t-flax-") if is_remote(self._folder) else None
        jax.profiler.start_trace(self._local.name if self._local else str(self._folder))
        self._tracing = True

    def close(self) -> None:
        """Ends the trace, if one is running."""
        if not self._tracing:
            return
        self._tracing = False
        jax.profiler.stop_trace()
        if self._local:
            local = Path(self._local.name)
            for path in sorted(p for p in local.rglob("*") if p.is_file()):
                copy_file(path, self._folder / path.relative_to(local).as_posix())
            self._local.cleanup()


def hook(config: Config, workdir: epath.Path, group: Any) -> Profile:
    """Of a run whose inspection.profile_steps are set."""
    return Profile(workdir / "profile", Inspection.of(config).profile_steps)
