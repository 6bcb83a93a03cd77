"""Profiler traces of some updates, for TensorBoard's profile tab or Perfetto."""

import tempfile
from pathlib import Path

import jax
from etils import epath

from t2t_flax.filesystem import copy_file, is_remote


class Profile:
    """Traces updates `steps` = (first, last) into `folder`; (0, 0): none. Each process writes its own files.

    The profiler writes to local disk only; for a folder in an object store the trace is copied there when it ends.
    """

    def __init__(self, folder: epath.PathLike, steps: tuple[int, int]):
        self._folder, (self._first, self._last) = epath.Path(folder), steps
        self._tracing = False
        self._local: tempfile.TemporaryDirectory | None = None

    def before_update(self, step: int) -> None:
        """To be called before each update."""
        if step == self._first:
            self._local = tempfile.TemporaryDirectory(prefix="t2t-flax-") if is_remote(self._folder) else None
            jax.profiler.start_trace(self._local.name if self._local else str(self._folder))
            self._tracing = True
        elif step > self._last:
            self.close()

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
