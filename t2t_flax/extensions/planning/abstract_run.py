"""Train step compiled ahead of time for devices that need not exist here.

It is the same step as in a run.
"""

import dataclasses
import math
import re
import time
from typing import Any

import jax
from jax.experimental import topologies

from t2t_flax.config import Config
from t2t_flax.data.batching.rows import Shape
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.errors import UserError, first_line
from t2t_flax.extensions.planning import hlo, traffic
from t2t_flax.extensions.planning.chips import target_config
from t2t_flax.extensions.planning.collectives import DeviceLayout, collectives
from t2t_flax.extensions.planning.topology import Topology
from t2t_flax.models.transformer import Transformer
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.parametrization import Parametrization, parametrization_of
from t2t_flax.training.parts import TrainOptimizer, TrainState
from t2t_flax.training.precision import compiler_options
from t2t_flax.training.setup import batch_struct, program_memory
from t2t_flax.training.train_state import abstract_state, make_model
from t2t_flax.training.train_step import jit_train_step

# The two ways in which the TPU compiler reports that a program does not fit.
_REFUSAL = re.compile(
    r"(?:Used |\()([\d.]+)([KMG])(?: of |\) exceeds available HBM \()([\d.]+)([KMG])(?: hbm|\))",
    re.IGNORECASE,
)
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclasses.dataclass(frozen=True)
class AbstractRun:
    """A config on the devices of a topology.

    Holds mesh, model, optimizer, and the train state as shapes with shardings.
    """

    config: Config
    topology: Topology
    mesh: jax.sharding.Mesh
    model: Transformer
    parametrization: Parametrization
    tx: TrainOptimizer
    state: TrainState
    shardings: TrainState

    @property
    def shards(self) -> int:
        """Equal parts of the rows of a batch: one for each device along it."""
        return mesh_lib.batch_shards(self.mesh)


def abstract_run(config: Config, topology: Topology) -> AbstractRun:
    """Return the run of a config on a machine.

    train.precision = auto becomes the value on that machine: bfloat16 on TPU and GPU. Raises
    UserError, naming the key, if the mesh does not fit the machine or the model.
    """
    if config.train.precision == "auto" and topology.platform != "cpu":
        config = dataclasses.replace(
            config, train=dataclasses.replace(config.train, precision="bfloat16")
        )
    if topology.platform != "tpu" and topology.slices > 1 and not config.mesh.slices:
        config = dataclasses.replace(
            config, mesh=dataclasses.replace(config.mesh, slices=topology.slices)
        )
    mesh = mesh_lib.make_mesh(config.mesh, devices_of(topology))
    mesh_lib.check_divisibility(config, mesh)
    vocab, parametrization = config.data.vocab_size, parametrization_of(config)
    tx = make_optimizer(config, parametrization)
    model = make_model(config, vocab, vocab, platform=topology.platform)
    state, shardings = abstract_state(config, model, tx, parametrization, mesh)
    return AbstractRun(config, topology, mesh, model, parametrization, tx, state, shardings)


def devices_of(topology: Topology) -> list[jax.Device]:
    """Return devices to compile for, not to run on.

    Raises UserError if the TPU compiler does not know the shape.
    """
    if topology.chip is None:
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
        raise UserError(
            f"--topology={topology.name}: the TPU compiler does not accept {name}: {reason}"
        ) from None


def trace_train_step(run: AbstractRun, shape: Shape) -> jax.stages.Traced:
    """Return one update of this shape, traced for the devices of the run."""
    batch = batch_struct(shape.array_shape, mesh_lib.named(run.mesh, mesh_lib.MICRO_ROWS))
    step = jit_train_step(
        run.config, run.model, run.tx, run.parametrization, run.mesh, run.shardings
    )
    with mesh_lib.use(run.mesh):
        return step.trace(run.state, batch)


def compile_train_step(run: AbstractRun, shape: Shape) -> dict[str, Any]:
    """Return the compiler's results for one update of this shape.

    Keys: `fits`; `memory`: bytes on a device; `collectives`, `gradient_exchanges`: see
    `DeviceLayout`; `custom_calls`: kernels that XLA calls; `traffic` on GPUs, else None: see
    `gpu_traffic`; `estimate` on TPUs, else None: see `tpu_estimate`.

    A program that the TPU compiler refuses has only `fits`, `needed_bytes` and `available_bytes`.
    The GPU compiler refuses nothing: there, `fits` compares the peak.
    """
    traced, start = trace_train_step(run, shape), time.perf_counter()
    try:
        options = compiler_options(run.config) if run.topology.platform == "cpu" else None
        compiled = traced.lower().compile(options)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        used = _REFUSAL.search(str(error))
        needed, available = (
            (float(used[i]) * _UNITS[used[i + 1].upper()] for i in (1, 3)) if used else (None, None)
        )
        return {
            "fits": False,
            "needed_bytes": needed,
            "available_bytes": available,
            "reason": first_line(error),
        }
    seconds = time.perf_counter() - start
    memory = program_memory(compiled)
    assert memory is not None, "a compiler of a topology says how much memory a program takes"
    available = run.topology.chip.usable_bytes if run.topology.chip else math.inf
    if memory["peak"] > available:
        return {"fits": False, "needed_bytes": memory["peak"], "available_bytes": available}
    program, layout = (
        hlo.parse(_text(compiled, run.topology)),
        DeviceLayout.of(run.mesh, run.topology),
    )
    found, kernels = collectives(program, run.mesh.size), traffic.kernels(program)
    chip, platform = run.topology.chip, run.topology.platform
    return {
        "fits": True,
        "memory": memory,
        "collectives": layout.summary(found),
        "gradient_exchanges": layout.gradient_exchanges(found),
        "custom_calls": hlo.custom_calls(program),
        "traffic": traffic.gpu_traffic(kernels, chip) if chip and platform == "gpu" else None,
        "estimate": traffic.tpu_estimate(kernels, chip) if chip and platform == "tpu" else None,
        "compile_seconds": round(seconds, 1),
    }


def _text(compiled: jax.stages.Compiled, topology: Topology) -> str:
    """Return the optimized program.

    Raises UserError where jaxlib is older than the compiler's format.
    """
    try:
        return compiled.as_text() or ""
    except jax.errors.JaxRuntimeError as error:
        raise UserError(
            f"--topology={topology.name}: jax {jax.__version__} cannot read the program that this"
            f" compiler wrote ({first_line(error)}). Plan with jax 0.12 or later, which needs"
            " Python 3.12."
        ) from None
