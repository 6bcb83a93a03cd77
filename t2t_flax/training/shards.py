"""Shards of the batch: each device works on its own rows, and the gradients of all are summed once an update.

Written in the global view: an array has a first axis of shards that is sharded over the mesh, so what `over_shards` maps
over it needs no exchange, whatever the compiler does. Only `sum_over_shards` exchanges.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from t2t_flax.distributed import mesh as mesh_lib

(_AXES,) = mesh_lib.ROWS
# Within a shard its rows are whole; `over_shards` adds the axis that is divided.
_RULES = tuple((name, None if name == "batch" else axes) for name, axes in mesh_lib.ACTIVATION_RULES)


def over_shards(function: Callable[..., Any], shards: int) -> Callable[..., Any]:
    """`function(params, rows)` of each shard's own rows: (params, rows [B, ...]) -> a tree of arrays [shards, ...].

    Each shard reads its own copy of the parameters: the device's own, which takes no memory, or with FSDP the gathered one.
    With one shard it is `function`, and results have no axis of shards.
    """
    if shards == 1:
        return function

    def of_shard(params, rows):
        with nn.logical_axis_rules(_RULES):
            return function(params, rows)

    def mapped(params, rows):
        copies = jax.tree.map(lambda x: _divided(jnp.broadcast_to(x, (shards, *x.shape))), params)
        rows = jax.tree.map(lambda x: _divided(x.reshape(shards, -1, *x.shape[1:])), rows)
        return jax.vmap(of_shard, spmd_axis_name=_AXES)(copies, rows)

    return mapped


def zeros_of_shards(tree: Any, shards: int) -> Any:
    """Zeros like the arrays [...] of `tree`, for each shard: [shards, ...], or [...] with one shard."""
    if shards == 1:
        return jax.tree.map(jnp.zeros_like, tree)
    return jax.tree.map(lambda x: _divided(jnp.zeros((shards, *x.shape), x.dtype)), tree)


def sum_over_shards(x_SxN: jax.Array, dtype: jnp.dtype, sharding: NamedSharding | None = None) -> jax.Array:
    """The sum [...] of float32 arrays [shards, ...]: each is rounded once to `dtype`, in which they travel and are summed.

    `sharding`: of the sum. Where it divides the sum over the batch's axes, each device receives its part alone.
    """
    # jnp.sum would convert to float32 again before the sum, and float32 would travel.
    total = jax.lax.reduce(x_SxN.astype(dtype), jnp.zeros((), dtype), jax.lax.add, (0,))
    total = total if sharding is None else jax.lax.with_sharding_constraint(total, sharding)
    return total.astype(x_SxN.dtype)


def _divided(x_SxN: jax.Array) -> jax.Array:
    free = (PartitionSpec.UNCONSTRAINED,) * (x_SxN.ndim - 1)
    return jax.lax.with_sharding_constraint(x_SxN, PartitionSpec(_AXES, *free))
