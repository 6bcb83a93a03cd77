"""Notices that a run makes no progress, and shows where it is stuck."""

import contextlib
import faulthandler
import tempfile
import time
from collections.abc import Iterator


class HangWatchdog:
    """`timeout`: seconds without a sign of progress after which a run hangs; 0: never."""

    def __init__(self, timeout: float):
        self._timeout = timeout
        self._watching = False
        self._alive_at = time.monotonic()

    def alive(self) -> None:
        """A sign of progress."""
        self._alive_at = time.monotonic()

    def quiet_seconds(self) -> float:
        """Seconds since the last sign of progress; 0 where none is expected."""
        return time.monotonic() - self._alive_at if self._watching and self._timeout else 0.0

    def is_hanging(self) -> bool:
        return self.quiet_seconds() > self._timeout

    @contextlib.contextmanager
    def watch(self, watching: bool) -> Iterator[None]:
        """Whether signs of progress are expected within the block."""
        before, self._watching = self._watching, watching
        self.alive()
        try:
            yield
        finally:
            self.alive()
            self._watching = before


def stacks_of_all_threads() -> str:
    with tempfile.TemporaryFile("w+") as file:  # faulthandler writes to real files alone
        faulthandler.dump_traceback(file=file, all_threads=True)
        file.seek(0)
        return file.read()
