"""Set up a run: build its parts, and compile its programs."""

import concurrent.futures
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
import psutil
from etils import epath

from t2t_flax.config import Config
from t2t_flax.data.batching.rows import Shape
from t2t_flax.data.dataset import Corpus, batches_of
from t2t_flax.data.workers import num_cores
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.distributed.mesh import PyTree
from t2t_flax.errors import UserError
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.parts import TrainingSetup
from t2t_flax.training.precision import compiler_options
from t2t_flax.training.train_state import abstract_state, make_model
from t2t_flax.training.train_step import jit_train_step


def set_up_training(
    config: Config, workdir: epath.Path, corpus: Corpus, devices: list | None = None
) -> TrainingSetup:
    """Build the parts of a run without initializing parameters.

    Raises UserError where the mesh does not fit the config.

    Args:
        devices: default: all.
    """
    mesh = mesh_lib.make_mesh(config.mesh, devices)
    mesh_lib.check_divisibility(config, mesh)
    model = make_model(config, *corpus.tokenizers.vocab_sizes)
    parametrization = parametrization_of(config)
    tx = make_optimizer(config, parametrization)
    abstract, shardings = abstract_state(config, model, tx, parametrization, mesh)
    batches = batches_of(config, corpus, shards=mesh_lib.batch_shards(mesh))
    return TrainingSetup(
        config, workdir, corpus, mesh, model, parametrization, tx, abstract, shardings, batches
    )


class Program(NamedTuple):
    """Function to be compiled for several batch shapes.

    Attributes:
        function: jitted function.
        inputs: shape -> abstract arguments.
        describe: shape -> (name, advice if the program does not fit in memory).
        options: XLA options.
    """

    function: jax.stages.Wrapped
    inputs: Callable[[Shape], tuple]
    describe: Callable[[Shape], tuple[str, str]]
    options: dict[str, str | bool] | None = None


def train_program(setup: TrainingSetup) -> Program:
    """Return the train step of a run as a `Program`."""
    parts = setup.config, setup.model, setup.tx, setup.parametrization, setup.mesh, setup.shardings
    rows = mesh_lib.named(setup.mesh, mesh_lib.MICRO_ROWS)

    def inputs(shape: Shape) -> tuple:
        return setup.abstract, batch_struct(shape.array_shape, rows)

    def describe(shape: Shape) -> tuple[str, str]:
        tokens = f"{shape.rows * shape.length} padded target tokens at once"
        return f"the train step for {shape}", f"Lower config.data.microbatch_tokens (now {tokens})."

    return Program(jit_train_step(*parts), inputs, describe, compiler_options(setup.config))


_MOST_AT_ONCE = 8
"""Limit of programs that compile at the same time: each needs host memory."""


def compile_programs(
    program: Program, shapes: Sequence[Shape], mesh: jax.sharding.Mesh, *, resident: PyTree = ()
) -> dict[tuple[int, ...], jax.stages.Compiled]:
    """Compile a program for each shape: {(microbatches, rows, length): program}.

    Programs are lowered one after the other, the largest first, and compiled on up to 8 cores. For
    GPUs they are also compiled one after the other, because XLA chooses kernels by running them on
    the device. Raises UserError where a program does not fit in memory, and starts no more.

    Args:
        resident: other arrays that stay on the devices.
    """
    at_once = 1 if mesh.devices.flat[0].platform == "gpu" else min(num_cores(), _MOST_AT_ONCE)
    available = device_memory()  # on CPUs, read before compilation takes some of it
    pool = concurrent.futures.ThreadPoolExecutor(at_once, "compile")
    compiled: dict[Shape, concurrent.futures.Future[jax.stages.Compiled]] = {}
    try:
        with mesh_lib.use(mesh):
            for shape in sorted(shapes, key=lambda shape: -shape.rows * shape.length):
                lowered = program.function.lower(*program.inputs(shape))
                compiled[shape] = pool.submit(lowered.compile, program.options)
        for shape, future in compiled.items():
            check_fits_in_memory(
                future.result(), available, *program.describe(shape), resident=resident
            )
        return {shape.array_shape: future.result() for shape, future in compiled.items()}
    finally:
        pool.shutdown(cancel_futures=True)


def device_memory() -> int | None:
    """Return the bytes that this process can use on one device; None = unknown.

    Each CPU device gets an equal share of the host's free memory.
    """
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return psutil.virtual_memory().available // jax.local_device_count()
    return (device.memory_stats() or {}).get("bytes_limit")


def program_memory(compiled: jax.stages.Compiled) -> dict[str, int] | None:
    """Return the bytes on one device by use; None where the compiler does not say.

    The uses are argument, output, alias (outputs that reuse arguments), temp and generated_code.
    `peak` is their total, in which reused bytes count once.
    """
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    names = "argument", "output", "alias", "temp", "generated_code"
    parts = {name: int(getattr(analysis, f"{name}_size_in_bytes", 0)) for name in names}
    return parts | {"peak": sum(parts.values()) - 2 * parts["alias"]}


def resident_bytes(tree: PyTree) -> int:
    """Return the bytes on one device of arrays, or of abstract arrays with shardings."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def check_fits_in_memory(
    compiled: jax.stages.Compiled,
    available: int | None,
    name: str,
    advice: str,
    *,
    resident: PyTree = (),
) -> None:
    """Raise UserError if a program needs more bytes than are available.

    Args:
        available: bytes on one device; None = unknown.
        name: name of the program for the message.
        advice: end of the message.
        resident: other arrays that stay on the devices.
    """
    needed = program_memory(compiled)
    total = needed["peak"] + resident_bytes(resident) if needed else 0
    if available and total > available:
        raise UserError(
            f"{name} needs {total / 2**30:.2f} GiB on each device, of which {available / 2**30:.2f}"
            f" GiB are available. {advice}"
        )


def batch_struct(
    size: tuple[int, ...], sharding: jax.sharding.NamedSharding
) -> dict[str, jax.ShapeDtypeStruct]:
    """Abstract arrays of a batch, each int32 of shape `size`."""
    struct = jax.ShapeDtypeStruct(size, np.int32, sharding=sharding)
    names = ("", "_segments", "_positions")
    return dict.fromkeys([side + name for side in ("source", "target") for name in names], struct)
