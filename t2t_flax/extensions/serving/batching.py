"""Dynamic batching: one thread computes waiting jobs together."""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

BATCH_WAIT = 0.005
"""Seconds that a job waits for others to share its batch."""
Process = Callable[[Hashable, list[Any]], Sequence[Any]]
"""Maps (key, items) to a result for each item, in order."""


class QueueFull(Exception):
    """Error for a queue with its maximum number of waiting jobs."""


class Closed(Exception):
    """Error for a queue that takes no more jobs."""


@dataclasses.dataclass(eq=False)
class Job:
    """Items of one request.

    Args:
        key: equal for all jobs in a batch.
        future: gets the list of results; cancelling it takes the job out of the queue.
        taken: number of items that are in a batch already.
    """

    key: Hashable
    items: Sequence[Any]
    arrived: float = dataclasses.field(default_factory=time.monotonic)
    future: "Future[list[Any]]" = dataclasses.field(default_factory=Future)
    taken: int = 0
    results: dict[int, Any] = dataclasses.field(default_factory=dict)

    def finish(self, index: int, result: Any) -> None:
        """Store an item's result; the last one resolves the future."""
        self.results[index] = result
        if len(self.results) == len(self.items):
            self._resolve(self.future.set_result, [self.results[i] for i in range(len(self.items))])

    def fail(self, error: BaseException) -> None:
        """Resolve the future with an error."""
        self._resolve(self.future.set_exception, error)

    def _resolve(self, resolve: Callable[[Any], None], value: Any) -> None:
        try:
            resolve(value)
        except InvalidStateError:  # cancelled, or failed in an earlier batch
            pass


Part = tuple[Job, int]
"""A job and the index of one of its items."""


class Batcher:
    """Queue of jobs.

    `take` returns batches of at most `max_batch` items with the same key. Jobs are served in order
    of arrival, one item of each in turn. The rest of a large job goes to the end of the queue.
    """

    def __init__(self, max_batch: int, max_queue: int, wait: float = BATCH_WAIT):
        self._max_batch = max_batch
        self._max_queue = max_queue
        self._wait = wait
        self._jobs: list[Job] = []
        self._changed = threading.Condition()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Number of jobs with items that are in no batch yet."""
        with self._changed:
            self._drop_finished()
            return len(self._jobs)

    def submit(self, key: Hashable, items: Sequence[Any]) -> Job:
        """Queue a job. Raises QueueFull or Closed."""
        job = Job(key, items)
        if not items:
            job.future.set_result([])
            return job
        with self._changed:
            self._drop_finished()
            if self._closed:
                raise Closed
            if len(self._jobs) >= self._max_queue:
                raise QueueFull
            self._jobs.append(job)
            self._changed.notify()
        return job

    def close(self) -> None:
        """Cancel the jobs in the queue and take no more; `take` returns None."""
        with self._changed:
            self._closed = True
            for job in self._jobs:
                job.future.cancel()
            self._changed.notify_all()

    def take(self, timeout: float) -> list[Part] | None:
        """Return the next batch; None once closed.

        It is [] if none came within `timeout` seconds.
        """
        until = time.monotonic() + timeout
        with self._changed:
            while not self._closed:
                self._drop_finished()
                now = time.monotonic()
                if self._jobs:
                    first = self._jobs[0]
                    count = sum(
                        len(job.items) - job.taken for job in self._jobs if job.key == first.key
                    )
                    remaining = first.arrived + self._wait - now
                    if count >= self._max_batch or remaining <= 0:
                        return self._next_batch(first.key)
                elif (remaining := until - now) <= 0:
                    return []
                self._changed.wait(remaining)
            return None

    def _next_batch(self, key: Hashable) -> list[Part]:
        parts: list[Part] = []
        turns = collections.deque(job for job in self._jobs if job.key == key)
        while turns and len(parts) < self._max_batch:
            job = turns.popleft()
            parts.append((job, job.taken))
            job.taken += 1
            if job.taken < len(job.items):
                turns.append(job)
        served = {job for job, _ in parts}
        unfinished = [job for job in dict(parts) if job.taken < len(job.items)]
        self._jobs = [job for job in self._jobs if job not in served] + unfinished
        return parts

    def _drop_finished(self) -> None:
        self._jobs = [job for job in self._jobs if not job.future.done()]


def compute(parts: Sequence[Part], process: Process) -> BaseException | None:
    """Compute a batch and hand out its results.

    After an error each of its jobs is computed alone, so that only the one that caused it fails.

    Returns:
        The error of a job, if there was one.
    """
    parts = [(job, index) for job, index in parts if not job.future.done()]
    jobs = list(dict.fromkeys(job for job, _ in parts))
    if not jobs:
        return None
    try:
        results = process(jobs[0].key, [job.items[index] for job, index in parts])
    except Exception as error:
        if len(jobs) == 1:
            jobs[0].fail(error)
            return error
        errors = [compute([part for part in parts if part[0] is job], process) for job in jobs]
        return next(filter(None, errors), None)
    except BaseException:  # the thread ends
        for job in jobs:
            job.future.cancel()
        raise
    for (job, index), result in zip(parts, results, strict=True):
        job.finish(index, result)
    return None
