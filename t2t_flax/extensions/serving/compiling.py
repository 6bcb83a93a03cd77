"""Programs that a request needs first are traced and compiled in a child process, so that the server's threads and cores are
free for others; this process loads the machine code. On CPUs: an accelerator has one process.

    python -m t2t_flax.extensions.serving.compiling FILE_DESCRIPTOR
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax

from t2t_flax.decoding.programs import Program
from t2t_flax.errors import first_line
from t2t_flax.extensions.serving.programs import (
    Made,
    Programs,
    compile_abstract,
    described,
    from_description,
    serialized,
)
from t2t_flax.extensions.shared.processes import child_environment

log = logging.getLogger("t2t_flax")
_NICE = 10
_IDLE = 10.0
"""Seconds without a program to compile after which the child ends."""
_LONGEST = 600.0
"""Seconds after which a child that has not answered counts as hanging: it is killed, and the server compiles itself."""
waiting = threading.local()
"""waiting.note: what a thread that waits for the child calls every second, if it has one."""


class Stopping(Exception):
    """A program is no longer made."""

    def __init__(self) -> None:
        super().__init__("the server is stopping")


class Compiler(Programs):
    """Makes the programs of decoding in this process until `begin`, then in the child, one after the other."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder)
        self._elsewhere = self._stopped = False
        self._asking = threading.Lock()
        # Programs that span several devices may wait for each other where two threads start them at once.
        self._turn = threading.Lock() if jax.device_count() > 1 else None
        self._child: _Child | None = None

    def begin(self) -> None:
        """Has the child compile those programs that are not compiled yet."""
        self._elsewhere = jax.default_backend() == "cpu"

    def run(self, program: Program, args: tuple[Any, ...]) -> Any:
        """The results of a program. Threads take turns on several devices, but not while they wait for a program."""
        if self._turn is None:
            return super().run(program, args)
        self.find(program, args).compiled.result()
        with self._turn:
            return jax.block_until_ready(super().run(program, args))

    def stop(self) -> None:
        """Ends the child; who waits for it gets an error. Programs that are compiled can still run, see `close`."""
        self._stopped = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._child:
            self._child.kill()

    def make(self, program: Program, args: tuple[Any, ...]) -> Made:
        """Has a program compiled."""
        if self._elsewhere:
            while not self._asking.acquire(timeout=1.0):  # another thread waits for the child
                _note()
            try:
                # Another thread may have had it compiled meanwhile.
                return self.read(program, args) or self.keep(program, args, self._ask(described(program, args)))
            except Exception as error:  # noqa: BLE001 - a child that fails must not end the lane
                if self._stopped:
                    raise Stopping from None
                log.warning("%s is compiled in the server itself: %s", program.__name__, first_line(error))
            finally:
                self._asking.release()
        try:
            return super().make(program, args)
        except RuntimeError:  # its threads are no longer there
            if self._stopped:
                raise Stopping from None
            raise

    def _ask(self, request: bytes) -> bytes:
        try:
            return self._child.answer(request) if self._child else self._started().answer(request)
        except (EOFError, OSError):  # it has ended, because it was idle
            return self._started().answer(request)

    def _started(self) -> "_Child":
        if self._stopped:
            raise EOFError
        if self._child:
            self._child.kill()
        self._child = _Child()
        if self._stopped:  # meanwhile
            self._child.kill()
        return self._child


def _note() -> None:
    getattr(waiting, "note", lambda: None)()


class _Child:
    def __init__(self) -> None:
        self._pipe, end = Pipe()
        devices = f"--xla_force_host_platform_device_count={jax.device_count()}"
        variables = child_environment(JAX_PLATFORMS="cpu", XLA_FLAGS=f"{os.environ.get('XLA_FLAGS', '')} {devices}")
        command = [sys.executable, "-m", __spec__.name, str(end.fileno())]
        self._process = subprocess.Popen(
            command, env=variables, pass_fds=[end.fileno()], stdin=subprocess.DEVNULL, process_group=0
        )
        end.close()

    def answer(self, request: bytes) -> bytes:
        """What `_compiled` returns. Raises RuntimeError with what it raised, or if it hangs, and EOFError or OSError if the child
        has ended.
        """
        self._pipe.send_bytes(request)
        began = time.monotonic()
        while not self._pipe.poll(1.0):
            _note()
            if time.monotonic() - began > _LONGEST:
                self.kill()
                raise RuntimeError(f"no answer of the child within {_LONGEST:.0f} s")
        succeeded, answer = self._pipe.recv()
        if not succeeded:
            raise RuntimeError(answer)
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _compiled(request: bytes) -> bytes:
    with from_description(request) as (program, args):
        return serialized(*compile_abstract(program, args))


def main(descriptor: int) -> None:
    os.nice(_NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends it
    jax.config.update("jax_enable_compilation_cache", False)  # what was loaded from there cannot be sent
    pipe = Connection(descriptor)
    with contextlib.suppress(EOFError, OSError):
        while pipe.poll(_IDLE):
            request = pipe.recv_bytes()
            try:
                answer = True, _compiled(request)
            except Exception as error:  # noqa: BLE001 - the server compiles it itself
                answer = False, repr(error)
            pipe.send(answer)


if __name__ == "__main__":
    main(int(sys.argv[1]))
