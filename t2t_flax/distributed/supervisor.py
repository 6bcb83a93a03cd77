"""What watches over a run beside its main thread: signals, the other processes, and updates that do not come.

A run asks `should_stop()` after each update and each step of an evaluation, all processes in the same order. A signal to one
process makes all of them get True at the same call: each proposes the first call that it has not passed yet, and the
latest proposal is taken.
"""

import contextlib
import faulthandler
import os
import select
import signal
import sys
import tempfile
import threading
import time

from etils import epath

from t2t_flax.config import Distributed
from t2t_flax.distributed.coordination import ProcessGroup, ProcessGroupError
from t2t_flax.errors import FAILURE, STOPPED
from t2t_flax.filesystem import atomic_write

_TICK = 1.0  # seconds between beats, and between looks at the news


class StopRequested(Exception):
    """All processes have agreed to stop here."""


class RunSupervisor:
    """Context of a command. `say(text)`: a line on standard error of this process."""

    def __init__(self, group: ProcessGroup, config: Distributed, *, stacks: epath.Path | None = None):
        self.group, self._config, self._stacks = group, config, stacks
        self.signal = ""
        """Name of the signal that asked for a stop, on whichever process."""
        self._lock = threading.Lock()
        self._calls = 0  # of should_stop()
        self._proposal: int | None = None
        self._published = False
        self._agreed: int | None = None
        self._asked_at = self._alive_at = time.monotonic()
        self._giving_up = ""  # what may be given up after a signal
        self._progressing = False
        self._suspicious = False
        self._ended, self._wake = threading.Event(), threading.Event()
        self._peers: dict[int, tuple[str, float]] = {}  # beat, and when it last changed
        self._news_at = time.monotonic()
        self._before: dict[int, object] = {}

    def __enter__(self):
        self._coordinator = self.group.name_of(0)  # asked now, for it may not answer later
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        with contextlib.suppress(ValueError):  # not in the main thread, where a caller of the library owns the signals
            self._fd_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            for number in (signal.SIGTERM, signal.SIGINT):
                # The C handler writes to the pipe at once, even while the main thread is inside a compilation.
                self._before[number] = signal.signal(number, lambda *_: None)
        threads = [self._watch] + ([self._listen] if self.group.count > 1 else [])
        self._threads = [threading.Thread(target=t, daemon=True, name=f"watch{t.__name__}") for t in threads]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self._ended.set()
        self._wake.set()
        if self._before:
            signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for thread in self._threads:
            thread.join(5.0)
        for end in self._pipe:
            os.close(end)

    def should_stop(self) -> bool:
        """Whether to stop here: True at the same call on all processes. Also the sign that the run makes progress."""
        with self._lock:
            self._calls += 1
            self._alive_at = time.monotonic()
            calls, proposal = self._calls, self._proposal
        if proposal is None or calls < proposal:
            return False
        if self._agreed is None:
            limit = self._config.heartbeat_timeout
            self._agreed = max(int(self.group.get(f"stop/at/{i}", limit)) for i in range(self.group.count))
        return calls >= self._agreed

    def raise_if_stopping(self) -> None:
        """Raises StopRequested where `should_stop()`."""
        if self.should_stop():
            raise StopRequested

    @contextlib.contextmanager
    def exit_on_signal(self, what: str):
        """Work that cannot be interrupted (a compilation), which may take long: a signal ends the process with 75, and
        `hang_timeout` does not hold, unless `progress()` is entered within.
        """
        progressing, self._progressing = self._progressing, False
        self._giving_up = what
        self._check_grace()
        try:
            yield
        finally:
            self._giving_up = ""
            self._alive_at, self._progressing = time.monotonic(), progressing

    @contextlib.contextmanager
    def suspend_hang_timeout(self):
        """Work that is not interrupted and may compile, such as the first save; a signal waits until it is done."""
        progressing, self._progressing = self._progressing, False
        try:
            yield
        finally:
            self._alive_at, self._progressing = time.monotonic(), progressing

    @contextlib.contextmanager
    def expect_progress(self):
        """Within it, `should_stop()` is called again and again; `hang_timeout` holds."""
        self._alive_at, self._progressing = time.monotonic(), True
        try:
            yield
        finally:
            self._progressing = False

    def say(self, text: str) -> None:
        """A line on standard error, with this process's name where it is one of several."""
        name = f"process {self.group.index}: " if self.group.count > 1 else ""
        print(f"t2t_flax: {name}{text}", file=sys.stderr, flush=True)

    def broadcast_failure(self, code: int, text: str) -> None:
        """Lets the other processes know why this one is about to end with `code`."""
        if self.group.count > 1:
            with contextlib.suppress(ProcessGroupError):
                self.group.put(f"news/failed/{self.group.index}", f"{code} {text}")
                time.sleep(2 * _TICK)

    def silent(self, seconds: float) -> list[int]:
        """The processes whose beat has not changed for so long."""
        now = time.monotonic()
        return [i for i, (_, at) in sorted(self._peers.items()) if now - at >= seconds and i != self.group.index]

    def find_dead_processes(self) -> str:
        """After a collective failed: waits for the news of a process that says why it ends, or for beats that stop."""
        self._suspicious = True
        time.sleep(4 * _TICK)
        gone = self.silent(2.5 * _TICK)
        return f"to {', '.join(map(self.group.name_of, gone))}" if gone else "to which is not known"

    def _watch(self) -> None:
        while not self._ended.is_set():
            ready, _, _ = select.select([self._pipe[0]], [], [], _TICK / 4)
            for number in os.read(self._pipe[0], 64) if ready else b"":
                if number == signal.SIGINT and self.signal:
                    self.say("interrupted twice: ends at once")
                    end(130)
                if number in (signal.SIGTERM, signal.SIGINT):
                    self._ask_to_stop(signal.Signals(number).name)
            self._check_grace()
            self._check_hang()
            self._check_coordinator()

    def _ask_to_stop(self, name: str) -> None:
        """Proposes the next call of `should_stop()`, which then waits until all have proposed theirs."""
        with self._lock:
            if self.signal:
                return
            self.signal, self._asked_at = name, time.monotonic()
            self._proposal = self._calls + 1
        if self.group.count == 1:
            self._publish()
        self._wake.set()

    def _publish(self) -> None:
        """Tells the others. A call into the coordinator may block, so `_watch` leaves this to `_listen`."""
        if self.signal and not self._published:
            self.group.put("news/stop", self.signal)
            self.group.put(f"stop/at/{self.group.index}", str(self._proposal))
            self._published = True

    def _check_grace(self) -> None:
        what = self._giving_up
        grace = 2.5 * _TICK if self.group.count > 1 else 0.0  # the others must have heard of it
        if self.signal and what and time.monotonic() - self._asked_at >= grace:
            self.say(
                f"{self.signal} while {what}: given up; what was saved before stands. Give the same command again."
            )
            end(STOPPED)

    def _check_hang(self) -> None:
        limit, quiet = self._config.hang_timeout, time.monotonic() - self._alive_at
        if self._progressing and limit and quiet > limit:
            self._end_with_stacks(
                f"no update for {quiet:.0f} s (config.distributed.hang_timeout = {limit}). {self.late()}"
            )

    def _check_coordinator(self) -> None:
        """Process 0 looks for silent processes; the others for a silent process 0, which JAX would only abort."""
        limit, quiet = self._config.heartbeat_timeout, time.monotonic() - self._news_at
        if self.group.count > 1 and not self.group.is_lead and quiet > limit:
            self._end_with_stacks(
                f"{self._coordinator}, the coordinator, silent for {quiet:.0f} s (config.distributed.heartbeat_timeout)."
            )

    def _end_with_stacks(self, why: str) -> None:
        self.say(f"{why} The stacks of this process follow; the run ends, the last checkpoint stands.")
        with tempfile.TemporaryFile("w+") as file:  # faulthandler writes to real files alone
            faulthandler.dump_traceback(file=file, all_threads=True)
            file.seek(0)
            stacks = file.read()
        print(stacks, file=sys.stderr, flush=True)
        if self._stacks:
            with contextlib.suppress(Exception):
                atomic_write(self._stacks / f"process-{self.group.index}.txt", f"{why}\n{stacks}")
        if self.group.count > 1 and self.group.is_lead:
            time.sleep(
                3 * _TICK
            )  # JAX ends the others as soon as the coordinator is gone: theirs must be written first
        end(FAILURE)

    def late(self) -> str:
        """Who keeps the others waiting, in a sentence, as far as the beats tell."""
        if self.group.count == 1:
            return "There is one process."
        if time.monotonic() - self._news_at > 4 * _TICK and self.group.index:
            return "Late: process 0, the coordinator, does not answer."
        silent = self.silent(2.5 * _TICK)
        if silent:
            return f"Late: {', '.join(map(self.group.name_of, silent))}, silent."
        calls = {i: int(beat.split()[0]) for i, (beat, _) in self._peers.items()} | {self.group.index: self._calls}
        behind = [i for i, n in sorted(calls.items()) if n == min(calls.values())]
        if len(behind) == len(calls):
            return "No process is behind another: all wait in the same place."
        return f"Late: {', '.join(map(self.group.name_of, behind))}."

    def _listen(self) -> None:
        """Beats, and the news of the others. A call into the coordinator may block here, never in `_watch`."""
        beat = 0
        while not self._ended.is_set():
            self._wake.wait(_TICK)
            self._wake.clear()
            beat += 1
            try:
                self._publish()
                self.group.put(f"beat/{self.group.index}", f"{self._calls} {beat}")
                news = self.group.entries("news")
                if self._needs_beats():
                    self._read_beats()
            except ProcessGroupError:
                continue
            self._news_at = time.monotonic()
            if "stop" in news:
                self._ask_to_stop(news["stop"])  # published with the next beat, which it brings forward
            for name, text in news.items():
                kind, _, who = name.partition("/")
                if kind == "failed" and int(who) != self.group.index:
                    code, _, why = text.partition(" ")
                    self.say(f"ends because {self.group.name_of(int(who))} did: {why}")
                    if self.group.is_lead:
                        time.sleep(2 * _TICK)  # without the coordinator the others would hear nothing
                    end(int(code))
            silent = self.silent(self._config.heartbeat_timeout) if self.group.is_lead else []
            if silent:
                why = f"{', '.join(map(self.group.name_of, silent))} silent for {self._config.heartbeat_timeout} s"
                self.broadcast_failure(FAILURE, why)
                self._end_with_stacks(f"{why} (config.distributed.heartbeat_timeout).")

    def _needs_beats(self) -> bool:
        """All the time on one process; on the others where something seems wrong: a group has many hosts."""
        quiet, limit = time.monotonic() - self._alive_at, self._config.hang_timeout
        return (
            self.group.is_lead or self._suspicious or bool(self._progressing and limit and quiet > min(limit / 2, 30.0))
        )

    def _read_beats(self) -> None:
        now = time.monotonic()
        for who, beat in self.group.entries("beat").items():
            before = self._peers.get(int(who))
            if before is None or before[0] != beat:
                self._peers[int(who)] = (beat, now)


def end(code: int) -> None:
    """Ends the process without the barrier at exit that would wait for processes that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
