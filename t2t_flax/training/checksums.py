"""Checksums of arrays, independent of their sharding.

Orbax does not detect flipped bits, so each checkpoint stores these and restoring compares them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.models.dropout import mix

_UINT = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
_SMALL = 2**22
"""Elements in all that NumPy sums up sooner than a program is compiled."""


@jax.jit  # arrays of the same shape are traced once
def _checksum(x: jax.Array) -> jax.Array:
    """Sum of each element's bits times an odd weight of its index, modulo 2^32: any single changed element changes it."""
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    bits = jax.lax.bitcast_convert_type(x, _UINT[x.dtype.itemsize]).astype(jnp.uint32)
    index = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        index = index * np.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    return jnp.sum(bits * (mix(index) | np.uint32(1)), dtype=jnp.uint32)


@jax.jit
def _checksums(leaves: list[jax.Array]) -> list[jax.Array]:
    return [_checksum(x) for x in leaves]


def _checksum_on_host(x: np.ndarray) -> int:
    bits = x.reshape(-1).view(np.dtype(f"uint{8 * x.dtype.itemsize}")).astype(np.uint32)
    weights = mix(np.arange(x.size, dtype=np.uint32)) | np.uint32(1)  # type: ignore[arg-type]  # the same arithmetic
    return int(np.sum(bits * weights, dtype=np.uint32))


def checksums(tree: Any, *, once: bool = False) -> dict[str, int]:
    """The checksum of each leaf, by path. Leaves are arrays of at most 4 bytes per element, on any mesh. once: they are
    computed once, so that compiling a program for small arrays is not worth it.
    """
    paths, leaves = zip(*jax.tree.leaves_with_path(tree), strict=True) if jax.tree.leaves(tree) else ((), ())
    small = once and sum(x.size for x in leaves) <= _SMALL and all(x.is_fully_addressable for x in leaves)
    values = map(_checksum_on_host, jax.device_get(leaves)) if small else jax.device_get(_checksums(list(leaves)))
    return {jax.tree_util.keystr(path): int(value) for path, value in zip(paths, values, strict=True)}


def compile_checksums(state: Any) -> None:
    """Compiles the checksums of `state` (params, opt_state, ema) ahead of the first save."""
    for tree in (state.params, state.opt_state, state.ema):
        checksums(tree)
