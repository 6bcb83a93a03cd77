"""One mesh of axes (data, fsdp, tensor) and one table of rules from logical names to them.

The whole program is written in the global view: `jax.jit` with shardings (which used to be called pjit), no per-device
code. Any product of these is legal:

    data parallelism        mesh.data=n      parameters and optimizer state on every device
    ZeRO-1                  mesh.fsdp=n      mesh.fsdp_shards=optimizer: the optimizer state divided
    FSDP (ZeRO-3)           mesh.fsdp=n      parameters and optimizer state divided
    tensor parallelism      mesh.tensor=n    heads, d_ff and vocabulary divided
    several slices          mesh.slices=n    the data axis runs over them, the others within one
"""

import contextlib
import functools
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
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

# What else than `RULES` holds for the parameters themselves, by mesh.fsdp_shards.
PARAMETER_RULES = {
    "all": {},
    "optimizer": {"vocab": "tensor", "embed": None},
}

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
    slices = slices_of(devices, config.slices)
    if shape[0] % len(slices):
        raise UserError(
            f"config.mesh.data = {shape[0]} is not a multiple of the {len(slices)} slices: only the data axis may run "
            "over the data-centre network, so fsdp x tensor must fit into one slice."
        )
    inner = [shape[0] // len(slices), *shape[1:]]
    grids = [mesh_utils.create_device_mesh(inner, each, allow_split_physical_axes=True) for each in slices]
    return jax.sharding.Mesh(np.concatenate(grids), AXES, axis_types=(AxisType.Auto,) * 3)


def slices_of(devices: list, count: int = 0) -> list[list]:
    """The devices of each slice: as they say themselves, or in `count` equal parts in their order. Raises UserError."""
    said: dict[int, list] = {}
    for device in devices:
        said.setdefault(getattr(device, "slice_index", None) or 0, []).append(device)
    if len(said) > 1 or not count:
        if count not in (0, len(said)):
            raise UserError(f"config.mesh.slices = {count}, but the devices are of {len(said)} slices: set it to 0.")
        return [said[index] for index in sorted(said)]
    if len(devices) % count:
        raise UserError(f"config.mesh.slices = {count} does not divide the {len(devices)} devices into equal parts.")
    size = len(devices) // count
    return [devices[i : i + size] for i in range(0, len(devices), size)]


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


def shardings_of(boxed, mesh: jax.sharding.Mesh, fsdp_shards: str = "all"):
    """NamedShardings of an abstract tree whose leaves carry logical names (replicated where they carry none)."""
    rules = tuple((dict(RULES) | PARAMETER_RULES[fsdp_shards]).items())
    return nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, rules)


def named(mesh: jax.sharding.Mesh, spec: PartitionSpec) -> NamedSharding:
    """A sharding on the mesh."""
    return NamedSharding(mesh, spec)


def to_global(
    rows: Callable[[int, int], dict[str, np.ndarray]], shape: tuple[int, ...], sharding: NamedSharding
) -> dict[str, jax.Array]:
    """Global arrays of `shape` [..., B, L], of which this process makes only the rows that its own devices hold.

    `rows(first, last)` gives the arrays of those rows, [..., last - first, L]; rows that follow each other are asked
    for at once.
    """
    axis = len(shape) - 2
    indices = sharding.addressable_devices_indices_map(shape).values()
    runs: list[tuple[int, int]] = []
    for first, last, _ in sorted({index[axis].indices(shape[axis]) for index in indices}):
        runs[-1:] = [(runs[-1][0], last)] if runs and runs[-1][1] == first else [*runs[-1:], (first, last)]
    made = {run: rows(*run) for run in runs}

    def piece(name: str, index: tuple[slice, ...]) -> np.ndarray:
        first, last, _ = index[axis].indices(shape[axis])
        run = next(run for run in runs if run[0] <= first and last <= run[1])
        return made[run][name][(slice(None),) * axis + (slice(first - run[0], last - run[0]),)]

    names = made[runs[0]]
    return {name: jax.make_array_from_callback(shape, sharding, functools.partial(piece, name)) for name in names}


def replicated(tree, mesh: jax.sharding.Mesh):
    """Global arrays as arrays that every process holds whole, and can read."""
    return _replicate(named(mesh, REPLICATED))(tree)


@functools.cache
def _replicate(sharding: NamedSharding):
    return jax.jit(lambda tree: tree, out_shardings=sharding)


@contextlib.contextmanager
def use(mesh: jax.sharding.Mesh):
    """Context in which the model's logical constraints mean this mesh."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
        yield
