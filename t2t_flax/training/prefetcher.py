"""Prefetch the batches of a run onto its devices."""

import concurrent.futures
import contextlib
import queue
import threading

import jax

from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.batching.rows import HostBatch
from t2t_flax.data.workers import num_cores
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.training.parts import DeviceBatch

_LEAST_AHEAD, _MOST_AHEAD, _AHEAD_BYTES = 3, 64, 256 << 20
"""Least and most batches to prefetch, and their bytes.

The least number is prefetched even if it has more bytes.
"""
_BYTES_PER_SLOT = 24
"""Bytes of int32 ids, segments and positions on two sides."""
_FILLING = 8
"""Most threads that fill arrays. NumPy mostly works without the interpreter lock."""


class Prefetcher:
    """Batches `first` to `last - 1`, prefetched as global arrays.

    A batch is a function of its number, so checkpoints do not store prefetched batches. A thread
    lays out windows of updates, or several processes if `num_workers` asks for them. Threads fill
    the arrays.
    """

    def __init__(
        self, batches: Batches, mesh: jax.sharding.Mesh, first: int, last: int, num_workers: int = 0
    ):
        """Start nothing yet: `with` starts the threads and processes.

        Args:
            num_workers: number of processes, see config.data.num_workers; also the least number of
                threads that fill arrays, up to 8.
        """
        self._batches, self._mesh, self._numbers = batches, mesh, iter(range(first, last))
        # CPU devices keep all cores of this host busy, for much longer than a layout takes.
        cores = 1 if mesh.devices.flat[0].platform == "cpu" else num_cores()
        self._processes = num_workers
        self._laying_out = concurrent.futures.ThreadPoolExecutor(1, "layouts")
        self._filling = concurrent.futures.ThreadPoolExecutor(
            min(_FILLING, max(cores, num_workers)), "batches"
        )
        self._prefetched: queue.SimpleQueue[concurrent.futures.Future[DeviceBatch]] = (
            queue.SimpleQueue()
        )
        self._taken: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """True for each batch that `next` took, at the end False.

        A thread starts a new batch for each True: the training thread must not wait for locks.
        """
        self._starting = threading.Thread(
            target=self._start_for_taken, name="batches ahead", daemon=True
        )

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.callback(self._filling.shutdown, cancel_futures=True)
            stack.callback(self._laying_out.shutdown, cancel_futures=True)
            stack.enter_context(self._batches.in_processes(self._processes))
            stack.callback(self._laying_out.shutdown, wait=False, cancel_futures=True)
            largest = (
                max(shape.slots for shape in self._batches.shapes)
                * _BYTES_PER_SLOT
                // jax.process_count()
            )
            count = max(_LEAST_AHEAD, min(_MOST_AHEAD, _AHEAD_BYTES // largest))
            self._first, *_ = [self._start_next() for _ in range(count)]
            self._starting.start()
            stack.callback(self._starting.join)
            stack.callback(self._taken.put, False)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        self._stack.__exit__(*error)

    def wait(self) -> None:
        """Wait until the first batch is laid out.

        Where no plan was stored, all updates before it must be counted first.
        """
        if self._first:
            concurrent.futures.wait([self._first])

    def next(self) -> DeviceBatch:
        """Return the next batch. Raises the errors of the threads that make it."""
        batch = self._prefetched.get().result()
        self._taken.put(True)
        return batch

    def _start_for_taken(self) -> None:
        while self._taken.get():
            self._start_next()

    def _start_next(self) -> concurrent.futures.Future[HostBatch] | None:
        """Start the next batch and return the future of its layout; None after the last."""
        if (k := next(self._numbers, None)) is None:
            return None
        laid_out = self._laying_out.submit(self._batches.batch, k)
        self._prefetched.put(self._filling.submit(self._put, laid_out))
        return laid_out

    def _put(self, laid_out: concurrent.futures.Future[HostBatch]) -> DeviceBatch:
        return put_batch(laid_out.result(), self._mesh)


def put_batch(batch: HostBatch, mesh: jax.sharding.Mesh) -> DeviceBatch:
    """Put a batch on the mesh; each process builds only the rows of its devices."""
    size = micro, rows, length = batch.shape.micro, batch.shape.rows, batch.shape.length
    arrays = mesh_lib.to_global(batch.rows, size, mesh_lib.named(mesh, mesh_lib.MICRO_ROWS))
    return DeviceBatch(arrays, batch)
