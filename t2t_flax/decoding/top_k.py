"""Exact top-k over a wide axis, several times faster than `jax.lax.top_k` for small k."""

import jax
import jax.numpy as jnp


def top_k(x: jax.Array, k: int, group: int = 128) -> tuple[jax.Array, jax.Array]:
    """The k largest values of the last axis, descending, and their int32 indices; ties go to the lower index.

    Equal to `jax.lax.top_k`, but searches only the k groups of `group` neighbours with the largest maxima: any element
    outside them is exceeded by the maximum of each of these groups. Groups are visited in index order, which preserves
    the order of ties.
    """
    count = x.shape[-1] // group
    if count <= 2 * k:
        return jax.lax.top_k(x, k)
    whole = count * group
    groups = x[..., :whole].reshape(*x.shape[:-1], count, group)
    best = jnp.sort(jax.lax.top_k(jnp.max(groups, axis=-1), k)[1], axis=-1)
    values = jnp.take_along_axis(groups, best[..., None], axis=-2).reshape(*x.shape[:-1], k * group)
    index = (best[..., None] * group + jnp.arange(group)).reshape(values.shape)
    tail = jnp.broadcast_to(jnp.arange(whole, x.shape[-1]), (*x.shape[:-1], x.shape[-1] - whole))
    values, index = jnp.concatenate([values, x[..., whole:]], -1), jnp.concatenate([index, tail], -1)
    values, chosen = jax.lax.top_k(values, k)
    return values, jnp.take_along_axis(index, chosen, axis=-1).astype(jnp.int32)
