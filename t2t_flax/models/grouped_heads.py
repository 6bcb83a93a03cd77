"""Heads of queries that share heads of keys and values (model.num_kv_heads; Ainslie et al. 2023). N heads of queries, G of
keys: each of these serves N / G heads of queries that follow each other. With G = N nothing is done.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def scores_of_groups(score: Callable[[jax.Array, jax.Array], jax.Array], q: jax.Array, k: jax.Array) -> jax.Array:
    """`score` of q [..., T, N, H] over k [..., S, G, H]: [..., N, T, S]."""
    groups, queries = q.shape[-2] // k.shape[-2], q.shape[-3]
    scores = score(_join_groups(q, groups), k)
    return scores.reshape(*scores.shape[:-3], q.shape[-2], queries, scores.shape[-1])


def weighted_values(weights: jax.Array, v: jax.Array) -> jax.Array:
    """weights [..., N, T, S] times v [..., S, G, H]: [..., T, N, H]."""
    groups, queries = weights.shape[-3] // v.shape[-2], weights.shape[-2]
    weights = weights.reshape(*weights.shape[:-3], v.shape[-2], groups * queries, weights.shape[-1])
    return _split_groups(jnp.moveaxis(jnp.einsum("...nts,...snh->...nth", weights, v), -2, -3), groups)


def _join_groups(q: jax.Array, groups: int) -> jax.Array:
    """[..., T, N, H] -> [..., groups * T, N / groups, H]: the queries of heads that share a key, as one head's."""
    if groups == 1:
        return q
    *batch, length, heads, width = q.shape
    q = jnp.moveaxis(q.reshape(*batch, length, heads // groups, groups, width), -2, -4)
    return q.reshape(*batch, groups * length, heads // groups, width)


def _split_groups(x: jax.Array, groups: int) -> jax.Array:
    """The inverse of `_join_groups`."""
    if groups == 1:
        return x
    *batch, length, heads, width = x.shape
    x = jnp.moveaxis(x.reshape(*batch, groups, length // groups, heads, width), -4, -2)
    return x.reshape(*batch, length // groups, heads * groups, width)
