"""The real train step and decode step, compiled ahead of time for devices that need not be there."""

import collections
import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import optax
from jax.experimental import topologies

from t2t_flax.config import Config
from t2t_flax.data.batching.batches import Shape
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.errors import UserError, first_line
from t2t_flax.extensions.planning import hlo
from t2t_flax.extensions.planning.chips import target_config
from t2t_flax.extensions.planning.collectives import collectives
from t2t_flax.extensions.planning.compile_search import compile_search
from t2t_flax.extensions.planning.device_layout import DeviceLayout
from t2t_flax.extensions.planning.topology import Topology
from t2t_flax.models.transformer import Transformer
from t2t_flax.monitoring.memory import program_memory
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.parameters import parameters_of
from t2t_flax.training.setup import batch_struct, compiler_options
from t2t_flax.training.train_state import TrainState, decoding_precision, init_state, make_model
from t2t_flax.training.train_step import make_train_step

# The two ways in which the TPU compiler reports that a program does not fit.
_REFUSAL = re.compile(
    r"(?:Used |\()([\d.]+)([KMG])(?: of |\) exceeds available HBM \()([\d.]+)([KMG])(?: hbm|\))", re.IGNORECASE
)
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
# The sizes that `Translator` uses for most sentences of WMT14, whose mean length is 27 tokens.
SOURCE_LENGTH, CACHE_LENGTH = 32, 64


@dataclasses.dataclass(frozen=True)
class AbstractRun:
    """A config on the devices of a topology: mesh, model, optimizer, and the train state as shapes with shardings."""

    config: Config
    topology: Topology
    mesh: jax.sharding.Mesh
    model: Transformer
    tx: optax.GradientTransformation
    state: TrainState
    shardings: TrainState

    @property
    def shards(self) -> int:
        """Devices along the batch."""
        return mesh_lib.batch_shards(self.mesh)


def abstract_run(config: Config, topology: Topology) -> AbstractRun:
    """Raises UserError, naming the key, where the mesh does not fit the machine or the model.

    train.precision = auto becomes what it will be there: bfloat16 on TPU and GPU.
    """
    if config.train.precision == "auto" and topology.platform != "cpu":
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, precision="bfloat16"))
    if topology.platform != "tpu" and topology.slices > 1 and not config.mesh.slices:
        config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, slices=topology.slices))
    mesh = mesh_lib.make_mesh(config.mesh, devices_of(topology))
    mesh_lib.check_divisibility(config, mesh)
    vocab, tx = config.data.vocab_size, make_optimizer(config)
    model = make_model(config, vocab, vocab, platform=topology.platform)
    return AbstractRun(config, topology, mesh, model, tx, *init_state(config, model, tx, mesh, abstract=True))


def devices_of(topology: Topology) -> list[jax.Device]:
    """Devices to compile for, not to run on. Raises UserError where the TPU compiler does not know the shape."""
    if topology.platform == "cpu":
        return jax.devices("cpu")[: topology.devices]
    if topology.platform == "gpu":
        shape = f"1x{topology.slices}x{topology.shape[0]}"  # partitions x hosts x GPUs of a host
        config = target_config(topology.chip)
        return topologies.get_topology_desc(
            topology.family, platform="cuda", target_config=config, topology=shape
        ).devices
    options: dict[str, Any] = {"chip_config_name": topology.chip.config_name}
    if topology.slices > 1:
        options["num_slices"] = topology.slices
    if topology.chips == topology.slices:
        options["chips_per_host_bounds"] = (1, 1, 1)
    name = f"{topology.family}:{'x'.join(map(str, topology.shape))}"
    try:
        return topologies.get_topology_desc(name, platform="tpu", **options).devices
    except Exception as error:
        reason = first_line(error)
        raise UserError(f"--topology={topology.name}: the TPU compiler does not accept {name}: {reason}") from None


def trace_train_step(run: AbstractRun, shape: Shape) -> jax.stages.Traced:
    """One update of this shape, traced for the devices of the run."""
    size = (shape.micro, shape.rows, shape.length)
    batch = batch_struct(size, mesh_lib.named(run.mesh, mesh_lib.MICRO_ROWS))
    step = make_train_step(run.config, run.model, run.tx, run.mesh, run.shardings)
    with mesh_lib.use(run.mesh):
        return step.trace(run.state, batch)


def compile_train_step(run: AbstractRun, shape: Shape) -> dict[str, Any]:
    """What the compiler says about one update of this shape, see `_facts`; and its matrix products by type."""
    traced = trace_train_step(run, shape)
    options = compiler_options(run.config) if run.topology.platform == "cpu" else None
    facts = _facts(run, lambda: traced.lower().compile(options))
    return facts | {"products": matrix_products(traced.jaxpr.jaxpr)}


def compile_decode_step(run: AbstractRun) -> dict[str, Any]:
    """What the compiler says about one target token of beam search, all sentences and beams at once; and
    `least_hbm_bytes`: weights and caches read once.
    """
    lengths = dict(source_length=SOURCE_LENGTH, length=CACHE_LENGTH)
    config, params = run.config.decode, parameters_of(run.config).of_model(run.state.params)
    vocab, platform = run.config.data.vocab_size, run.topology.platform
    precision = decoding_precision(run.config, platform)
    model = make_model(run.config, vocab, vocab, platform=platform, precision=precision)
    facts = _facts(run, lambda: compile_search(model, params, run.mesh, config, **lengths)[1])
    facts.pop("gradient_exchanges", None)
    if facts["fits"]:  # all arguments are weights, caches and a few numbers
        facts["least_hbm_bytes"] = sum(facts["argument_bytes"].values())
    return facts | {"source_length": SOURCE_LENGTH, "cache_length": CACHE_LENGTH}


def _facts(run: AbstractRun, compile_: Callable[[], jax.stages.Compiled]) -> dict[str, Any]:
    """`fits`; `memory`: bytes on a device; `argument_bytes`: of the arguments by type, without what layouts add;
    `hbm_bytes`: memory traffic of a run; `collectives`, `gradient_exchanges`: see `DeviceLayout`; `custom_calls`: kernels
    that XLA calls.
    A program that the TPU compiler refuses has only `fits`, `needed_bytes` and `available_bytes`. The GPU compiler refuses
    nothing: there, `fits` compares the peak.
    """
    start = time.perf_counter()
    try:
        compiled = compile_()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        used = _REFUSAL.search(str(error))
        needed, available = (float(used[i]) * _UNITS[used[i + 1].upper()] for i in (1, 3)) if used else (None, None)
        reason = first_line(error)
        return {"fits": False, "needed_bytes": needed, "available_bytes": available, "reason": reason}
    seconds = time.perf_counter() - start
    memory = program_memory(compiled)
    available = run.topology.chip.usable_bytes if run.topology.chip else math.inf
    if memory["peak"] > available:
        return {"fits": False, "needed_bytes": memory["peak"], "available_bytes": available}
    program = hlo.parse(compiled.as_text(), run.topology.platform)
    layout = DeviceLayout.of(run.mesh, run.topology)
    found = collectives(program, run.mesh.size)
    return {
        "fits": True,
        "memory": memory,
        "argument_bytes": _argument_bytes(compiled),
        "hbm_bytes": hlo.hbm_traffic(program),
        "collectives": layout.summary(found),
        "gradient_exchanges": layout.gradient_exchanges(found),
        "custom_calls": hlo.custom_calls(program),
        "compile_seconds": round(seconds, 1),
    }


def _argument_bytes(compiled: jax.stages.Compiled) -> dict[str, int]:
    arguments, structure = jax.tree.flatten(compiled.args_info)
    shardings = structure.flatten_up_to(compiled.input_shardings)  # None: the program has no use for the argument
    sizes: collections.Counter[str] = collections.Counter()
    for argument, sharding in zip(arguments, shardings, strict=True):
        count = math.prod(sharding.shard_shape(argument.shape)) if sharding else 0
        sizes[str(argument.dtype)] += count * argument.dtype.itemsize
    return dict(sizes)


def matrix_products(jaxpr: Any) -> list[dict[str, Any]]:
    """The matrix products of a traced program by type, most FLOPs first: `types` such as "bfloat16 x bfloat16 ->
    float32", `count`, and `flops` on all devices. A while loop counts once, a scan each of its turns.
    """
    sums: dict[str, dict[str, Any]] = {}
    for eqn, times, parts in _equations(jaxpr):
        if eqn.primitive.name != "dot_general":
            continue
        (left, right), (out,) = (v.aval for v in eqn.invars), (v.aval for v in eqn.outvars)
        types = f"{left.dtype} x {right.dtype} -> {out.dtype}"
        contracted = math.prod(left.shape[axis] for axis in eqn.params["dimension_numbers"][0][0])
        row = sums.setdefault(types, {"types": types, "count": 0, "flops": 0.0})
        row["count"] += times
        row["flops"] += 2.0 * out.size * contracted * times * parts
    return sorted(sums.values(), key=lambda row: -row["flops"])


def _equations(jaxpr: Any, times: int = 1, parts: int = 1) -> Iterator[tuple[Any, int, int]]:
    """(equation, how often it runs, on how many parts of its arrays each time: blocks of a kernel, devices)."""
    for eqn in jaxpr.eqns:
        yield eqn, times, parts
        params, name = eqn.params, eqn.primitive.name
        inner_times = times * (params["length"] if name == "scan" else 1)
        inner_parts = parts * (params["mesh"].size if name == "shard_map" else 1)
        inner_parts *= math.prod(params["grid_mapping"].grid) if name == "pallas_call" else 1
        for value in jax.tree.leaves(tuple(params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(value, "eqns"):  # a Jaxpr, or a ClosedJaxpr
                yield from _equations(getattr(value, "jaxpr", value), inner_times, inner_parts)
