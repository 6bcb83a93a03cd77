"""SIGINT and SIGTERM in a command that answers lines."""

import signal
from collections.abc import Iterator

from t2t_flax.cli.line_windows import Line


class Signalled(BaseException):
    """SIGINT or SIGTERM. Not an Exception, so that nothing between handles it."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


class StopSignals:
    """Raises `Signalled` for SIGINT and SIGTERM: at once while waiting for input and at a second signal, else at the next
    `check`, because JAX loses an exception that is raised in its callbacks.
    """

    def __init__(self):
        self._number, self._waiting = 0, False

    def __enter__(self) -> "StopSignals":
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._handlers = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        first, self._number = not self._number, number
        if self._waiting or not first:
            raise Signalled(number)

    def check(self) -> None:
        """Raises `Signalled` if a signal has come."""
        if self._number:
            raise Signalled(self._number)

    def waiting(self, windows: Iterator[list[Line]]) -> Iterator[list[Line]]:
        """The windows; a signal that comes while one is awaited is raised at once."""
        while True:
            self._waiting = True
            try:
                self.check()
                window = next(windows, None)
            finally:
                self._waiting = False
            if window is None:
                return
            yield window
