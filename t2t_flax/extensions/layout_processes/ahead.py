"""Lays out windows ahead of their use, in worker processes."""

import collections
import contextlib
import functools
import threading
from collections.abc import Iterator
from concurrent.futures import Future

from t2t_flax.data.batching.window_layouts import Ahead, Layouter, WindowLayout, timed
from t2t_flax.data.workers import Workers

INLINE_SECONDS = 0.05
"""A window that takes less is laid out when it is needed: a process takes a second to start, and 50 MB."""
_NICENESS = 10
"""Where the devices are the cores of this host, training comes first: a tenth of a core is enough to lay out its windows."""


class AheadInProcesses(Ahead):
    """Windows as they are needed; within `in_processes` those that follow are laid out while one is used."""

    def __init__(self) -> None:
        super().__init__()
        self._most, self._in_flight, self._warm = 0, 2, False
        self._lock = threading.Lock()
        self._workers: Workers[tuple[WindowLayout, float]] | None = None
        self._layouter: Layouter | None = None
        self._pending: collections.deque[tuple[int, Future[tuple[WindowLayout, float]]]] = collections.deque()

    @contextlib.contextmanager
    def in_processes(self, most: int) -> Iterator[None]:
        """Uses up to `most` processes, as many as it takes for a window to be there in time. Ends them."""
        self._most = most
        try:
            yield
        finally:
            with self._lock:
                self._most = 0
                self._stop()

    def window(self, layouter: Layouter, number: int) -> WindowLayout:
        """A window of `layouter`; that after the last one has probably been laid out. Called in one thread at a time. Raises
        CancelledError where `in_processes` has ended meanwhile.
        """
        window, seconds = self._laid_out(layouter, number) or timed(layouter, number)
        self.seconds = seconds / window.updates
        with self._lock:
            if self._most and (self._workers or seconds > INLINE_SECONDS):
                self._lay_out_from(layouter, number + 1)
        return window

    def _laid_out(self, layouter: Layouter, number: int) -> tuple[WindowLayout, float] | None:
        """The window, if it is the next of those laid out; with its seconds."""
        with self._lock:
            if layouter is not self._layouter or not self._workers:
                return None
            if not self._pending or self._pending[0][0] != number:
                self._drop()
                return None
            workers, (_, call) = self._workers, self._pending.popleft()
            if not call.done():
                if not self._warm:  # the processes are starting, which can take longer than a window
                    return None
                self._in_flight = min(self._in_flight + 1, self._most + 1)
            self._warm = True
        return workers.result(call)

    def _lay_out_from(self, layouter: Layouter, number: int) -> None:
        if layouter is not self._layouter or not self._workers:
            self._stop()
            self._warm = False
            self._layouter = layouter
            self._workers = Workers(
                functools.partial(timed, layouter), self._most, does="lays out updates", niceness=_NICENESS
            )
        for after in range(number + len(self._pending), number + self._in_flight):
            self._pending.append((after, self._workers.submit(after)))

    def _drop(self) -> None:
        for _, call in self._pending:
            call.cancel()
        self._pending.clear()

    def _stop(self) -> None:
        self._drop()
        if self._workers:
            self._workers.close()
        self._workers = self._layouter = None
