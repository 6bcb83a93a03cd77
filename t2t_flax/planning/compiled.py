"""The real train step and decode step, compiled ahead of time for devices that need not be there."""

import dataclasses
import re
import time
from typing import Any

import jax
from jax.experimental import topologies

from t2t_flax.config import Config
from t2t_flax.data.batching.batches import Shape
from t2t_flax.decoding.aot import compile_search
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.errors import UserError, first_line
from t2t_flax.planning import hlo
from t2t_flax.planning.collectives import collectives
from t2t_flax.planning.places import Places
from t2t_flax.planning.topology import Topology
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.setup import compiler_options
from t2t_flax.training.train_state import TrainState, init_state, make_model
from t2t_flax.training.train_step import make_train_step

# The two ways in which the TPU compiler says that a program does not fit.
_USED = re.compile(
    r"(?:Used |\()([\d.]+)([KMG])(?: of |\) exceeds available HBM \()([\d.]+)([KMG])(?: hbm|\))", re.IGNORECASE
)
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
# What `Translator` uses for most sentences of WMT14, whose mean is 27 tokens.
SOURCE_LENGTH, CACHE_LENGTH = 32, 64


@dataclasses.dataclass(frozen=True)
class Subject:
    """A config on the devices of a topology: mesh, model and the abstract state, its shardings with it."""

    config: Config
    topology: Topology
    mesh: jax.sharding.Mesh
    model: Any
    tx: Any
    abstract: TrainState
    shardings: TrainState

    @property
    def shards(self) -> int:
        return mesh_lib.batch_shards(self.mesh)

    @property
    def places(self) -> Places:
        return Places.of(self.mesh, self.topology)


def devices_of(topology: Topology) -> list[jax.Device]:
    """Its devices, to compile for and not to run on. Raises UserError where libtpu does not know the shape."""
    if topology.platform != "tpu":
        return jax.devices("cpu")[: topology.devices]
    told = {"chip_config_name": topology.chip.config_name}
    if topology.slices > 1:
        told["num_slices"] = topology.slices
    if topology.chips == topology.slices:
        told["chips_per_host_bounds"] = (1, 1, 1)
    name = f"{topology.family}:{'x'.join(map(str, topology.shape))}"
    try:
        return list(topologies.get_topology_desc(name, platform="tpu", **told).devices)
    except Exception as error:
        reason = first_line(error)
        raise UserError(f"--topology={topology.name}: the TPU compiler does not accept {name}: {reason}") from None


def assemble(config: Config, topology: Topology, vocab: tuple[int, int]) -> Subject:
    """Mesh and abstract state. Raises UserError, naming the key, where the mesh does not fit the machine or the model.

    train.precision = auto is what it will be there: bfloat16 on TPU and GPU.
    """
    if config.train.precision == "auto" and topology.platform != "cpu":
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, precision="bfloat16"))
    if topology.platform != "tpu" and topology.slices > 1 and not config.mesh.slices:
        config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, slices=topology.slices))
    mesh = mesh_lib.make_mesh(config.mesh, devices_of(topology))
    mesh_lib.check_divisibility(config, mesh)
    model, tx = make_model(config, *vocab), make_optimizer(config)
    return Subject(config, topology, mesh, model, tx, *init_state(config, model, tx, mesh, abstract=True))


def train_step(subject: Subject, shape: Shape) -> dict[str, Any]:
    """What the compiler says of one update of this shape; see `facts`."""
    size = (shape.micro, shape.rows, shape.length)
    sharding = mesh_lib.named(subject.mesh, mesh_lib.MICRO_ROWS)
    names = [side + part for side in ("source", "target") for part in ("", "_segments", "_positions")]
    batch = dict.fromkeys(names, jax.ShapeDtypeStruct(size, "int32", sharding=sharding))
    step = make_train_step(subject.config, subject.model, subject.tx, subject.mesh, subject.shardings)
    options = compiler_options(subject.config) if subject.topology.platform == "cpu" else None

    def compile_():
        with mesh_lib.use(subject.mesh):
            return step.lower(subject.abstract, batch).compile(options)

    return _guarded(compile_, subject)


def decode_step(subject: Subject) -> dict[str, Any]:
    """What the compiler says of one target token of beam search, all sentences and beams at once."""
    config, params = subject.config.decode, subject.abstract.params

    def compile_():
        lengths = dict(source_length=SOURCE_LENGTH, length=CACHE_LENGTH)
        return compile_search(subject.model, params, subject.mesh, config, **lengths)[1]

    return _guarded(compile_, subject) | {"source_length": SOURCE_LENGTH, "cache_length": CACHE_LENGTH}


def _guarded(compile_, subject: Subject) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        compiled = compile_()
    except jax.errors.JaxRuntimeError as error:
        used = _USED.search(str(error))
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        needed, there = (float(used[i]) * _UNITS[used[i + 1].upper()] for i in (1, 3)) if used else (None, None)
        return {"fits": False, "needed_bytes": needed, "available_bytes": there, "said": first_line(error)}
    return {"fits": True} | facts(compiled, subject) | {"compile_seconds": time.perf_counter() - start}


def facts(compiled: jax.stages.Compiled, subject: Subject) -> dict[str, Any]:
    """`memory`: bytes on each device. `hbm_bytes`: HBM traffic of a run. `collectives`: see `Places.summary`."""
    analysis = compiled.memory_analysis()
    part = {
        name: int(getattr(analysis, f"{name}_size_in_bytes", 0))
        for name in ("argument", "output", "alias", "temp", "generated_code")
    }
    # Results that take the place of arguments, and code, which lies in HBM too.
    part["peak"] = part["argument"] + part["output"] - part["alias"] + part["temp"] + part["generated_code"]
    program = hlo.parse(compiled.as_text())
    found = collectives(program, subject.mesh.size)
    return {"memory": part, "hbm_bytes": hlo.hbm_traffic(program), "collectives": subject.places.summary(found)}
