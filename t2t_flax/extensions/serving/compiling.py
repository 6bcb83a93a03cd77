"""Programs that a request needs first are traced and compiled in a child process, so that the server's threads and cores are
free for others; this process loads the machine code. On CPUs: an accelerator has one process.

    python -m t2t_flax.extensions.serving.compiling FILE_DESCRIPTOR
"""

import contextlib
import io
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Hashable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import flax.linen as nn
import jax
from jax.experimental import serialize_executable

from t2t_flax.decoding.search_loop import Program
from t2t_flax.errors import first_line
from t2t_flax.process_setup import child_environment

log = logging.getLogger("t2t_flax")
_NICE = 10
_IDLE = 10.0
"""Seconds without a program to compile after which the child ends."""
_LONGEST = 600.0
"""Seconds after which a child that has not answered counts as hanging: it is killed, and the server compiles itself."""
waiting = threading.local()
"""waiting.note: what a thread that waits for the child calls every second, if it has one."""


class Compiler:
    """Makes and runs the programs of decoding: in this process until `begin`, then in the child."""

    def __init__(self) -> None:
        self._compiled: dict[Hashable, jax.stages.Compiled] = {}
        self._elsewhere = self._stopped = False
        self._asking = threading.Lock()
        # Programs that span several devices may wait for each other where two threads start them at once.
        self._turn = threading.Lock() if jax.device_count() > 1 else None
        self._child: _Child | None = None
        self._before, Program.run = Program.run, staticmethod(self.run)

    def begin(self) -> None:
        """Has the child compile those programs that are not compiled yet."""
        self._elsewhere = jax.default_backend() == "cpu"

    def run(self, program: Program, args: tuple[Any, ...]) -> Any:
        """The results of a program. Threads take turns on several devices, but not while they wait for a program."""
        leaves, tree = jax.tree.flatten(args)
        # A compiled program takes arrays of its own shardings alone.
        key = program, tree, jax.sharding.get_mesh(), tuple(_key(x) for x in leaves)
        compiled = self._compiled.get(key) or self._compile(key, program, args)
        if self._turn is None:
            return compiled(*_dynamic(program, args))
        with self._turn:
            return jax.block_until_ready(compiled(*_dynamic(program, args)))

    def stop(self) -> None:
        """Ends the child; who waits for it gets an error. Programs that are compiled can still run, see `close`."""
        self._stopped = True
        if self._child:
            self._child.kill()

    def close(self) -> None:
        """Programs run as before this compiler was made. To be called when nothing runs any more."""
        Program.run = staticmethod(self._before)

    def _compile(self, key: Hashable, program: Program, args: tuple[Any, ...]) -> jax.stages.Compiled:
        if self._elsewhere:
            while not self._asking.acquire(timeout=1.0):  # another thread waits for the child
                _note()
            try:
                try:
                    self._compiled[key] = self._compiled.get(key) or self._by_child(program, args)
                    return self._compiled[key]
                except Exception as error:  # noqa: BLE001 - a child that fails must not end the lane
                    if self._stopped:
                        raise RuntimeError("the server is stopping") from None
                    log.warning("%s is compiled in the server itself: %s", program.__name__, first_line(error))
            finally:
                self._asking.release()
        self._compiled[key] = program.lower(*args).compile()
        return self._compiled[key]

    def _by_child(self, program: Program, args: tuple[Any, ...]) -> jax.stages.Compiled:
        context = jax.sharding.get_mesh(), nn.get_logical_axis_rules()
        machine_code, out = pickle.loads(self._ask(_dumps((program, jax.tree.map(_abstract, args), *context))))
        trees = jax.tree.structure((_dynamic(program, args), {})), jax.tree.structure(out)
        return serialize_executable.deserialize_and_load(machine_code, *trees, execution_devices=_devices(args))

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


def _dynamic(program: Program, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(arg for i, arg in enumerate(args) if i not in program.static_argnums)


def _devices(args: tuple[Any, ...]) -> list[jax.Device]:
    shardings = (x.sharding for x in jax.tree.leaves(args) if isinstance(x, jax.Array))
    meshes = [each.mesh.devices for each in shardings if isinstance(each, jax.sharding.NamedSharding)]
    return list(meshes[0].flat) if meshes else jax.devices()[:1]


def _abstract(x: Any) -> Any:
    if not isinstance(x, jax.Array):
        return x
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding if x.committed else None)


def _key(x: Any) -> Hashable:
    return (x.shape, x.dtype, x.sharding if x.committed else None) if isinstance(x, jax.Array) else x


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.id if isinstance(value, jax.Device) else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, number: Any) -> Any:
        return next(device for device in jax.devices() if device.id == number)


def _dumps(value: Any) -> bytes:
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


def _compiled(request: bytes) -> bytes:
    program, args, mesh, rules = _Unpickler(io.BytesIO(request)).load()
    with contextlib.nullcontext() if mesh.empty else jax.set_mesh(mesh), nn.logical_axis_rules(rules):
        compiled = program.lower(*args).compile()
    machine_code, _, out = serialize_executable.serialize(compiled)
    return pickle.dumps((machine_code, out.unflatten(range(out.num_leaves))))


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
