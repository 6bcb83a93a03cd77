"""Device mesh with axes (data, fsdp, tensor), and the shardings of arrays on it.

config.mesh.rules is the table for parameters. The whole program is written in the global view,
`jax.jit` with shardings (formerly pjit), without per-device code. These can be combined freely:

    data parallelism        mesh.data=n      parameters and optimizer state on every device
    ZeRO-1                  mesh.fsdp=n      mesh.fsdp_mode=zero1: the optimizer state is sharded
    FSDP (ZeRO-3)           mesh.fsdp=n      parameters and optimizer state are sharded
    tensor parallelism      mesh.tensor=n    heads, d_ff and vocabulary are sharded
    several slices          mesh.slices=n    the data axis crosses slices, the others lie within one
"""

import contextlib
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from t2t_flax.config import Config
from t2t_flax.config import Mesh as MeshConfig
from t2t_flax.config.schema import MESH_AXES
from t2t_flax.errors import UserError

PyTree: TypeAlias = Any
"""Tree of arrays, of their shapes, or of shardings."""
Params: TypeAlias = Mapping[str, Any]
"""Tree of dicts with the parameters of a model or of a run."""
# Rules for the activations that the model constrains; config.mesh.rules is for parameters.
ACTIVATION_RULES = (
    ("batch", ("data", "fsdp")),
    ("length", None),
    ("act_embed", None),
    ("act_heads", "tensor"),
)

REPLICATED = PartitionSpec()
ROWS = PartitionSpec(("data", "fsdp"))  # [B, ...]
MICRO_ROWS = PartitionSpec(None, ("data", "fsdp"))  # [A, B, ...]


def make_mesh(config: MeshConfig, devices: list | None = None) -> jax.sharding.Mesh:
    """Return the mesh of `config` over `devices` (default: all).

    One size may be -1 for the remaining devices. Raises UserError if the sizes do not multiply to
    the number of devices. The axes are Auto: flax's logical constraints do not work on the Explicit
    axes that `jax.make_mesh` would choose.
    """
    devices = jax.devices() if devices is None else devices
    shape = mesh_shape(config, len(devices))
    if math.prod(shape) != len(devices):
        raise UserError(
            f"config.mesh data x fsdp x tensor = {' x '.join(map(str, shape))} does not give the"
            f" {len(devices)} devices there are: set data to -1, and fsdp and tensor to sizes whose"
            " product divides them."
        )
    slices = slices_of(devices, config.slices)
    if shape[0] % len(slices):
        raise UserError(
            f"config.mesh.data = {shape[0]} is not a multiple of the {len(slices)} slices: only the"
            " data axis may run over the data-centre network, so fsdp x tensor must fit into one"
            " slice."
        )
    inner = [shape[0] // len(slices), *shape[1:]]
    grids = [
        mesh_utils.create_device_mesh(inner, each, allow_split_physical_axes=True)
        for each in slices
    ]
    return jax.sharding.Mesh(np.concatenate(grids), MESH_AXES, axis_types=(AxisType.Auto,) * 3)


def mesh_shape(config: MeshConfig, devices: int) -> list[int]:
    """Return the sizes of the mesh axes; a size of -1 takes the remaining devices."""
    shape = [config.data, config.fsdp, config.tensor]
    if -1 in shape:
        given = math.prod(n for n in shape if n != -1)
        shape[shape.index(-1)] = max(1, devices // given)
    return shape


def slices_of(devices: list, count: int = 0) -> list[list]:
    """Return the devices of each slice.

    Devices tell their slices. If they do not, `count` divides them into equal parts in their order.
    Raises UserError if `count` does not fit.
    """
    said: dict[int, list] = {}
    for device in devices:
        said.setdefault(getattr(device, "slice_index", None) or 0, []).append(device)
    if len(said) > 1 or not count:
        if count not in (0, len(said)):
            raise UserError(
                f"config.mesh.slices = {count}, but the devices are of {len(said)} slices: set it"
                " to 0."
            )
        return [said[index] for index in sorted(said)]
    if len(devices) % count:
        raise UserError(
            f"config.mesh.slices = {count} does not divide the {len(devices)} devices into equal"
            " parts."
        )
    size = len(devices) // count
    return [devices[i : i + size] for i in range(0, len(devices), size)]


def batch_shards(mesh: jax.sharding.Mesh) -> int:
    """Return the number of shards of the batch axis.

    The number of rows in a batch is a multiple of it.
    """
    return mesh.shape["data"] * mesh.shape["fsdp"]


def check_divisibility(config: Config, mesh: jax.sharding.Mesh) -> None:
    """Raise UserError naming the key whose size the mesh cannot divide."""
    m, keys = config.model, {
        "heads": "num_heads", "kv_heads": "num_kv_heads", "mlp": "d_ff", "embed": "d_model",
        "table": "d_model", "norm": "d_model", "vocab": "pad_vocab_to_multiple",
        "position": "max_positions",
    }  # fmt: skip
    widths = dict(zip(("model.d_k", "model.d_v"), m.head_widths, strict=True))
    for logical, axes in parameter_rules(config.mesh).items():
        by = math.prod(mesh.shape[axis] for axis in axes)
        sizes = {f"model.{keys[logical]}": getattr(m, keys[logical])} if logical in keys else widths
        for name, size in sizes.items():
            if by > 1 and size % by:
                asking = " and ".join(f"mesh.{axis}" for axis in axes if mesh.shape[axis] > 1)
                raise UserError(
                    f"config.{name} = {size} is not a multiple of {by}, which config.{asking} asks"
                    f" for. (`{logical}=` in config.mesh.rules leaves it whole on every device.)"
                )


def parameter_rules(config: MeshConfig, *, optimizer: bool = False) -> dict[str, tuple[str, ...]]:
    """Return the mesh axes of each logical axis.

    Args:
        optimizer: True for the optimizer state, False for the parameters.
    """
    rules = config.sharding
    if optimizer or config.fsdp_mode == "full":
        return rules
    return {name: tuple(axis for axis in axes if axis != "fsdp") for name, axes in rules.items()}


def shardings_of(boxed, mesh: jax.sharding.Mesh, rules: dict[str, tuple[str, ...]]):
    """Return NamedShardings for an abstract tree whose leaves carry logical names.

    Leaves without names are replicated.
    """
    table = tuple((name, axes or None) for name, axes in rules.items())
    return nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, table)


def named(mesh: jax.sharding.Mesh, spec: PartitionSpec) -> NamedSharding:
    return NamedSharding(mesh, spec)


def to_global(
    rows: Callable[[int, int], dict[str, np.ndarray]],
    shape: tuple[int, ...],
    sharding: NamedSharding,
) -> dict[str, jax.Array]:
    """Make global arrays of `shape` [..., B, L].

    This process makes only the rows that its own devices hold.

    Args:
        rows: (first, last) -> arrays of these rows, [..., last - first, L]. Adjacent rows come from
            one call.
    """
    axis = len(shape) - 2
    indices = sharding.addressable_devices_indices_map(shape).values()
    runs: list[tuple[int, int]] = []
    for first, last, _ in sorted({index[axis].indices(shape[axis]) for index in indices if index}):
        runs[-1:] = (
            [(runs[-1][0], last)] if runs and runs[-1][1] == first else [*runs[-1:], (first, last)]
        )
    arrays = {run: rows(*run) for run in runs}

    def piece(name: str, index: tuple[slice, ...]) -> np.ndarray:
        first, last, _ = index[axis].indices(shape[axis])
        run = next(run for run in runs if run[0] <= first and last <= run[1])
        return arrays[run][name][(slice(None),) * axis + (slice(first - run[0], last - run[0]),)]

    names = arrays[runs[0]]
    return {
        name: jax.make_array_from_callback(shape, sharding, functools.partial(piece, name))
        for name in names
    }


def replicated(tree, mesh: jax.sharding.Mesh):
    """Return arrays that this process can read.

    They are replicated if other processes hold parts of them, else unchanged.
    """
    if all(x.is_fully_addressable for x in jax.tree.leaves(tree)):
        return tree
    return _replicate(named(mesh, REPLICATED))(tree)


@functools.cache
def _replicate(sharding: NamedSharding):
    return jax.jit(lambda tree: tree, out_shardings=sharding)


@contextlib.contextmanager
def use(mesh: jax.sharding.Mesh):
    """Context in which the model's logical sharding constraints refer to this mesh."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(ACTIVATION_RULES):
        yield


(_AXES,) = ROWS
# Within a shard the rows are not divided; `over_shards` adds the axis that is divided.
_RULES = tuple((name, None if name == "batch" else axes) for name, axes in ACTIVATION_RULES)


def over_shards(function: Callable[..., PyTree], shards: int) -> Callable[..., PyTree]:
    """Return a function that applies `function` to each shard's own rows.

    It maps (params, rows [B, ...]) to a tree of arrays [shards, ...]. Each shard reads the device's
    copy of the parameters; with FSDP, the gathered copy. With one shard the result is `function`
    itself, and its results have no axis of shards.
    """
    if shards == 1:
        return function

    def on_shard(params, rows):
        with nn.logical_axis_rules(_RULES):
            return jax.tree.map(lambda x: x[None], function(params, rows))

    specs = REPLICATED, ROWS
    return jax.shard_map(
        on_shard, in_specs=specs, out_specs=ROWS, axis_names=set(_AXES), check_vma=False
    )


def zeros_of_shards(tree: PyTree, shards: int) -> PyTree:
    """Return zeros like the arrays [...] of `tree` for each shard: [shards, ...].

    With one shard they are [...].
    """
    if shards == 1:
        return jax.tree.map(jnp.zeros_like, tree)
    return jax.tree.map(lambda x: _divided(jnp.zeros((shards, *x.shape), x.dtype)), tree)


def sum_over_shards(
    x_SxN: jax.Array, dtype: jnp.dtype, sharding: NamedSharding | None = None
) -> jax.Array:
    """Return the sum [...] of float32 arrays [shards, ...].

    Each array is rounded once to `dtype`. The arrays travel and are summed in this dtype.

    Args:
        sharding: sharding of the sum. If it divides the sum over the batch's axes, each device
            receives its part alone.
    """
    # jnp.sum would convert to float32 again before the sum, and float32 would travel.
    total = jax.lax.reduce(x_SxN.astype(dtype), jnp.zeros((), dtype), jax.lax.add, (0,))
    total = total if sharding is None else jax.lax.with_sharding_constraint(total, sharding)
    return total.astype(x_SxN.dtype)


def sum_gradients(grads: PyTree, dtype: jnp.dtype, shardings: PyTree = None) -> PyTree:
    """Sum gradients [shards, ...] over shards.

    Matrices travel in `dtype`, vectors in float32.

    Args:
        shardings: shardings of the sums.
    """

    def total(g, sharding=None):
        return sum_over_shards(g, dtype if g.ndim > 2 else g.dtype, sharding)

    return jax.tree.map(total, grads, *(() if shardings is None else (shardings,)))


def _divided(x_SxN: jax.Array) -> jax.Array:
    free = (PartitionSpec.UNCONSTRAINED,) * (x_SxN.ndim - 1)
    return jax.lax.with_sharding_constraint(x_SxN, PartitionSpec(_AXES, *free))
