"""Supervises a run beside its main thread: signals, the other processes, and updates that do not come."""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator

from etils import epath

from t2t_flax.config import Distributed
from t2t_flax.distributed import heartbeats
from t2t_flax.distributed.coordination import ProcessGroup, ProcessGroupError
from t2t_flax.distributed.hang_watchdog import HangWatchdog, stacks_of_all_threads
from t2t_flax.distributed.heartbeats import Heartbeats
from t2t_flax.distributed.preemption import Preemption, StopRequested
from t2t_flax.errors import FAILURE, STOPPED
from t2t_flax.filesystem import atomic_write


class RunSupervisor:
    """Context of a command. A thread handles signals and ends the process where it hangs; of several processes, a second
    one talks to the others, because a call to the coordinator may block.

    `stacks`: folder for the stack traces of a process that hangs.
    """

    def __init__(self, group: ProcessGroup, config: Distributed, *, stacks: epath.Path | None = None):
        self.group, self._config, self._stacks = group, config, stacks
        self.preemption = Preemption(group, config.heartbeat_timeout)
        self.watchdog = HangWatchdog(config.hang_timeout)
        self._heartbeats = Heartbeats(group)
        self._interruptible = ""  # what is being done that a signal may interrupt
        self._suspicious = False
        self._closed, self._wake = threading.Event(), threading.Event()
        self._handlers: dict[int, object] = {}

    def __enter__(self) -> "RunSupervisor":
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        with contextlib.suppress(ValueError):  # not in the main thread: a caller of the library owns the signals
            self._wakeup_fd = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            for number in (signal.SIGTERM, signal.SIGINT):
                # The C handler writes to the pipe at once, even while the main thread is inside a compilation.
                self._handlers[number] = signal.signal(number, lambda *_: None)
        if self.group.count > 1:
            with contextlib.suppress(ProcessGroupError):
                self._heartbeats.send(0)  # at once: process 0 misses only a process that it has heard before
        targets = [self._supervise] + ([self._communicate] if self.group.count > 1 else [])
        self._threads = [threading.Thread(target=t, daemon=True, name=f"supervisor{t.__name__}") for t in targets]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._closed.set()
        self._wake.set()
        if self._handlers:
            signal.set_wakeup_fd(self._wakeup_fd)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for thread in self._threads:
            thread.join(5.0)
        for end in self._pipe:
            os.close(end)

    @property
    def signal(self) -> str:
        """Name of the signal that requested a stop, on whichever process; empty where none came."""
        return self.preemption.signal

    @property
    def stop_requested(self) -> threading.Event:
        """Set when a signal, on whichever process, requests a stop."""
        return self.preemption.requested

    def should_stop(self) -> bool:
        """Whether to stop here, see `Preemption`. Also the sign that the run makes progress."""
        self.watchdog.alive()
        return self.preemption.should_stop()

    def raise_if_stopping(self) -> None:
        """Raises StopRequested where `should_stop()`."""
        if self.should_stop():
            raise StopRequested

    @contextlib.contextmanager
    def exit_on_signal(
        self, what: str, *, advice: str = "Saved checkpoints stay; give the same command again."
    ) -> Iterator[None]:
        """For work that may take long and can be cut off anywhere (a compilation): a signal ends the process with 75, and
        the hang timeout does not apply unless `expect_progress()` is entered within.
        """
        before, self._interruptible = self._interruptible, f"{what}: exiting. {advice}"
        self._exit_if_signalled()
        try:
            with self.watchdog.watch(False):
                yield
        finally:
            self._interruptible = before

    @contextlib.contextmanager
    def suspend_hang_timeout(self) -> Iterator[None]:
        """For work that must not be interrupted and may compile, such as the first save; a signal waits for its end."""
        with self.watchdog.watch(False):
            yield

    @contextlib.contextmanager
    def expect_progress(self) -> Iterator[None]:
        """Within it `should_stop()` is called again and again; the hang timeout applies."""
        with self.watchdog.watch(True):
            yield

    def say(self, text: str) -> None:
        """A line on standard error, with this process's number where it is one of several."""
        name = f"process {self.group.index}: " if self.group.count > 1 else ""
        print(f"t2t_flax: {name}{text}", file=sys.stderr, flush=True)

    def broadcast_failure(self, code: int, text: str) -> None:
        """Tells the other processes why this one is about to end with `code`."""
        if self.group.count > 1:
            with contextlib.suppress(ProcessGroupError):
                self.group.put(f"news/failed/{self.group.index}", f"{code} {text}")
                time.sleep(2 * heartbeats.INTERVAL)

    def find_dead_processes(self) -> list[str]:
        """Names of the processes whose heartbeats have stopped, after some seconds of waiting for them or for the message
        of one that failed. To be called after a collective failed.
        """
        self._suspicious = True
        time.sleep(4 * heartbeats.INTERVAL)
        return [self.group.name_of(i) for i in self._heartbeats.silent_processes(2.5 * heartbeats.INTERVAL)]

    def _supervise(self) -> None:
        while not self._closed.is_set():
            ready, _, _ = select.select([self._pipe[0]], [], [], heartbeats.INTERVAL / 4)
            for number in os.read(self._pipe[0], 64) if ready else b"":
                if number == signal.SIGINT and self.signal:
                    self.say("interrupted twice, exiting at once")
                    end(130)
                if number in (signal.SIGTERM, signal.SIGINT):
                    self.preemption.request(signal.Signals(number).name)
                    self._wake.set()
            self._exit_if_signalled()
            self._exit_if_hanging()

    def _exit_if_signalled(self) -> None:
        what = self._interruptible
        grace = 2.5 * heartbeats.INTERVAL if self.group.count > 1 else 0.0  # the others must have heard of it
        if self.signal and what and self.preemption.seconds_since_request() >= grace:
            self.say(f"{self.signal} while {what}")
            end(STOPPED)

    def _exit_if_hanging(self) -> None:
        quiet, limit = self.watchdog.quiet_seconds(), self._config.hang_timeout
        if self.watchdog.is_hanging():
            late = self._heartbeats.describe_late(self.preemption.calls)
            self._exit_with_stacks(f"no update for {quiet:.0f} s (config.distributed.hang_timeout = {limit}). {late}")
        # Process 0 looks for dead processes in `_communicate`; the others for a dead process 0, which JAX would only abort.
        quiet, limit = self._heartbeats.coordinator_silence(), self._config.heartbeat_timeout
        if self.group.count > 1 and quiet > limit:
            name = self._heartbeats.coordinator
            self._exit_with_stacks(
                f"{name}, the coordinator, silent for {quiet:.0f} s (config.distributed.heartbeat_timeout)."
            )

    def _communicate(self) -> None:
        """Sends and reads heartbeats and messages."""
        limit = self._config.heartbeat_timeout
        while not self._closed.is_set():
            self._wake.wait(heartbeats.INTERVAL)
            self._wake.clear()
            try:
                self.preemption.publish()
                self._heartbeats.send(self.preemption.calls)
                news = self.group.entries("news")
                if self._needs_heartbeats():
                    self._heartbeats.receive()
            except ProcessGroupError:
                continue
            if "stop" in news and not self.signal:
                self.preemption.request(news["stop"])
                self._wake.set()  # publishes the own proposal without waiting
            for name, text in news.items():
                kind, _, index = name.partition("/")
                if kind == "failed" and int(index) != self.group.index:
                    code, _, reason = text.partition(" ")
                    self.say(f"exiting because {self.group.name_of(int(index))} failed: {reason}")
                    if self.group.is_lead:
                        time.sleep(2 * heartbeats.INTERVAL)  # without the coordinator the others would hear nothing
                    end(int(code))
            silent = self._heartbeats.silent_processes(limit) if self.group.is_lead else []
            if silent:
                reason = f"{', '.join(map(self.group.name_of, silent))} silent for {limit} s"
                self.broadcast_failure(FAILURE, reason)
                self._exit_with_stacks(f"{reason} (config.distributed.heartbeat_timeout).")

    def _needs_heartbeats(self) -> bool:
        """Always on process 0; on the others where something seems wrong, for there may be many hosts."""
        late = self.watchdog.quiet_seconds() > min(self._config.hang_timeout / 2, 30.0)
        return self.group.is_lead or self._suspicious or late

    def _exit_with_stacks(self, reason: str) -> None:
        """Ends this process, with the stack traces of its threads on standard error and in the folder `stacks`."""
        self.say(f"{reason} Stack traces of this process follow; it exits, the last checkpoint stays.")
        stacks = stacks_of_all_threads()
        print(stacks, file=sys.stderr, flush=True)
        if self._stacks:
            with contextlib.suppress(Exception):
                atomic_write(self._stacks / f"process-{self.group.index}.txt", f"{reason}\n{stacks}")
        if self.group.count > 1 and self.group.is_lead:
            # JAX ends the others as soon as the coordinator is gone: their stack traces must be written first.
            time.sleep(3 * heartbeats.INTERVAL)
        end(FAILURE)


def end(code: int) -> None:
    """Ends the process without the barrier at exit that would wait for processes that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
