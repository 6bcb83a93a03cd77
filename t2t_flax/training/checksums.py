"""Shapes and checksums of arrays, to find and name differences."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.distributed.mesh import PyTree
from t2t_flax.models.dropout import mix

_SMALL = 2**22
"""Number of elements up to which NumPy is faster than compiling a program."""
_PART = 2**22
"""Elements that NumPy weighs at once; its temporary arrays are as large."""


def array_shapes(tree: PyTree) -> dict[str, list]:
    """Return [dtype, shape] of each leaf, by its path."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): [str(leaf.dtype), list(leaf.shape)]
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def shape_differences(stored: Mapping[str, list], wanted: Mapping[str, list]) -> str:
    """Name the first leaves in which two trees differ; "" if there are none."""

    def word(leaf: list | None) -> str:
        return f"{leaf[0]}{list(leaf[1])}" if leaf else "absent"

    differ = [
        f"{name} is {word(stored.get(name))} there, {word(wanted.get(name))} here"
        for name in dict.fromkeys((*wanted, *stored))
        if word(stored.get(name)) != word(wanted.get(name))
    ]
    return "; ".join(differ[:3] + [f"{len(differ) - 3} more differ"] * (len(differ) > 3))


def checksums(tree: PyTree) -> dict[str, int]:
    """Return the checksum of each leaf, by its path.

    The checksum is the sum, modulo 2^32, of each element's bits times an odd number that depends on
    the element's index. A change of one element always changes it; the mesh does not. Leaves have
    at most 4 bytes per element.
    """
    with_paths = jax.tree.leaves_with_path(tree)
    leaves = [leaf for _, leaf in with_paths]
    here = all(isinstance(x, np.ndarray) or x.is_fully_addressable for x in leaves)
    # A program would copy arrays of the host, all at once.
    if all(map(_on_host, leaves)):
        values = [_checksum_on_host(np.asarray(x)) for x in leaves]
    elif here and sum(x.size for x in leaves) <= _SMALL:
        values = [_checksum_on_host(x) for x in jax.device_get(leaves)]
    else:
        values = jax.device_get(_checksums(leaves))
    return {
        jax.tree_util.keystr(path): int(x) for (path, _), x in zip(with_paths, values, strict=True)
    }


def _on_host(x: np.ndarray | jax.Array) -> bool:
    """Return True if NumPy reads the array without a copy."""
    if isinstance(x, np.ndarray):
        return True
    devices = x.devices()
    return len(devices) == 1 and all(device.platform == "cpu" for device in devices)


@jax.jit
def _checksums(leaves: list[jax.Array]) -> list[jax.Array]:
    return [_checksum(x) for x in leaves]


@jax.jit  # arrays of the same shape are traced once
def _checksum(x: jax.Array) -> jax.Array:
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)
    index = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        index = index * np.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    return jnp.sum(bits * (mix(index) | np.uint32(1)), dtype=jnp.uint32)


def _checksum_on_host(x: np.ndarray) -> int:
    bits = x.reshape(-1).view(np.dtype(f"uint{8 * x.dtype.itemsize}"))
    total = 0
    for first in range(0, x.size, _PART):
        part = bits[first : first + _PART].astype(np.uint32)
        index = np.arange(first, first + part.size, dtype=np.uint32)
        weights = mix(index) | np.uint32(1)  # type: ignore[arg-type]  # same arithmetic
        total += int(np.sum(part * weights, dtype=np.uint32))
    return total % 2**32
