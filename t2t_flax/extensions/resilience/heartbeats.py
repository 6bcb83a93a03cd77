"""Heartbeats, by which the processes of a run notice that one of them is dead, hangs or is behind."""

import time

from t2t_flax.distributed import supervisor
from t2t_flax.distributed.coordination import ProcessGroup


class Heartbeats:
    """`send` and `receive` call the coordinator, and block as long as it does not answer; all else returns at once."""

    def __init__(self, group: ProcessGroup):
        self._group = group
        self._coordinator = group.name_of(0)  # read now, for it may not answer later
        self._sent = 0
        self._peers: dict[int, tuple[str, float]] = {}  # the last beat, and when it arrived
        self._answered_at = time.monotonic()

    def send(self, calls: int) -> None:
        """Sends a beat with the number of calls of `should_stop`."""
        self._sent += 1
        self._group.put(f"beat/{self._group.index}", f"{calls} {self._sent}")
        self._answered_at = time.monotonic()

    def receive(self) -> None:
        """Reads the last beats of all processes."""
        now = time.monotonic()
        for index, beat in self._group.entries("beat").items():
            last = self._peers.get(int(index))
            if last is None or last[0] != beat:
                self._peers[int(index)] = (beat, now)

    def silent_processes(self, seconds: float) -> list[int]:
        """The other processes from which no new beat has come for so long."""
        now = time.monotonic()
        return [i for i, (_, at) in sorted(self._peers.items()) if now - at >= seconds and i != self._group.index]

    def coordinator_silence(self) -> float:
        """Seconds since process 0 last answered; 0 on process 0 itself."""
        return 0.0 if self._group.is_lead else time.monotonic() - self._answered_at

    @property
    def coordinator(self) -> str:
        """`process 0 on HOST`."""
        return self._coordinator

    def describe_late(self, calls: int) -> str:
        """Which processes keep the others waiting, as far as the beats show. `calls`: of this process."""
        if self._group.count == 1:
            return "There is one process."
        if self.coordinator_silence() > 4 * supervisor.INTERVAL:
            return "Late: process 0, the coordinator, does not answer."
        silent = self.silent_processes(2.5 * supervisor.INTERVAL)
        if silent:
            return f"Late: {', '.join(map(self._group.name_of, silent))}, silent."
        all_calls = {i: int(beat.split()[0]) for i, (beat, _) in self._peers.items()} | {self._group.index: calls}
        behind = [i for i, n in sorted(all_calls.items()) if n == min(all_calls.values())]
        if len(behind) == len(all_calls):
            return "No process is behind another: all wait in the same place."
        return f"Late: {', '.join(map(self._group.name_of, behind))}."
