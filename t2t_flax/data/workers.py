"""Worker processes that compute ahead of the process that uses their results."""

import collections
import ctypes
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Generic, TypeVar

from t2t_flax.errors import UserError

_GRACE = 60.0
"""Seconds for the parent to end its workers after a signal to a whole host.

The signal is SIGTERM or SIGHUP.
"""

_AFTER_CLOSING = 5.0
"""Seconds to send a result. Half a result would keep the parent waiting."""

Result = TypeVar("Result")


class Workers(Generic[Result]):
    """Context of up to `count` processes that call `function`.

    They start when they are needed, leave Ctrl-C to this process, and end with it, however it ends.

    Args:
        function: picklable object; each process has a copy.
        does: verb for messages: "tokenizes".
    """

    def __init__(self, function: Callable[..., Result], count: int, *, does: str):
        self.count, self._does = count, does
        # Spawned, because a fork of a process in which JAX runs threads can hang.
        context = multiprocessing.get_context("spawn")
        # Not an Event: setting one waits for its waiters, and forever for a waiter that was killed.
        self._closed = context.RawValue(ctypes.c_bool, False)
        self._pool = ProcessPoolExecutor(
            count, context, initializer=_start, initargs=(function, self._closed)
        )

    def __enter__(self) -> "Workers[Result]":
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def close(self) -> None:
        """Wait for calls in progress and cancel the queued ones."""
        self._closed.value = True
        self._pool.shutdown(cancel_futures=True)

    def submit(self, *arguments: Any) -> Future[Result]:
        """Let a process call `function(*arguments)`. Raises UserError as `result` does."""
        try:
            return self._pool.submit(_call, *arguments)
        except BrokenProcessPool:
            raise self._broken() from None

    def result(self, call: Future[Result]) -> Result:
        """Wait for a call and return its result.

        Raises the errors of `function`, UserError if a process was killed or does not start, and
        CancelledError if the context has ended.
        """
        try:
            return call.result()
        except BrokenProcessPool:
            raise self._broken() from None

    def map(self, calls: Iterable[tuple], in_flight: int) -> Generator[Result, None, None]:
        """Yield the results of `function(*call)`, in order.

        At most `in_flight` calls are queued, in progress, or waiting to be taken. Raises as
        `result` does.
        """
        pending: collections.deque[Future[Result]] = collections.deque()
        for call in calls:
            pending.append(self.submit(*call))
            if len(pending) >= in_flight:
                yield self.result(pending.popleft())
        while pending:
            yield self.result(pending.popleft())

    def _broken(self) -> UserError:
        return UserError(
            f"a process that {self._does} was killed or could not start (out of memory, or a script"
            " without `if __name__ == '__main__':`); set config.data.num_workers = 1 to do it in"
            " this process"
        )


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_function: Callable[..., Any]
_closed: ctypes.c_bool


def _start(function: Callable[..., Any], closed: ctypes.c_bool) -> None:
    global _function, _closed
    _function, _closed = function, closed
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group; the parent ends the workers
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(
                number, lambda *_: threading.Thread(target=_exit_after_parent, daemon=True).start()
            )
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    # A worker holds both ends of its queue, so it would wait forever for a parent that was killed.
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)


def _exit_after_parent() -> None:
    # After a signal to all processes of a host, the parent has time to end its workers. A signal
    # also reaches the rest of a pool when one of its workers was killed.
    end = time.monotonic() + _GRACE
    while not _closed.value and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(_AFTER_CLOSING)
    os._exit(1)


def _call(*arguments: Any) -> Any:
    return None if _closed.value else _function(*arguments)
