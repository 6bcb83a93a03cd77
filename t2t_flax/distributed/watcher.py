"""Watcher that ends a process that hangs.

It also ends all processes of a run if one is dead or has failed.
"""

import contextlib
import faulthandler
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from t2t_flax.config import Distributed
from t2t_flax.distributed.coordination import ProcessGroup, ProcessGroupError, end
from t2t_flax.errors import FAILURE

INTERVAL = 1.0
"""Seconds between two messages to the other processes."""
LAST_WORDS = 30.0
"""Seconds in which a process that hangs may write its stack traces.

It may be the output that hangs.
"""
_STANDARD_ERROR = 2


class Watched(Protocol):
    """State of a process that a `Watcher` reads, and its output; see `RunSupervisor`."""

    group: ProcessGroup
    stop_checks: int
    signs_of_progress: int
    progress_expected: bool

    def say(self, text: str) -> None: ...


class AwakeClock:
    """Clock that stands still while this process is suspended.

    A pause therefore does not look like a hang. Each reading counts at most INTERVAL since the one
    before. The supervisor reads the clock four times a second.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._awake, self._read_at = 0.0, time.monotonic()

    def __call__(self) -> float:
        """Return the seconds that this process was awake."""
        with self._lock:
            now = time.monotonic()
            self._awake += min(now - self._read_at, INTERVAL)
            self._read_at = now
            return self._awake


class Heartbeats:
    """Signs of life of the processes of a run.

    `send` and `receive` call the coordinator, and block as long as it does not answer.
    """

    def __init__(self, group: ProcessGroup, clock: Callable[[], float]):
        self._group, self._clock = group, clock
        self.coordinator = group.name_of(0)  # read now: it may not answer later
        self._sent = 0
        self._peers: dict[int, tuple[str, float]] = {}  # the last beat, and when it arrived
        self._answered_at = clock()

    def send(self, calls: int) -> None:
        """Send a beat with the number of calls of `should_stop`."""
        self._sent += 1
        self._group.put(f"beat/{self._group.index}", f"{calls} {self._sent}")
        self._answered_at = self._clock()

    def receive(self) -> None:
        """Read the last beats of all processes."""
        now = self._clock()
        for index, beat in self._group.entries("beat").items():
            last = self._peers.get(int(index))
            if last is None or last[0] != beat:
                self._peers[int(index)] = (beat, now)

    def silent_processes(self, seconds: float) -> list[int]:
        """Return the other processes without a new beat for `seconds`."""
        now = self._clock()
        return [
            i
            for i, (_, at) in sorted(self._peers.items())
            if now - at >= seconds and i != self._group.index
        ]

    def coordinator_silence(self) -> float:
        """Return the seconds since process 0 last answered; 0 on process 0 itself."""
        return 0.0 if self._group.is_lead else self._clock() - self._answered_at

    def late_processes(self, calls: int) -> str:
        """Name the processes that keep the others waiting, as far as the beats show.

        Args:
            calls: number of calls of `should_stop` in this process.
        """
        if self._group.count == 1:
            return ""
        if self.coordinator_silence() > 4 * INTERVAL:
            return f"late: {self.coordinator}, the coordinator"
        if silent := self.silent_processes(2.5 * INTERVAL):
            return f"late: {', '.join(map(self._group.name_of, silent))}, silent"
        all_calls = {i: int(beat.split()[0]) for i, (beat, _) in self._peers.items()} | {
            self._group.index: calls
        }
        behind = [i for i, n in sorted(all_calls.items()) if n == min(all_calls.values())]
        if len(behind) == len(all_calls):
            return "all processes wait in the same place"
        return f"late: {', '.join(map(self._group.name_of, behind))}"


class Watcher:
    """Watch over one process of a run. The supervisor's threads call it."""

    def __init__(self, process: Watched, config: Distributed):
        self._process, self._group = process, process.group
        self._hang_timeout, self._silence = config.hang_timeout, config.heartbeat_timeout
        self._clock = AwakeClock()
        self.heartbeats = Heartbeats(process.group, self._clock)
        self._suspicious = False
        self._seen, self._seen_at = 0, self._clock()
        if self._group.count > 1:
            with contextlib.suppress(ProcessGroupError):
                self.heartbeats.send(0)  # process 0 misses only a process that it has heard

    def quiet_seconds(self) -> float:
        """Return the seconds since the last sign of progress; 0 if none is expected."""
        return self._clock() - self._seen_at if self._process.progress_expected else 0.0

    def check(self) -> None:
        """End the process if it hangs or has lost process 0.

        Called four times a second; does not block.
        """
        signs = self._process.signs_of_progress
        if signs != self._seen or not self._process.progress_expected:
            self._seen, self._seen_at = signs, self._clock()
        quiet = self.quiet_seconds()
        if self._hang_timeout and quiet > self._hang_timeout:
            late = self.heartbeats.late_processes(self._process.stop_checks)
            key = f"config.distributed.hang_timeout = {self._hang_timeout}"
            self._end(f"no update for {quiet:.0f} s ({key})" + (f"; {late}" if late else ""))
        # Process 0 looks for dead processes in `communicate`. The others look for a dead process 0,
        # because JAX would only abort them.
        quiet = self.heartbeats.coordinator_silence()
        if self._group.count > 1 and quiet > self._silence:
            self._end(f"{self.heartbeats.coordinator}, the coordinator, {self._silent(quiet)}")

    def communicate(self, news: Mapping[str, str]) -> None:
        """Exchange heartbeats, and end with a process that has failed. Called each second.

        Args:
            news: published texts by name; `failed/INDEX` is an exit code and a reason.
        """
        for name, text in news.items():
            kind, _, index = name.partition("/")
            if kind == "failed" and int(index) != self._group.index:
                code, _, reason = text.partition(" ")
                self._process.say(
                    f"exiting because {self._group.name_of(int(index))} failed: {reason}"
                )
                if self._group.is_lead:
                    time.sleep(2 * INTERVAL)  # without the coordinator the others hear nothing
                end(int(code))
        self.heartbeats.send(self._process.stop_checks)
        late = self.quiet_seconds() > min(self._hang_timeout / 2 or 30.0, 30.0)
        # Not always on the other processes: there may be many hosts.
        if self._group.is_lead or self._suspicious or late:
            self.heartbeats.receive()
        silent = self.heartbeats.silent_processes(self._silence) if self._group.is_lead else []
        if silent:
            reason = f"{', '.join(map(self._group.name_of, silent))} {self._silent(self._silence)}"
            self._tell(FAILURE, reason)
            self._end(reason)

    def failed(self, code: int, reason: str, *, disconnected: bool) -> list[str]:
        """Tell the other processes why this one is about to end with `code`.

        Args:
            disconnected: True if this process ends because another one is gone. Nobody is told
                then.

        Returns:
            Names of the processes that are known to be gone.
        """
        if not disconnected:
            self._tell(code, reason)
            return []
        self._suspicious = True
        time.sleep(4 * INTERVAL)  # wait for the message of a process that failed
        silent = self.heartbeats.silent_processes(2.5 * INTERVAL)
        return [self._group.name_of(i) for i in silent]

    @staticmethod
    def _silent(seconds: float) -> str:
        return f"silent for {seconds:.0f} s (config.distributed.heartbeat_timeout)"

    def _tell(self, code: int, reason: str) -> None:
        if self._group.count > 1:
            with contextlib.suppress(ProcessGroupError):
                self._group.put(f"news/failed/{self._group.index}", f"{code} {reason}")
                time.sleep(2 * INTERVAL)

    def _end(self, reason: str) -> None:
        """End this process, with the stack traces of its threads on standard error."""
        faulthandler.dump_traceback_later(LAST_WORDS, exit=True, file=_STANDARD_ERROR)
        self._process.say(f"{reason}. Stack traces follow; the last checkpoint stays")
        faulthandler.dump_traceback(_STANDARD_ERROR)
        if self._group.count > 1 and self._group.is_lead:
            # JAX ends the others once the coordinator is gone: let them write stack traces first.
            time.sleep(3 * INTERVAL)
        faulthandler.cancel_dump_traceback_later()
        end(FAILURE)
