"""Signals that ask a command to stop, and its report to the launcher."""

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PROGRESS = "T2T_PROGRESS"
"""Environment variable with a file of the launcher; see `report_progress`."""


@contextlib.contextmanager
def on_stop_signals(handle: Callable[[int], None]) -> Iterator[None]:
    """Call `handle(number)` at SIGTERM, SIGINT and SIGHUP within the block.

    The old handlers are restored afterwards. A SIGHUP that is ignored, as by nohup, stays ignored.
    Raises ValueError outside of the main thread.
    """

    def on_signal(number: int, frame: object) -> None:
        leave_closed_outputs()
        handle(number)

    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    numbers = [number for number in STOP_SIGNALS if number != signal.SIGHUP or not ignored]
    handlers = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def leave_closed_outputs() -> None:
    """Send output that nobody reads to /dev/null.

    A failing write would end the command unsaved. A closed terminal sends SIGHUP. Ctrl-C also ends
    the reader of a pipe, such as `tee`, and may do so a moment later.
    """
    outputs = select.poll()
    for descriptor in (1, 2):
        outputs.register(descriptor, 0)  # 0: errors only
    for descriptor, events in outputs.poll(100):  # milliseconds
        if events & (select.POLLERR | select.POLLHUP):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, descriptor)
            os.close(null)


def report_progress() -> None:
    """Tell the launcher, if any, that a restart would continue from something new."""
    if path := os.environ.get(PROGRESS):
        with contextlib.suppress(OSError):  # only the number of restarts depends on it
            Path(path).touch()
