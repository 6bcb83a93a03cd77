"""Worker processes that end with their parent and leave signals to it."""

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

_GRACE = 60.0
"""Seconds that the parent has to end its workers after a SIGTERM to all processes of a host."""


def start(num_workers: int, initialize: Callable[..., None], *arguments: Any) -> ProcessPoolExecutor:
    """An executor whose workers first call `initialize(*arguments)`. They are spawned, because a fork of a process in
    which JAX runs threads can hang.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(num_workers, context, initializer=_start, initargs=(initialize, arguments))


@contextlib.contextmanager
def report_lost(task: str, remedy: str) -> Iterator[None]:
    """Raises UserError if a worker died, naming its task ("tokenizes") and how to run without workers."""
    try:
        yield
    except BrokenProcessPool:
        raise UserError(
            f"a process that {task} was killed or could not start (out of memory, or a script without "
            f"`if __name__ == '__main__':`); {remedy}"
        ) from None


def _start(initialize: Callable[..., None], arguments: tuple) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends the workers
    signal.signal(signal.SIGTERM, lambda *_: threading.Timer(_GRACE, os._exit, [1]).start())
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    initialize(*arguments)


def _exit_with_parent() -> None:
    # A worker holds both ends of its queue, so it would wait forever for a parent that was killed.
    multiprocessing.parent_process().join()
    os._exit(1)
