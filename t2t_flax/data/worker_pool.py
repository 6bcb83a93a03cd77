"""Processes that work for this one, do not outlive it, and leave signals to it."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from t2t_flax.errors import UserError

_GRACE = 60.0  # seconds that the parent has to end a worker after a SIGTERM to all processes of a host


def pool(processes: int, start: Callable[..., None], *arguments: Any) -> ProcessPoolExecutor:
    """An executor whose workers call `start(*arguments)` first. "spawn", because a fork of a process in which JAX runs
    threads can hang.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, context, initializer=_start, initargs=(start, arguments))


@contextlib.contextmanager
def lost(doing: str, instead: str) -> Iterator[None]:
    """Raises UserError where a worker is gone: what it was `doing`, and how to do without it."""
    try:
        yield
    except BrokenProcessPool:
        raise UserError(
            f"a process that {doing} was killed or could not start (out of memory, or a script without "
            f"`if __name__ == '__main__':`); {instead}"
        ) from None


def _start(start: Callable[..., None], arguments: tuple) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends the workers
    signal.signal(signal.SIGTERM, lambda *_: threading.Timer(_GRACE, os._exit, [1]).start())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    start(*arguments)


def _end_with_parent() -> None:
    # A worker holds both ends of its queue, so it would wait forever for a parent that was killed.
    multiprocessing.parent_process().join()
    os._exit(1)
