"""Kernels on each device's rows and heads.

The compiler cannot divide a kernel, and it needs no exchange.
"""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
from jax.sharding import PartitionSpec


def on_each_device(
    kernel: Callable[..., jax.Array], q: jax.Array, k: jax.Array, v: jax.Array, *masks: jax.Array
) -> jax.Array:
    """Return `kernel(q, k, v, *masks)`, computed on each device's rows and heads.

    Shapes: [B, T, N, H] over [B, S, G, H].

    Args:
        masks: [B, ...] or [1, ...].
    """
    axes = _divided_axes()
    if not axes:
        return kernel(q, k, v, *masks)
    rows, heads = _axes()
    array = PartitionSpec(rows, None, heads, None)
    specs = (
        array,
        array,
        array,
        *(PartitionSpec(rows if len(x) == len(q) else None) for x in masks),
    )
    # Pallas calls do not say how results vary over devices.
    mapped = jax.shard_map(
        kernel, in_specs=specs, out_specs=array, axis_names=axes, check_vma=False
    )
    return mapped(q, k, v, *masks)


def divides(q: jax.Array, k: jax.Array) -> bool:
    """Return True if the mesh in use divides rows and heads evenly.

    They are the rows and heads of q [B, T, N, H] and k [B, S, G, H].
    """
    mesh, free = jax.sharding.get_abstract_mesh(), _divided_axes()
    rows, heads = (
        math.prod(
            mesh.shape[axis]
            for axis in ((axes,) if isinstance(axes, str) else axes or ())
            if axis in free
        )
        for axes in _axes()
    )
    return q.shape[0] % rows == q.shape[2] % heads == k.shape[2] % heads == 0


def _divided_axes() -> set[str]:
    """Return the mesh axes that the compiler divides.

    There are none on one device, or where a `shard_map` divides all.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return set() if mesh.empty or mesh.size == 1 else set(mesh.axis_names) - set(mesh.manual_axes)


def _axes() -> PartitionSpec:
    """Return the mesh axes of rows and heads."""
    return nn.logical_to_mesh_axes(("batch", "act_heads")) or PartitionSpec(None, None)
