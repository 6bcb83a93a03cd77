"""A lane of a model: a queue and the thread that computes its batches, of which it keeps telling whether they succeed."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from t2t_flax.errors import first_line
from t2t_flax.extensions.serving import compiling
from t2t_flax.extensions.serving.batching import Batcher, Process, answer

log = logging.getLogger("t2t_flax")
_PROBES = 3
"""Lines of its own that an idle lane translates within its limit."""
_NICE = 5
"""By how much a lane that gives way has less of a processor than the others where all want it."""


class Lane:
    """Computes the batches of a `Batcher` in a thread that `run` is called in.

    limit: seconds without a good result after which the lane counts as ill. To have one, it computes `probe()` when the last
    is a third of that old: idle or not, its state is known. gives_way: to lanes whose requests are short. fault: "" or what is
    wrong.
    """

    def __init__(self, name: str, batcher: Batcher[Any], limit: float, gives_way: bool = False):
        self.name, self.batcher, self._limit, self._gives_way = name, batcher, limit, gives_way
        self._thread: threading.Thread | None = None
        self._good = self._tried = time.monotonic()
        self._failed = ""

    def good(self) -> None:
        """Notes that a result came from the device and was right, or that one waits for a program that is compiled."""
        self._good, self._failed = time.monotonic(), ""

    def fault(self) -> str:
        """Why the lane does not work; "" if it does."""
        if self._failed:
            return self._failed
        if self._thread and not self._thread.is_alive():
            return "its thread has ended"
        quiet = time.monotonic() - self._good
        return f"no result for {quiet:.0f} s" if quiet > self._limit else ""

    def run(self, process: Process[Any], probe: Callable[[], object]) -> None:
        """Computes batches until the batcher is closed."""
        every, compiling.waiting.note = self._limit / _PROBES, self.good
        self._thread = threading.current_thread()

        def noted(key: Hashable, items: list[Any]) -> Sequence[Any]:
            results = process(key, items)
            self.good()
            return results

        if self._gives_way and sys.platform == "linux":  # elsewhere priorities are of whole processes
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
        self.good()
        while (batch := self.batcher.take(max(self._good, self._tried) + every)) is not None:
            answer(batch, noted)
            if time.monotonic() >= max(self._good, self._tried) + every:
                self._probe(probe)

    def _probe(self, probe: Callable[[], object]) -> None:
        try:
            probe()
            self.good()
        except Exception as error:
            self._failed = f"it fails: {first_line(error)}"
            log.exception("%s: a line of the server's own cannot be translated", self.name)
        self._tried = time.monotonic()
