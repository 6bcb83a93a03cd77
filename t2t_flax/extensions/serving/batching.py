"""Dynamic batching: what arrives within a few milliseconds is computed together, by one thread per model.

A job is one request for one model: items that each have their own result, and a key of what must agree within a batch.
"""

import collections
import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, Generic, TypeVar

log = logging.getLogger("t2t_flax")

BATCH_WAIT = 0.005
"""Seconds for which a line waits for others to share its batch."""
Item = TypeVar("Item")
Process = Callable[[Hashable, list[Item]], Sequence[Any]]
"""(key, items) -> a result for each item, in order."""


class QueueFull(Exception):
    """As many jobs wait as may."""


class Closed(Exception):
    """No more jobs are taken."""


@dataclasses.dataclass(eq=False)
class Job(Generic[Item]):
    """The items of a request. `future` gets the list of their results; cancelling it takes the job out of the queue.

    arrived: `time.monotonic()`. taken: how many of the items are in a batch already.
    """

    key: Hashable
    items: Sequence[Item]
    arrived: float
    future: "Future[list[Any]]" = dataclasses.field(default_factory=Future)
    taken: int = 0
    results: dict[int, Any] = dataclasses.field(default_factory=dict)

    def finish(self, index: int, result: Any) -> None:
        self.results[index] = result
        if len(self.results) == len(self.items):
            self._resolve(lambda: self.future.set_result([self.results[i] for i in range(len(self.items))]))

    def fail(self, error: BaseException) -> None:
        self._resolve(lambda: self.future.set_exception(error))

    def _resolve(self, resolve: Callable[[], None]) -> None:
        try:
            resolve()
        except InvalidStateError:  # cancelled, or failed in an earlier batch
            pass


@dataclasses.dataclass(frozen=True)
class Batch(Generic[Item]):
    """Parts of jobs with the same key: (job, index of the item)."""

    key: Hashable
    parts: list[tuple[Job[Item], int]]


class Batcher(Generic[Item]):
    """A queue of jobs, from which `take` makes batches of at most `max_batch` items.

    A batch waits until it is full, at most `wait` seconds after the first of its jobs arrived. Jobs are served in order of
    arrival, an item of each in turn, so that a large one holds up no other: what is left of it goes to the end of the queue.
    """

    def __init__(self, max_batch: int, wait: float, max_queue: int):
        self._max_batch, self._wait, self._max_queue = max_batch, wait, max_queue
        self._jobs: collections.deque[Job[Item]] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Jobs of which some items are in no batch yet."""
        with self._changed:
            self._drop_finished()
            return len(self._jobs)

    def submit(self, key: Hashable, items: Sequence[Item]) -> Job[Item]:
        """Queues a job. Raises QueueFull or Closed."""
        job = Job(key, items, time.monotonic())
        with self._changed:
            self._drop_finished()
            if self._closed:
                raise Closed
            if len(self._jobs) >= self._max_queue:
                raise QueueFull
            if items:
                self._jobs.append(job)
                self._changed.notify()
        if not items:
            job.future.set_result([])
        return job

    def close(self) -> None:
        """Cancels the jobs in the queue and takes no more; `take` returns None."""
        with self._changed:
            self._closed = True
            for job in self._jobs:
                job.future.cancel()
            self._jobs.clear()
            self._changed.notify_all()

    def take(self, until: float = math.inf) -> Batch[Item] | None:
        """The next batch; one without parts if there is none until that `time.monotonic()`. None once closed."""
        with self._changed:
            while True:
                self._drop_finished()
                if self._closed:
                    return None
                if not self._jobs:
                    if (idle := until - time.monotonic()) <= 0:
                        return Batch(None, [])
                    self._changed.wait(None if idle == math.inf else idle)
                    continue
                first = self._jobs[0]
                count = sum(len(job.items) - job.taken for job in self._jobs if job.key == first.key)
                remaining = first.arrived + self._wait - time.monotonic()
                if count >= self._max_batch or remaining <= 0:
                    return self._next_batch(first.key)
                self._changed.wait(remaining)

    def _next_batch(self, key: Hashable) -> Batch[Item]:
        parts: list[tuple[Job[Item], int]] = []
        jobs = collections.deque(job for job in self._jobs if job.key == key)
        while jobs and len(parts) < self._max_batch:
            job = jobs.popleft()
            parts.append((job, job.taken))
            job.taken += 1
            if job.taken < len(job.items):
                jobs.append(job)
        served = dict.fromkeys(job for job, _ in parts)
        self._jobs = collections.deque(job for job in self._jobs if job not in served)
        self._jobs.extend(job for job in served if job.taken < len(job.items))
        return Batch(key, parts)

    def _drop_finished(self) -> None:
        """Drops jobs that were cancelled, or failed in an earlier batch."""
        if any(job.future.done() for job in self._jobs):
            self._jobs = collections.deque(job for job in self._jobs if not job.future.done())


def answer(batch: Batch[Item], process: Process[Item]) -> None:
    """Computes a batch and hands out its results. After an error each of its jobs is computed alone, so that only the one
    that caused it fails.
    """
    parts = [(job, index) for job, index in batch.parts if not job.future.done()]
    jobs = list(dict.fromkeys(job for job, _ in parts))
    if not jobs:
        return
    try:
        results = process(batch.key, [job.items[index] for job, index in parts])
    except Exception as error:
        if len(jobs) == 1:
            jobs[0].fail(error)
            return
        log.warning("a batch of %d requests failed (%s): computing each alone", len(jobs), error)
        for job in jobs:
            answer(Batch(batch.key, [part for part in parts if part[0] is job]), process)
        return
    except BaseException:  # the thread ends
        for job in jobs:
            job.future.cancel()
        raise
    for (job, index), result in zip(parts, results, strict=True):
        job.finish(index, result)
