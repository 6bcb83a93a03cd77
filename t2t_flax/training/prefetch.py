"""Prefetches batches in a thread."""

import queue
import threading
from typing import NamedTuple

import jax

from t2t_flax.data.batching.batches import Batch, Batches
from t2t_flax.distributed import mesh as mesh_lib

_QUEUED = 2


class DeviceBatch(NamedTuple):
    """A batch on the mesh, and where it comes from."""

    arrays: dict[str, jax.Array]  # int32 [A, B, L]
    batch: Batch


class Prefetcher:
    """Batches `first` to `last - 1` as global arrays. A batch is a function of its number, so prefetched batches are no state
    that a checkpoint would need.
    """

    def __init__(self, batches: Batches, mesh: jax.sharding.Mesh, first: int, last: int):
        self._batches, self._mesh = batches, mesh
        self._queue: queue.Queue = queue.Queue(_QUEUED)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(first, last), daemon=True, name="batches")

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        while self._thread.is_alive():
            try:
                self._queue.get_nowait()
            except queue.Empty:
                self._thread.join(0.05)

    def next(self) -> DeviceBatch:
        """The next batch. Raises any error of the thread."""
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def _work(self, first: int, last: int) -> None:
        try:
            for k in range(first, last):
                if not self._put(put_batch(self._batches.batch(k), self._mesh)):
                    return
        except BaseException as error:  # noqa: BLE001 - raised by `next`
            self._put(error)

    def _put(self, item) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                pass
        return False


def put_batch(batch: Batch, mesh: jax.sharding.Mesh) -> DeviceBatch:
    """The batch on the mesh; this process builds only the rows of its own devices."""
    size = micro, rows, length = batch.shape.micro, batch.shape.rows, batch.shape.length
    arrays = mesh_lib.to_global(batch.rows, size, mesh_lib.named(mesh, mesh_lib.MICRO_ROWS))
    return DeviceBatch(arrays, batch)
