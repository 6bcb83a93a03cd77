"""Exact top-k over a vocabulary, several times faster than sorting all of it."""

import jax
import jax.numpy as jnp

GROUP = 128


def top_k(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The k largest values of the last axis and their indices, as `lax.top_k`: descending, lower index first in ties.

    The k groups of 128 with the largest maxima hold the k largest values, so that only they are sorted.
    """
    size = x.shape[-1]
    groups = -(-size // GROUP)
    if groups <= 2 * k:
        return jax.lax.top_k(x, k)
    padding = [(0, 0)] * (x.ndim - 1) + [(0, groups * GROUP - size)]
    grouped = jnp.pad(x, padding, constant_values=-jnp.inf).reshape(*x.shape[:-1], groups, GROUP)
    _, chosen = jax.lax.top_k(grouped.max(axis=-1), k)
    chosen = jnp.sort(chosen, axis=-1)  # in the order of the vocabulary, so that ties keep the lower index
    candidates = jnp.take_along_axis(grouped, chosen[..., None], axis=-2)
    values, place = jax.lax.top_k(candidates.reshape(*x.shape[:-1], k * GROUP), k)
    group = jnp.take_along_axis(chosen, place // GROUP, axis=-1)
    return values, group * GROUP + place % GROUP
