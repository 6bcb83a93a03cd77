"""Supervision of a command beside its main thread.

A signal to one process stops all processes at the same place.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import NoReturn

from t2t_flax.config import Config
from t2t_flax.distributed import watcher as watching
from t2t_flax.distributed.coordination import (
    ProcessGroup,
    ProcessGroupError,
    broken_connection,
    end,
    initialize,
)
from t2t_flax.distributed.signals import STOP_SIGNALS, leave_closed_outputs, on_stop_signals
from t2t_flax.errors import (
    FAILURE,
    STOPPED,
    USER_ERROR,
    WRITE_HINT,
    NonFiniteUpdate,
    UserError,
    first_line,
)
from t2t_flax.files import is_write_refused


class StopRequested(Exception):
    """Agreement of all processes to stop here."""


class RunSupervisor:
    """Context of a command.

    A thread handles signals; a second one talks to other processes, if any.

    All processes call `should_stop` in the same order: after each update and after each batch of an
    evaluation. After a signal each proposes the first call that it has not passed yet, and all stop
    at the latest proposal. (JAX's `multihost_utils.reached_preemption_sync_point` does this for
    SIGTERM alone. It does not say which signal came, nor that one came at all while a program is
    being compiled.)
    """

    def __init__(self, group: ProcessGroup, config: Config):
        self.group = group
        self.signal = ""
        """Name of the signal on any process that requested a stop; empty if none came."""
        self.stop_requested = threading.Event()
        """Event that is set when a signal on any process requests a stop."""
        self.stop_checks, self.signs_of_progress, self.progress_expected = 0, 0, False
        self._timeout = config.distributed.heartbeat_timeout  # to wait for proposals
        self._lock = threading.Lock()
        self._proposal: int | None = None
        self._agreed: int | None = None
        self._requested_at = 0.0
        self._interruptible = ""  # work that a signal may interrupt
        self._closed, self._wake = threading.Event(), threading.Event()
        self._signals = contextlib.ExitStack()
        self.watcher = watching.Watcher(self, config.distributed)

    def __enter__(self) -> "RunSupervisor":
        self._pipe = os.pipe()
        for pipe_end in self._pipe:
            os.set_blocking(pipe_end, False)
        with contextlib.suppress(ValueError):  # outside the main thread the caller owns the signals
            # The C handler writes to the pipe at once, even while the main thread compiles.
            wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            self._signals.callback(signal.set_wakeup_fd, wakeup)
            self._signals.enter_context(on_stop_signals(lambda number: None))
        targets = [self._supervise] + ([self._communicate] if self.group.count > 1 else [])
        self._threads = [
            threading.Thread(target=t, daemon=True, name=f"supervisor{t.__name__}") for t in targets
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._closed.set()
        self._wake.set()
        self._signals.close()
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the thread wakes up anyway
            os.write(self._pipe[1], b"\0")  # wakes `_supervise`; no signal has this number
        for thread in self._threads:
            thread.join(5.0)
        for pipe_end in self._pipe:
            os.close(pipe_end)

    def request_stop(self, name: str) -> None:
        """Propose to stop at the next call, because of the signal `name`.

        Only the first request counts.
        """
        with self._lock:
            if self.signal:
                return
            self._requested_at, self._proposal = time.monotonic(), self.stop_checks + 1
            self.signal = name  # after the proposal: others read it without the lock
            self.stop_requested.set()
        self._wake.set()

    def should_stop(self) -> bool:
        """Return True from the same call on in all processes.

        A call is also a sign of progress. Raises ProcessGroupError if another process makes no
        proposal.
        """
        self.note_progress()
        with self._lock:
            self.stop_checks += 1
            calls, proposal = self.stop_checks, self._proposal
        if proposal is None or calls < proposal:
            return False
        if self.group.count == 1:
            return True
        if self._agreed is None:
            proposals = [
                self.group.get(f"stop/at/{i}", self._timeout) for i in range(self.group.count)
            ]
            self._agreed = max(map(int, proposals))
        return calls >= self._agreed

    def raise_if_stopping(self) -> None:
        """Raise StopRequested if `should_stop()`."""
        if self.should_stop():
            raise StopRequested

    def publish(self) -> None:
        """Send this process's proposal, if it has one.

        Blocks as long as the coordinator does not answer.
        """
        if self.signal:
            self.group.put("news/stop", self.signal)
            self.group.put(f"stop/at/{self.group.index}", str(self._proposal))

    @contextlib.contextmanager
    def exit_on_signal(
        self, what: str, *, advice: str = "Saved checkpoints stay; give the same command again."
    ) -> Iterator[None]:
        """End the process with 75 at a signal within the block.

        It is for long work that can be cut off anywhere, such as a compilation. No sign of progress
        is expected, unless `expect_progress()` is entered within.
        """
        before, self._interruptible = self._interruptible, f"{what}: exiting. {advice}"
        self._exit_if_signalled()
        try:
            with self.expect_progress(False):
                yield
        finally:
            self._interruptible = before

    def note_progress(self) -> None:
        """Count a sign of progress."""
        self.signs_of_progress += 1

    @contextlib.contextmanager
    def expect_progress(self, expected: bool = True) -> Iterator[None]:
        """Set whether signs of progress are expected within the block.

        None are expected in a save, which may take long.
        """
        self.note_progress()  # no sign was expected before
        before, self.progress_expected = self.progress_expected, expected
        try:
            yield
        finally:
            self.note_progress()
            self.progress_expected = before

    def say(self, text: str) -> None:
        """Print a line on standard error, with this process's number if there are several."""
        name = f"process {self.group.index}: " if self.group.count > 1 else ""
        with contextlib.suppress(OSError):  # nobody reads it; the supervisor continues
            print(f"t2t_flax: {name}{text}", file=sys.stderr, flush=True)

    def _supervise(self) -> None:
        while not self._closed.is_set():
            ready, _, _ = select.select([self._pipe[0]], [], [], watching.INTERVAL / 4)
            for number in os.read(self._pipe[0], 64) if ready else b"":
                if number in STOP_SIGNALS:
                    leave_closed_outputs()
                if number == signal.SIGINT and self.signal:
                    self.say("interrupted twice, exiting at once")
                    end(130)
                if number in STOP_SIGNALS:
                    self.request_stop(signal.Signals(number).name)
            self._exit_if_signalled()
            self.watcher.check()

    def _exit_if_signalled(self) -> None:
        what = self._interruptible
        grace = 2.5 * watching.INTERVAL if self.group.count > 1 else 0.0  # until the others know
        if self.signal and what and time.monotonic() - self._requested_at >= grace:
            self.say(f"{self.signal} while {what}")
            end(STOPPED)

    def _communicate(self) -> None:
        """Send and read messages."""
        while not self._closed.is_set():
            self._wake.wait(watching.INTERVAL)
            self._wake.clear()
            try:
                self.publish()
                news = self.group.entries("news")
            except ProcessGroupError:
                continue
            if "stop" in news:
                self.request_stop(news["stop"])
            with contextlib.suppress(ProcessGroupError):
                self.watcher.communicate(news)


@contextlib.contextmanager
def run_job(config: Config) -> Iterator[RunSupervisor]:
    """Context of a command in this process, alone or as one of several.

    One of several whose block raises does not wait for the others. NonFiniteUpdate is an exception:
    all of them raise it. Enter the context before anything touches a device.
    """
    try:
        group = initialize(config.distributed)
    except ProcessGroupError as error:
        end(FAILURE, f"t2t_flax: {error}")
    try:
        with RunSupervisor(group, config) as supervisor:
            try:
                yield supervisor
            except NonFiniteUpdate:
                raise
            except BaseException as error:
                if group.count == 1:
                    raise
                _fail(supervisor, error)
    finally:
        if group.count > 1:
            import jax

            with contextlib.suppress(Exception):
                jax.distributed.shutdown()


def _fail(supervisor: RunSupervisor, error: BaseException) -> NoReturn:
    """Say what happened, tell the other processes, and end this one."""
    if isinstance(error, OSError) and is_write_refused(error):
        error = UserError(f"{error}. {WRITE_HINT}")
    disconnected = broken_connection(error) and not isinstance(error, UserError)
    if supervisor.signal and disconnected:
        supervisor.say(
            f"{supervisor.signal}: another process exited first; the last checkpoint stays"
        )
        end(STOPPED)
    code, text = FAILURE, f"{type(error).__name__}: {first_line(error)}"
    if isinstance(error, UserError):
        code, text = USER_ERROR, str(error)
    elif not disconnected:
        traceback.print_exception(error)
    if not disconnected:
        supervisor.say(text)
    dead = supervisor.watcher.failed(code, text, disconnected=disconnected)
    if disconnected:
        supervisor.say(
            "the connection to another process broke"
            f" ({', '.join(dead) or 'which one is not known'}). The last checkpoint stays; start"
            f" all processes again. ({text})"
        )
    end(code)
