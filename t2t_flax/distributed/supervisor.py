"""Supervises a run beside its main thread: a signal to one process stops all of them, and a failure of one ends all."""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

from etils import epath

from t2t_flax.config import Config
from t2t_flax.distributed.coordination import ProcessGroup, ProcessGroupError
from t2t_flax.distributed.preemption import Preemption, StopRequested
from t2t_flax.errors import STOPPED
from t2t_flax.registry import WATCHERS, load_extensions

INTERVAL = 1.0
"""Seconds between two messages to the other processes."""


class Progress:
    """Signs of progress of this process, and whether they are expected."""

    def __init__(self) -> None:
        self._expected = False
        self._last = time.monotonic()

    def note(self) -> None:
        """A sign of progress."""
        self._last = time.monotonic()

    def quiet_seconds(self) -> float:
        """Seconds since the last sign; 0 where none is expected."""
        return time.monotonic() - self._last if self._expected else 0.0

    @contextlib.contextmanager
    def expect(self, expected: bool) -> Iterator[None]:
        """Whether signs are expected within the block."""
        before, self._expected = self._expected, expected
        self.note()
        try:
            yield
        finally:
            self.note()
            self._expected = before


class Watcher(Protocol):
    """Watches over a process: a row of `registry.WATCHERS` is a module with `watcher(supervisor, config) -> Watcher`."""

    def start(self) -> None:
        """Called once, where there are several processes. May raise ProcessGroupError."""

    def check(self) -> None:
        """Called four times a second in a thread; must not block."""

    def communicate(self) -> None:
        """Called each second in another thread, where there are several processes. May raise ProcessGroupError."""

    def suspect(self) -> None:
        """Another process seems to be gone."""

    def dead_processes(self) -> list[str]:
        """Names of the processes that it knows to be gone."""


class RunSupervisor:
    """Context of a command. A thread handles signals; of several processes, a second one talks to the others, because a call
    to the coordinator may block.

    `stacks`: folder for the stack traces of a process that ends because it hangs.
    """

    def __init__(self, group: ProcessGroup, config: Config, *, stacks: epath.Path | None = None):
        self.group, self.stacks = group, stacks
        self.preemption = Preemption(group, config.distributed.heartbeat_timeout)
        self.progress = Progress()
        load_extensions()
        self.watchers: list[Watcher] = [WATCHERS.load(name).watcher(self, config) for name in WATCHERS]
        self._interruptible = ""  # what is being done that a signal may interrupt
        self._closed, self._wake = threading.Event(), threading.Event()
        self._handlers: dict[int, Any] = {}

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
            for watcher in self.watchers:
                with contextlib.suppress(ProcessGroupError):
                    watcher.start()
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
        self.progress.note()
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
        no sign of progress is expected unless `expect_progress()` is entered within.
        """
        before, self._interruptible = self._interruptible, f"{what}: exiting. {advice}"
        self._exit_if_signalled()
        try:
            with self.progress.expect(False):
                yield
        finally:
            self._interruptible = before

    @contextlib.contextmanager
    def expect_no_progress(self) -> Iterator[None]:
        """For work that must not be interrupted and may take long, such as the first save; a signal waits for its end."""
        with self.progress.expect(False):
            yield

    @contextlib.contextmanager
    def expect_progress(self) -> Iterator[None]:
        """Within it `should_stop()` is called again and again."""
        with self.progress.expect(True):
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
                time.sleep(2 * INTERVAL)

    def find_dead_processes(self) -> list[str]:
        """Names of the processes that are gone, after some seconds of waiting for the message of one that failed. To be called
        after a collective failed.
        """
        for watcher in self.watchers:
            watcher.suspect()
        time.sleep(4 * INTERVAL)
        return [name for watcher in self.watchers for name in watcher.dead_processes()]

    def _supervise(self) -> None:
        while not self._closed.is_set():
            ready, _, _ = select.select([self._pipe[0]], [], [], INTERVAL / 4)
            for number in os.read(self._pipe[0], 64) if ready else b"":
                if number == signal.SIGINT and self.signal:
                    self.say("interrupted twice, exiting at once")
                    end(130)
                if number in (signal.SIGTERM, signal.SIGINT):
                    self.preemption.request(signal.Signals(number).name)
                    self._wake.set()
            self._exit_if_signalled()
            for watcher in self.watchers:
                watcher.check()

    def _exit_if_signalled(self) -> None:
        what = self._interruptible
        grace = 2.5 * INTERVAL if self.group.count > 1 else 0.0  # the others must have heard of it
        if self.signal and what and self.preemption.seconds_since_request() >= grace:
            self.say(f"{self.signal} while {what}")
            end(STOPPED)

    def _communicate(self) -> None:
        """Sends and reads messages."""
        while not self._closed.is_set():
            self._wake.wait(INTERVAL)
            self._wake.clear()
            try:
                self.preemption.publish()
                news = self.group.entries("news")
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
                        time.sleep(2 * INTERVAL)  # without the coordinator the others would hear nothing
                    end(int(code))
            with contextlib.suppress(ProcessGroupError):
                for watcher in self.watchers:
                    watcher.communicate()


def end(code: int) -> None:
    """Ends the process without the barrier at exit that would wait for processes that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
