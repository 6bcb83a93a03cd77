"""One mesh of axes (data, fsdp, tensor) and one table of rules from logical names to them.

The whole program is written in the global view: `jax.jit` with shardings (which used to be called pjit), no per-device
code. (n, 1, 1) is data parallelism, (1, n, 1) fully sharded parameters and optimizer, (1, 1, n) tensor parallelism; any
product of them is legal.
"""

import contextlib
import math

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from t2t_flax.config import Config
from t2t_flax.config import Mesh as MeshConfig
from t2t_flax.errors import UserError

AXES = ("data", "fsdp", "tensor")

# Tables are split by rows only: a table split by `embed` too makes XLA gather it whole for every lookup.
RULES = (
    ("batch", ("data", "fsdp")),
    ("vocab", ("fsdp", "tensor")),
    ("table", None),
    ("embed", "fsdp"),
    ("heads", "tensor"),
    ("mlp", "tensor"),
    ("kv", None),
    ("norm", None),
    ("position", None),
    ("length", None),
    ("act_embed", None),
)

REPLICATED = PartitionSpec()
ROWS = PartitionSpec(("data", "fsdp"))  # [B, ...]
MICRO_ROWS = PartitionSpec(None, ("data", "fsdp"))  # [A, B, ...]


def make_mesh(config: MeshConfig, devices: list | None = None) -> jax.sharding.Mesh:
    """The mesh of `config` over `devices` (default: all). One size may be -1: what remains.

    Raises UserError where the sizes do not multiply to the number of devices. The axes are Auto: flax's logical
    constraints do not work on the Explicit axes that `jax.make_mesh` would choose.
    """
    devices = jax.devices() if devices is None else devices
    shape = [config.data, config.fsdp, config.tensor]
    if -1 in shape:
        given = math.prod(n for n in shape if n != -1)
        shape[shape.index(-1)] = max(1, len(devices) // given)
    if math.prod(shape) != len(devices):
        raise UserError(
            f"config.mesh data x fsdp x tensor = {' x '.join(map(str, shape))} does not give the {len(devices)} "
            "devices there are: set one of them to -1."
        )
    return jax.make_mesh(tuple(shape), AXES, devices=devices, axis_types=(AxisType.Auto,) * 3)


def batch_shards(mesh: jax.sharding.Mesh) -> int:
    """Devices along the batch: a batch's rows are a multiple of it."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def check_divisibility(config: Config, mesh: jax.sharding.Mesh) -> None:
    """Raises UserError naming the key whose size the mesh cannot divide."""
    tensor, fsdp = mesh.shape["tensor"], mesh.shape["fsdp"]
    for name, size, by in [
        ("model.num_heads", config.model.num_heads, tensor),
        ("model.d_ff", config.model.d_ff, tensor),
        ("model.d_model", config.model.d_model, fsdp),
        ("model.vocab_multiple", config.model.vocab_multiple, fsdp * tensor),
    ]:
        if size % by:
            axis = "mesh.tensor" if by == tensor and name != "model.vocab_multiple" else "mesh.fsdp and mesh.tensor"
            raise UserError(f"config.{name} = {size} is not a multiple of {by}, which config.{axis} asks for.")


def shardings_of(boxed, mesh: jax.sharding.Mesh):
    """NamedShardings of an abstract tree whose leaves carry logical names (replicated where they carry none)."""
    return nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, RULES)


def named(mesh: jax.sharding.Mesh, spec: PartitionSpec) -> NamedSharding:
    """A sharding on the mesh."""
    return NamedSharding(mesh, spec)


def to_global(arrays: dict[str, np.ndarray], sharding: NamedSharding) -> dict[str, jax.Array]:
    """Host arrays (the same on every process) as global arrays; each device takes its own rows."""
    return {k: jax.make_array_from_callback(x.shape, sharding, lambda i, x=x: x[i]) for k, x in arrays.items()}


@contextlib.contextmanager
def use(mesh: jax.sharding.Mesh):
    """Context in which the model's logical constraints mean this mesh."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
        yield
