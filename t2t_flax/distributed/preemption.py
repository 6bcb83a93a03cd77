"""Agreement of all processes on where to stop after a signal to one of them.

All processes call `should_stop` in the same order: after each update and after each batch of an evaluation. After a signal
each proposes the first call that it has not passed yet, and all stop at the latest proposal.

(`multihost_utils.reached_preemption_sync_point` of JAX does this for SIGTERM alone. It does not say which signal came, nor
that one came at all while a program is being compiled.)
"""

import threading
import time

from t2t_flax.distributed.coordination import ProcessGroup


class StopRequested(Exception):
    """All processes have agreed to stop here."""


class Preemption:
    """`timeout`: seconds to wait for the proposals of the other processes."""

    def __init__(self, group: ProcessGroup, timeout: float):
        self._group, self._timeout = group, timeout
        self._lock = threading.Lock()
        self._proposal: int | None = None
        self._published = False
        self._agreed: int | None = None
        self._requested_at = 0.0
        self.signal = ""
        """Name of the signal that requested the stop, on whichever process."""
        self.requested = threading.Event()
        self.calls = 0
        """Of `should_stop` so far."""

    def request(self, signal: str) -> None:
        """Proposes to stop at the next call. Returns at once; may be called again, and from any thread."""
        with self._lock:
            if self.signal:
                return
            self._requested_at, self._proposal = time.monotonic(), self.calls + 1
            self.signal = signal  # late, for others read it without the lock
            self.requested.set()

    def publish(self) -> None:
        """Sends this process's proposal to the others, once. Blocks as long as the coordinator does not answer."""
        if self.signal and not self._published:
            self._group.put("news/stop", self.signal)
            self._group.put(f"stop/at/{self._group.index}", str(self._proposal))
            self._published = True

    def should_stop(self) -> bool:
        """True from the same call on in all processes. Raises ProcessGroupError where another one makes no proposal."""
        with self._lock:
            self.calls += 1
            calls, proposal = self.calls, self._proposal
        if proposal is None or calls < proposal:
            return False
        if self._group.count == 1:
            return True
        if self._agreed is None:
            proposals = [self._group.get(f"stop/at/{i}", self._timeout) for i in range(self._group.count)]
            self._agreed = max(map(int, proposals))
        return calls >= self._agreed

    def seconds_since_request(self) -> float:
        """0 where no stop is requested."""
        return time.monotonic() - self._requested_at if self.signal else 0.0
