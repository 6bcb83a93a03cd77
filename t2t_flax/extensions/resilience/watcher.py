"""Ends a process that hangs, with the stack traces of its threads, and all processes of a run where one is dead or has failed."""

import contextlib
import faulthandler
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping

from etils import epath

from t2t_flax.config import Config
from t2t_flax.distributed import supervisor as supervision
from t2t_flax.distributed.coordination import ProcessGroup, ProcessGroupError
from t2t_flax.distributed.supervisor import RunSupervisor
from t2t_flax.errors import FAILURE
from t2t_flax.filesystem import atomic_write
from t2t_flax.training.hooks import Hook


def watcher(supervisor: RunSupervisor, config: Config) -> "Watcher":
    return Watcher(supervisor, config)


def hook(config: Config, workdir: epath.Path, group: ProcessGroup) -> Hook:
    """Compares the processes with every logged update; does nothing where there is one."""
    if group.count == 1:
        return Hook()
    from t2t_flax.extensions.resilience.stragglers import StragglerDetector

    return StragglerDetector(group, config.group("resilience").straggler_share, config.log.every_steps)


class Heartbeats:
    """By which the processes of a run notice that one of them is dead, hangs or is behind.

    `send` and `receive` call the coordinator, and block as long as it does not answer; all else returns at once.
    """

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
        if self.coordinator_silence() > 4 * supervision.INTERVAL:
            return "Late: process 0, the coordinator, does not answer."
        silent = self.silent_processes(2.5 * supervision.INTERVAL)
        if silent:
            return f"Late: {', '.join(map(self._group.name_of, silent))}, silent."
        all_calls = {i: int(beat.split()[0]) for i, (beat, _) in self._peers.items()} | {self._group.index: calls}
        behind = [i for i, n in sorted(all_calls.items()) if n == min(all_calls.values())]
        if len(behind) == len(all_calls):
            return "No process is behind another: all wait in the same place."
        return f"Late: {', '.join(map(self._group.name_of, behind))}."


class Watcher:
    """See `distributed.supervisor.Watcher`."""

    def __init__(self, supervisor: RunSupervisor, config: Config):
        self._run, self._group = supervisor, supervisor.group
        self._hang_timeout = config.group("resilience").hang_timeout
        self._silence = config.distributed.heartbeat_timeout
        self.heartbeats = Heartbeats(supervisor.group)
        self._suspicious = False
        self._seen, self._seen_at = 0, time.monotonic()
        if self._group.count > 1:
            with contextlib.suppress(ProcessGroupError):
                self.heartbeats.send(0)  # at once: process 0 misses only a process that it has heard before

    def quiet_seconds(self) -> float:
        """Seconds since the last sign of progress, as far as `check` has seen; 0 where none is expected."""
        return time.monotonic() - self._seen_at if self._run.progress_expected else 0.0

    def check(self) -> None:
        signs = self._run.signs_of_progress
        if signs != self._seen or not self._run.progress_expected:
            self._seen, self._seen_at = signs, time.monotonic()
        quiet = self.quiet_seconds()
        if self._hang_timeout and quiet > self._hang_timeout:
            late = self.heartbeats.describe_late(self._run.stop_checks)
            self._end(f"no update for {quiet:.0f} s (config.resilience.hang_timeout = {self._hang_timeout}). {late}")
        # Process 0 looks for dead processes in `communicate`; the others for a dead process 0, which JAX would only abort.
        quiet = self.heartbeats.coordinator_silence()
        if self._group.count > 1 and quiet > self._silence:
            self._end(
                f"{self.heartbeats.coordinator}, the coordinator, silent for {quiet:.0f} s "
                "(config.distributed.heartbeat_timeout)."
            )

    def communicate(self, news: Mapping[str, str]) -> None:
        for name, text in news.items():
            kind, _, index = name.partition("/")
            if kind == "failed" and int(index) != self._group.index:
                code, _, reason = text.partition(" ")
                self._run.say(f"exiting because {self._group.name_of(int(index))} failed: {reason}")
                if self._group.is_lead:
                    time.sleep(2 * supervision.INTERVAL)  # without the coordinator the others would hear nothing
                supervision.end(int(code))
        self.heartbeats.send(self._run.stop_checks)
        late = self.quiet_seconds() > min(self._hang_timeout / 2 or 30.0, 30.0)
        if self._group.is_lead or self._suspicious or late:  # not always on the others: there may be many hosts
            self.heartbeats.receive()
        silent = self.heartbeats.silent_processes(self._silence) if self._group.is_lead else []
        if silent:
            reason = f"{', '.join(map(self._group.name_of, silent))} silent for {self._silence} s"
            self._tell(FAILURE, reason)
            self._end(f"{reason} (config.distributed.heartbeat_timeout).")

    def failed(self, code: int, reason: str, *, disconnected: bool) -> list[str]:
        if not disconnected:
            self._tell(code, reason)
            return []
        self._suspicious = True
        time.sleep(4 * supervision.INTERVAL)  # for the message of one that failed
        silent = self.heartbeats.silent_processes(2.5 * supervision.INTERVAL)
        return [self._group.name_of(i) for i in silent]

    def _tell(self, code: int, reason: str) -> None:
        """Tells the other processes why this one is about to end."""
        if self._group.count > 1:
            with contextlib.suppress(ProcessGroupError):
                self._group.put(f"news/failed/{self._group.index}", f"{code} {reason}")
                time.sleep(2 * supervision.INTERVAL)

    def _end(self, reason: str) -> None:
        """Ends this process, with the stack traces of its threads on standard error and in the folder `stacks`."""
        self._run.say(f"{reason} Stack traces of this process follow; it exits, the last checkpoint stays.")
        stacks = stacks_of_all_threads()
        print(stacks, file=sys.stderr, flush=True)
        if self._run.stacks:
            with contextlib.suppress(Exception):
                atomic_write(self._run.stacks / f"process-{self._group.index}.txt", f"{reason}\n{stacks}")
        if self._group.count > 1 and self._group.is_lead:
            # JAX ends the others as soon as the coordinator is gone: their stack traces must be written first.
            time.sleep(3 * supervision.INTERVAL)
        supervision.end(FAILURE)


def stacks_of_all_threads() -> str:
    """That of the main thread first: of more than 100 threads faulthandler leaves out the oldest."""
    main = sys._current_frames().get(threading.main_thread().ident or 0)
    of_main = "".join(["Main thread:\n", *traceback.format_stack(main), "\n"]) if main else ""
    with tempfile.TemporaryFile("w+") as file:  # faulthandler writes to real files alone
        faulthandler.dump_traceback(file=file, all_threads=True)
        file.seek(0)
        return of_main + file.read()
