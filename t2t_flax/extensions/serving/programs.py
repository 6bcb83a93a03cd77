"""Compiled programs of decoding, and where they are kept."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import os
import pickle
import platform
import shutil
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import flax
import flax.linen as nn
import jax
import numpy as np
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from t2t_flax.decoding.programs import Program, any_abstract
from t2t_flax.extensions.shared.processes import cpu_info
from t2t_flax.filesystem import atomic_write
from t2t_flax.version import source_digest

_UNUSED = 30 * 24 * 3600.0
"""Seconds after which the programs of another version or machine are deleted."""
_ARRAYS = (jax.Array, jax.ShapeDtypeStruct, np.ndarray)


class Made(NamedTuple):
    """A program that is compiled, or will be, and its abstract results."""

    compiled: "Future[jax.stages.Compiled]"
    results: Callable[[], Any]


class Programs:
    """Runs each `Program` compiled for the shapes, types and shardings of its arguments, until `close`. A call with abstract
    arguments has it compiled in another thread, before it is needed.

    folder: where compiled programs are kept, so that a process that needs one again neither traces nor compiles it. Those of
    other sources, versions of JAX and Flax, settings and processors are told apart. None = nowhere.
    """

    def __init__(self, folder: Path | None = None):
        self._made: dict[Hashable, Made] = {}
        self._threads = ThreadPoolExecutor(os.cpu_count(), "compile")
        self._folder = folder and folder / _environment()
        self._before, Program.run = Program.run, staticmethod(self.run)
        if self._folder:
            with contextlib.suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                os.utime(self._folder)
                _delete_unused(self._folder.parent)

    def close(self) -> None:
        """Programs run as before. To be called when nothing runs any more."""
        self._threads.shutdown(wait=False)
        Program.run = staticmethod(self._before)

    def wait(self) -> None:
        """Returns when all programs that were asked for are compiled; raises what compiling one raised."""
        for made in list(self._made.values()):
            made.compiled.result()

    def run(self, program: Program, args: tuple[Any, ...]) -> Any:
        """The results of a program."""
        made = self.find(program, args)
        return made.results() if any_abstract(args) else made.compiled.result()(*_dynamic(program, args))

    def find(self, program: Program, args: tuple[Any, ...]) -> Made:
        """The program for arguments like these: from memory, from the folder, or made."""
        leaves, tree = jax.tree.flatten(args)
        # A compiled program takes arrays of its own shardings alone.
        key = program, tree, jax.sharding.get_mesh(), tuple(map(_key, leaves))
        found = self._made.get(key)
        if found is None or found.compiled.done() and found.compiled.exception():
            found = self._made[key] = self.read(program, args) or self.make(program, args)
        return found

    def make(self, program: Program, args: tuple[Any, ...]) -> Made:
        """Has a program compiled for arguments like these, and keeps it."""
        args = jax.tree.map(_abstract, args)  # which keeps no array alive
        lowered = program.lower(*args)
        compiled = self._threads.submit(lowered.compile)

        def results() -> Any:
            return _abstract_results(lowered, compiled, _devices(args))

        if self._folder:
            path = self._path(program, args)

            def keep(_: Future) -> None:
                with contextlib.suppress(Exception):  # XLA cannot write all programs: then it is compiled again
                    atomic_write(path, serialized(compiled.result(), results()))

            compiled.add_done_callback(keep)
        return Made(compiled, results)

    def keep(self, program: Program, args: tuple[Any, ...], stored: bytes) -> Made:
        """Loads what `serialized` returned, and writes it to the folder."""
        made = loaded(stored, program, args)
        if self._folder:
            with contextlib.suppress(OSError):
                atomic_write(self._path(program, args), stored)
        return made

    def read(self, program: Program, args: tuple[Any, ...]) -> Made | None:
        """The program in the folder, if it is there and whole."""
        with contextlib.suppress(Exception):
            if self._folder and (path := self._path(program, args)).exists():
                return loaded(path.read_bytes(), program, args)
        return None

    def _path(self, program: Program, args: tuple[Any, ...]) -> Path:
        leaves, tree = jax.tree.flatten(args)
        # One by one: the bytes of all together would tell whether two arguments share an object.
        parts = [str(tree).encode(), *map(_dumps, (program, *map(_placed, leaves), *_context()))]
        assert self._folder
        return self._folder / hashlib.sha256(pickle.dumps(parts)).hexdigest()[:32]


@functools.cache
def program_folder() -> Path | None:
    """Where `Programs` are kept on this machine, in place of JAX's own cache, which is turned off, because what comes out of it
    cannot always be written again. None on accelerators, and where the user has no cache.
    """
    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if not (folder and jax.config.jax_enable_compilation_cache and jax.default_backend() == "cpu"):  # type: ignore[attr-defined]
        return None
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    jax.clear_caches()  # of what came out of it
    return Path(folder, "programs")


def keep_programs() -> None:
    """The programs that this process compiles are kept for the next one."""
    Programs(program_folder())


def described(program: Program, args: tuple[Any, ...]) -> bytes:
    """What a compiled program follows from, apart from the process: pickled, see `from_description`."""
    return _dumps((program, jax.tree.map(_abstract, args), *_context()))


@contextlib.contextmanager
def from_description(data: bytes) -> Iterator[tuple[Program, tuple[Any, ...]]]:
    """The program and its abstract arguments, in the context in which they were described."""
    program, args, mesh, rules = _Unpickler(io.BytesIO(data)).load()
    with contextlib.nullcontext() if mesh.empty else jax.set_mesh(mesh), nn.logical_axis_rules(rules):
        yield program, args


def compile_abstract(program: Program, args: tuple[Any, ...]) -> tuple[jax.stages.Compiled, Any]:
    """The program compiled for abstract arguments, and its abstract results."""
    lowered = program.lower(*args)
    compiled: Future[jax.stages.Compiled] = Future()
    compiled.set_result(lowered.compile())
    return compiled.result(), _abstract_results(lowered, compiled, _devices(args))


def serialized(compiled: jax.stages.Compiled, results: Any) -> bytes:
    """A compiled program and its abstract results as bytes. One that came out of JAX's own cache may not be readable again."""
    return _dumps((serialize_executable.serialize(compiled)[0], results))


def loaded(stored: bytes, program: Program, args: tuple[Any, ...]) -> Made:
    """The inverse of `serialized`, on the devices of the arguments."""
    machine_code, results = _Unpickler(io.BytesIO(stored)).load()
    trees = jax.tree.structure((_dynamic(program, args), {})), jax.tree.structure(results)
    compiled: Future[jax.stages.Compiled] = Future()
    devices = _devices(args)
    compiled.set_result(serialize_executable.deserialize_and_load(machine_code, *trees, execution_devices=devices))
    return Made(compiled, lambda: results)


def _abstract_results(lowered: jax.stages.Lowered, compiled: Future, devices: list[jax.Device]) -> Any:
    """With their shardings, which on several devices are not known before it is compiled."""
    if len(devices) > 1:
        shardings = compiled.result().output_shardings
    else:
        shardings = jax.tree.map(lambda _: jax.sharding.SingleDeviceSharding(devices[0]), lowered.out_info)
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), lowered.out_info, shardings
    )


def _environment() -> str:
    flags = {line for line in cpu_info().splitlines() if line.startswith(("flags", "Features", "model name"))}
    settings = {name: value for name, value in jax.config.values.items() if "cache" not in name}
    devices = [(device.platform, device.device_kind) for device in jax.devices()]
    versions = source_digest(), flax.__version__, jax.__version__, jax.lib.__version__
    about = versions, platform.platform(), sorted(flags), devices, sorted(settings.items()), os.environ.get("XLA_FLAGS")
    return hashlib.sha256(repr(about).encode()).hexdigest()[:16]


def _delete_unused(folder: Path) -> None:
    for other in folder.iterdir():
        if other.stat().st_mtime < time.time() - _UNUSED:
            shutil.rmtree(other, ignore_errors=True)


def _dynamic(program: Program, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(arg for i, arg in enumerate(args) if i not in program.static_argnums)


def _devices(args: tuple[Any, ...]) -> list[jax.Device]:
    shardings = (getattr(x, "sharding", None) for x in jax.tree.leaves(args))
    meshes = [each.mesh.devices for each in shardings if isinstance(each, jax.sharding.NamedSharding)]
    return list(meshes[0].flat) if meshes else jax.devices()[:1]


def _abstract(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return jax.ShapeDtypeStruct(x.shape, x.dtype)
    if not isinstance(x, jax.Array):
        return x
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding if x.committed else None)


def _placed(x: Any) -> Any:
    """An array's shape, type, and what lies where: equal shardings may be written in several ways."""
    if not isinstance(x, _ARRAYS):
        return x
    divided = _divided(x)
    places: Any = divided.devices_indices_map(x.shape).items() if divided else ()
    where = sorted((device.id, str(index)) for device, index in places)
    return x.shape, str(x.dtype), getattr(x, "weak_type", False), where


def _key(x: Any) -> Hashable:
    return (x.shape, x.dtype, _divided(x)) if isinstance(x, _ARRAYS) else x


def _divided(x: Any) -> jax.sharding.Sharding | None:
    """The sharding of an array that is on several devices. On one it does not matter how that is written."""
    sharding = getattr(x, "sharding", None)
    return sharding if sharding is not None and sharding.num_devices > 1 else None


def _context() -> tuple[Any, ...]:
    return jax.sharding.get_mesh(), nn.get_logical_axis_rules()


def _dumps(value: Any) -> bytes:
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.id if isinstance(value, jax.Device) else None

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, nn.Module):
            return NotImplemented
        # Without the number that Flax gives each module.
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return functools.partial(type(value), **fields), ()


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, number: Any) -> Any:
        return next(device for device in jax.devices() if device.id == number)
