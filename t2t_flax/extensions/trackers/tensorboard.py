"""TensorBoard."""

import contextlib
import importlib.abc
import sys
import threading
from collections.abc import Iterator

from t2t_flax.extensions.trackers.tracker import FLUSH_SECONDS, TrackedRun

_QUEUE = 2**15 - 1
"""Values that may wait, of which a line has some 25."""


class TensorBoard:
    """Event files in WORKDIR/tensorboard. Values after the resume step are purged and written again."""

    modules = ("tensorboardX",)
    purges = True

    def __init__(self, run: TrackedRun, id: str):
        # It also takes PyTorch's tensors and writes to object stores, so it imports what is installed for that: seconds.
        # Here it gets floats and a local folder.
        with _import_refused("torch", "boto3", "google.cloud.storage"):
            import tensorboardX

        self.id, self.place = "", ""
        folder, purge = str(run.folder / "tensorboard"), run.resume_step + 1
        # Its thread ends at an error such as a full disk. Neither the next value nor the end of the process may then wait
        # for it, as they do when the queue is full.
        self._writer = tensorboardX.SummaryWriter(
            folder,
            purge_step=purge,
            flush_secs=FLUSH_SECONDS,
            max_queue=_QUEUE,
            filename_suffix=f".{run.resume_step}",  # names have seconds, and a short run closes and opens within one
        )
        self._events = self._writer.file_writer.event_writer
        self._events._event_queue.cancel_join_thread()

    def write(self, step: int, values: dict[str, float]) -> None:
        if not self._events._worker.is_alive():
            raise OSError("its files can no longer be written")
        for name, value in values.items():
            self._writer.add_scalar(name.replace("+", "_"), value, step)  # as it renames them, with a warning for each

    def close(self) -> None:
        self._writer.close()


class _Refusal(importlib.abc.MetaPathFinder):
    """Modules that seem not to be installed, in the thread that asks for it alone: others import them meanwhile. It stays where
    it is put: taking a finder away makes the searches of other threads miss the next one.
    """

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname in getattr(self._of_thread, "names", ()):
            raise ModuleNotFoundError(f"{fullname} is not needed here", name=fullname)

    @contextlib.contextmanager
    def __call__(self, *names: str) -> Iterator[None]:
        """Within the block, this thread cannot import these modules, unless they are imported already."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        self._of_thread.names = names
        try:
            yield
        finally:
            self._of_thread.names = ()


_import_refused = _Refusal()
