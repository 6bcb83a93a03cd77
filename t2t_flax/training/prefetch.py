"""Batches made ahead of the step that takes them, on a thread of their own."""

import queue
import threading
from typing import NamedTuple

import jax
import numpy as np

from t2t_flax.data.batching.batches import Batch, Batches
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.monitoring.flops import Tokens

_AHEAD = 2


class DeviceBatch(NamedTuple):
    """A batch on the mesh with what the loop says of it."""

    arrays: dict[str, jax.Array]  # int32 [A, B, L]
    batch: Batch
    real: Tokens
    padded: Tokens

    @property
    def key(self) -> tuple[int, ...]:
        """The shape by which its compiled program is found."""
        return self.arrays["target"].shape


class Prefetcher:
    """Batches `first`, `first + 1`, ... of `batches` as global arrays. A batch depends on its number alone, so what has
    been read ahead is not a state that a checkpoint would need.
    """

    def __init__(
        self, batches: Batches, mesh: jax.sharding.Mesh, lengths: tuple[np.ndarray, np.ndarray], first: int, last: int
    ):
        self._batches, self._mesh, self._lengths = batches, mesh, lengths
        self._queue: queue.Queue = queue.Queue(_AHEAD)
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
        """The next batch; raises here what went wrong in the thread."""
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def _work(self, first: int, last: int) -> None:
        try:
            for k in range(first, last):
                fed = put_batch(self._batches.batch(k), self._mesh, self._lengths)
                if not self._put(fed):
                    return
        except BaseException as error:  # noqa: BLE001 - handed to the loop
            self._put(error)

    def _put(self, item) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                pass
        return False


def put_batch(batch: Batch, mesh: jax.sharding.Mesh, lengths: tuple[np.ndarray, np.ndarray]) -> DeviceBatch:
    """The batch's arrays on the mesh, of which this process makes the rows of its own devices, and its token counts for
    FLOPs.
    """
    size = micro, rows, length = batch.shape.micro, batch.shape.rows, batch.shape.length
    arrays = mesh_lib.to_global(batch.rows, size, mesh_lib.named(mesh, mesh_lib.MICRO_ROWS))
    s, t = (np.asarray(x[batch.pairs], np.float64) for x in lengths)
    real = Tokens(s.sum(), t.sum(), (s * s).sum(), (t * t).sum(), (s * t).sum())
    slots = float(micro * rows * length)
    padded = Tokens(slots, slots, slots * length, slots * length, slots * length)
    return DeviceBatch(arrays, batch, real, padded)
