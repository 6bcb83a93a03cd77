"""Set up a run: build its parts, compile its programs, and prefetch its batches."""

import concurrent.futures
import contextlib
import functools
import itertools
import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
import psutil
from etils import epath

from t2t_flax.config import Config
from t2t_flax.config.data_keys import VALID_PREFIX
from t2t_flax.data.batching.batches import Batches, validation_batches
from t2t_flax.data.batching.rows import HostBatch, Shape
from t2t_flax.data.dataset import Corpus, batches_of
from t2t_flax.data.splits import split_source
from t2t_flax.data.token_store import TokenStore
from t2t_flax.data.workers import num_cores
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.distributed.mesh import Params, PyTree
from t2t_flax.errors import UserError
from t2t_flax.models.transformer import Transformer
from t2t_flax.tasks import task_of
from t2t_flax.training.losses import means, validation_sums
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.parametrization import model_part, parametrization_of
from t2t_flax.training.parts import DeviceBatch, TrainingSetup
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
    model = make_model(
        config, corpus.tokenizers.source.vocab_size, corpus.tokenizers.target.vocab_size
    )
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


def validation_loss(setup: TrainingSetup) -> Callable[..., dict[str, float]] | None:
    """Return the function (params, after_batch) -> losses of the validation sets.

    None if the config never asks for them.
    """
    if not (
        setup.corpus.valid and (setup.config.eval.every_steps or setup.config.eval.every_epochs)
    ):
        return None
    resident = setup.abstract.opt_state, setup.abstract.ema
    params = model_part(setup.parametrization, setup.abstract.params)
    programs: dict[tuple[int, ...], jax.stages.Compiled] = {}
    losses = {
        name: ValidationLoss(
            setup.config, setup.model, setup.mesh, params, store, name, resident, programs
        )
        for name, store in setup.corpus.valid.items()
    }
    return lambda params, after_batch: average_over_sets(
        {name: loss(params, after_batch) for name, loss in losses.items()}
    )


def average_over_sets(values: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Average {set: {metric: value}} over sets: {metric: mean, "metric/SET": value}.

    All sets have the same weight, whatever their size. Only named sets get a value of their own.
    """
    first, *_ = values.values()
    mean = {
        metric: float(np.mean([of_set[metric] for of_set in values.values()])) for metric in first
    }
    named = [
        (name.removeprefix(VALID_PREFIX), of_set)
        for name, of_set in values.items()
        if name != "valid"
    ]
    return mean | {
        f"{metric}/{name}": value for name, of_set in named for metric, value in of_set.items()
    }


class ValidationLoss:
    """Losses and token metrics over a whole store, without dropout.

    Programs are compiled once for each shape. Raises UserError, with the pair's place, where a pair
    is longer than the learned positions, and where a program does not fit in memory.

    Args:
        params: parameters, or their abstract shapes and shardings.
        split: name of the store, as in `split_source`.
        resident: other arrays on the devices during the evaluation, such as the optimizer state.
        programs: compiled programs by shape, shared with other stores of the run. New ones are
            added.
    """

    def __init__(
        self,
        config: Config,
        model: Transformer,
        mesh: jax.sharding.Mesh,
        params: Params,
        store: TokenStore,
        split: str = "valid",
        resident: PyTree = (),
        programs: dict[tuple[int, ...], jax.stages.Compiled] | None = None,
    ):
        self._mesh, self._config, self._store, self._split = mesh, config, store, split
        if model.config.position == "learned" and store.longest > model.config.max_positions:
            raise UserError(
                f"{self._longest()}; config.model.max_positions = {model.config.max_positions}"
                " learned positions end before it. Shorten that pair."
            )
        shards = mesh_lib.batch_shards(mesh)
        tokens = min(8192, config.data.microbatch_tokens * shards or 8192)
        shardings = jax.tree.map(lambda x: x.sharding, params)
        self._parts = list(validation_batches(store, config.data, shards=shards, tokens=tokens))
        self._programs = {} if programs is None else programs
        rows, whole = (mesh_lib.named(mesh, spec) for spec in (mesh_lib.ROWS, mesh_lib.REPLICATED))
        sums = functools.partial(validation_sums, config, model)
        function = jax.jit(sums, in_shardings=(shardings, rows), out_shardings=whole)

        def inputs(shape: Shape) -> tuple:
            return params, batch_struct((shape.rows, shape.length), rows)

        def describe(shape: Shape) -> tuple[str, str]:
            advice = "Lower config.data.microbatch_tokens."
            if shape.rows == shards and shape.length > config.data.pack_length:
                advice = f"{self._longest(shape.length)}: shorten that pair, or leave it out."
            return f"the loss of config.data.{split} for {shape}", advice

        new = [shape for shape, _ in self._parts if shape.array_shape not in self._programs]
        program = Program(function, inputs, describe)
        self._programs.update(compile_programs(program, new, mesh, resident=resident))

    def _longest(self, limit: int | None = None) -> str:
        """Describe the longest pair of the store.

        Args:
            limit: describe the longest pair of at most this many tokens.
        """
        longer = np.maximum(*self._store.lengths)
        i = int(np.argmax(np.where(longer <= limit, longer, 0) if limit else longer))
        source = split_source(task_of(self._config), self._split)
        kept = (number for number, row in enumerate(source.rows()) if not isinstance(row, str))
        where = source.where(next(itertools.islice(kept, i, None)))
        tokens = [int(x[i]) for x in self._store.lengths]
        return (
            f"config.data.{self._split}: {where} has {tokens[0]} source and {tokens[1]} target"
            " tokens"
        )

    def __call__(
        self, params: Params, after_batch: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Return loss, nll and the token metrics, per real target token of the store."""
        sharding = mesh_lib.named(self._mesh, mesh_lib.ROWS)
        sums = []
        for shape, batches in self._parts:
            for batch in batches():

                def rows(first, last, batch=batch):
                    return {k: x[0] for k, x in batch.rows(first, last).items()}

                arrays = mesh_lib.to_global(rows, (shape.rows, shape.length), sharding)
                sums.append(self._programs[shape.array_shape](params, arrays))
                after_batch()
        names = list(sums[0])
        total = np.sum([[float(each[name]) for name in names] for each in sums], axis=0)
        return {
            name: float(mean) for name, mean in means(dict(zip(names, total, strict=True))).items()
        }


_LEAST_AHEAD, _MOST_AHEAD, _AHEAD_BYTES = 3, 64, 256 << 20
"""Least and most batches to prefetch, and their bytes.

The least number is prefetched even if it has more bytes.
"""
_BYTES_PER_SLOT = 24
"""Bytes of int32 ids, segments and positions on two sides."""
_FILLING = 8
"""Most threads that fill arrays. NumPy mostly works without the interpreter lock."""


class Prefetcher:
    """Batches `first` to `last - 1`, prefetched as global arrays.

    A batch is a function of its number, so checkpoints do not store prefetched batches. A thread
    lays out windows of updates, or several processes if `num_workers` asks for them. Threads fill
    the arrays.
    """

    def __init__(
        self, batches: Batches, mesh: jax.sharding.Mesh, first: int, last: int, num_workers: int = 0
    ):
        """Start nothing yet: `with` starts the threads and processes.

        Args:
            num_workers: number of processes, see config.data.num_workers; also the least number of
                threads that fill arrays, up to 8.
        """
        self._batches, self._mesh, self._numbers = batches, mesh, iter(range(first, last))
        # CPU devices keep all cores of this host busy, for much longer than a layout takes.
        cores = 1 if mesh.devices.flat[0].platform == "cpu" else num_cores()
        self._processes = num_workers
        self._laying_out = concurrent.futures.ThreadPoolExecutor(1, "layouts")
        self._filling = concurrent.futures.ThreadPoolExecutor(
            min(_FILLING, max(cores, num_workers)), "batches"
        )
        self._prefetched: queue.SimpleQueue[concurrent.futures.Future[DeviceBatch]] = (
            queue.SimpleQueue()
        )
        self._taken: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """True for each batch that `next` took, at the end False.

        A thread starts a new batch for each True: the training thread must not wait for locks.
        """
        self._starting = threading.Thread(
            target=self._start_for_taken, name="batches ahead", daemon=True
        )

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.callback(self._filling.shutdown, cancel_futures=True)
            stack.callback(self._laying_out.shutdown, cancel_futures=True)
            stack.enter_context(self._batches.in_processes(self._processes))
            stack.callback(self._laying_out.shutdown, wait=False, cancel_futures=True)
            largest = (
                max(shape.size for shape in self._batches.shapes)
                * _BYTES_PER_SLOT
                // jax.process_count()
            )
            count = max(_LEAST_AHEAD, min(_MOST_AHEAD, _AHEAD_BYTES // largest))
            self._first, *_ = [self._start_next() for _ in range(count)]
            self._starting.start()
            stack.callback(self._starting.join)
            stack.callback(self._taken.put, False)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        self._stack.__exit__(*error)

    def wait(self) -> None:
        """Wait until the first batch is laid out.

        Where no plan was stored, all updates before it must be counted first.
        """
        if self._first:
            concurrent.futures.wait([self._first])

    def next(self) -> DeviceBatch:
        """Return the next batch. Raises the errors of the threads that make it."""
        batch = self._prefetched.get().result()
        self._taken.put(True)
        return batch

    def _start_for_taken(self) -> None:
        while self._taken.get():
            self._start_next()

    def _start_next(self) -> concurrent.futures.Future[HostBatch] | None:
        """Start the next batch and return the future of its layout; None after the last."""
        if (k := next(self._numbers, None)) is None:
            return None
        laid_out = self._laying_out.submit(self._batches.batch, k)
        self._prefetched.put(self._filling.submit(self._put, laid_out))
        return laid_out

    def _put(self, laid_out: concurrent.futures.Future[HostBatch]) -> DeviceBatch:
        return put_batch(laid_out.result(), self._mesh)


def put_batch(batch: HostBatch, mesh: jax.sharding.Mesh) -> DeviceBatch:
    """Put a batch on the mesh; each process builds only the rows of its devices."""
    size = micro, rows, length = batch.shape.micro, batch.shape.rows, batch.shape.length
    arrays = mesh_lib.to_global(batch.rows, size, mesh_lib.named(mesh, mesh_lib.MICRO_ROWS))
    return DeviceBatch(arrays, batch)
