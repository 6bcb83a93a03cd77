"""Prefetches batches in a thread."""

import concurrent.futures
from collections import deque
from typing import NamedTuple

import jax

from t2t_flax.data.batching.batches import Batch, Batches
from t2t_flax.distributed import mesh as mesh_lib

_AHEAD = 3


class DeviceBatch(NamedTuple):
    """A batch on the mesh, and where it comes from."""

    arrays: dict[str, jax.Array]  # int32 [A, B, L]
    batch: Batch


class Prefetcher:
    """Batches `first` to `last - 1` as global arrays. A batch is a function of its number, so prefetched batches are no state
    that a checkpoint would need.
    """

    def __init__(self, batches: Batches, mesh: jax.sharding.Mesh, first: int, last: int):
        self._batches, self._mesh, self._numbers = batches, mesh, iter(range(first, last))
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "batches")
        self._prefetched: deque[concurrent.futures.Future[DeviceBatch]] = deque()

    def __enter__(self):
        for _ in range(_AHEAD):
            self._start_next()
        return self

    def __exit__(self, *error):
        self._thread.shutdown(cancel_futures=True)

    def next(self) -> DeviceBatch:
        """The next batch. Raises any error of the thread."""
        batch = self._prefetched.popleft().result()
        self._start_next()
        return batch

    def _start_next(self) -> None:
        k = next(self._numbers, None)
        if k is not None:
            self._prefetched.append(self._thread.submit(self._make, k))

    def _make(self, k: int) -> DeviceBatch:
        return put_batch(self._batches.batch(k), self._mesh)


def put_batch(batch: Batch, mesh: jax.sharding.Mesh) -> DeviceBatch:
    """The batch on the mesh; this process builds only the rows of its own devices."""
    size = micro, rows, length = batch.shape.micro, batch.shape.rows, batch.shape.length
    arrays = mesh_lib.to_global(batch.rows, size, mesh_lib.named(mesh, mesh_lib.MICRO_ROWS))
    return DeviceBatch(arrays, batch)
