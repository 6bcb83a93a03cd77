"""Exact top-k and log-sum-exp over a vocabulary, faster than `jax.lax.top_k` and `jax.nn.logsumexp`.

Both take the maximum of each group of neighbours first: the same reduction, which a compiled program does once.
"""

import jax
import jax.numpy as jnp

GROUPS = (64, 80, 96, 48, 112, 128)
"""Sizes of groups, multiples of a vector register: the first that divides the axis, so that its last part is not copied."""


def top_k(x: jax.Array, k: int, group: int = 0) -> tuple[jax.Array, jax.Array]:
    """The k largest values of the last axis, descending, and their int32 indices; ties go to the lower index.

    Equal to `jax.lax.top_k`, but searches only the k groups of `group` neighbours with the largest maxima: any element
    outside them is exceeded by the maximum of each of these groups. Groups are visited in index order, which preserves
    the order of ties. group: by default chosen from GROUPS.
    """
    group = group or _group_of(x)
    groups, rest = _in_groups(x, group)
    count = groups.shape[-2]
    if count <= 2 * k:
        return jax.lax.top_k(x, k)
    best = jnp.sort(jax.lax.top_k(jnp.max(groups, axis=-1), k)[1], axis=-1)
    values = jnp.take_along_axis(groups, best[..., None], axis=-2).reshape(*x.shape[:-1], k * group)
    index = (best[..., None] * group + jnp.arange(group)).reshape(values.shape)
    tail = jnp.broadcast_to(jnp.arange(count * group, x.shape[-1]), rest.shape)
    values, index = jnp.concatenate([values, rest], -1), jnp.concatenate([index, tail], -1)
    values, chosen = jax.lax.top_k(values, k)
    return values, jnp.take_along_axis(index, chosen, axis=-1).astype(jnp.int32)


def log_sum_exp(x: jax.Array, group: int = 0) -> jax.Array:
    """log(sum(exp(x))) over the last axis, which is kept with size 1, in x's type; finite for finite x. group: see `top_k`."""
    group = group or _group_of(x)
    groups, rest = _in_groups(x, group)
    if x.shape[-1] < group:
        return jax.nn.logsumexp(x, axis=-1, keepdims=True)
    largest = jnp.max(jnp.max(groups, axis=-1), axis=-1, keepdims=True)
    if rest.shape[-1]:
        largest = jnp.maximum(largest, jnp.max(rest, axis=-1, keepdims=True))
    sums = jnp.sum(jnp.exp(groups - largest[..., None]), axis=-1)
    total = jnp.sum(sums, axis=-1, keepdims=True) + jnp.sum(jnp.exp(rest - largest), axis=-1, keepdims=True)
    return jnp.log(total) + largest


def _group_of(x: jax.Array) -> int:
    return next((group for group in GROUPS if x.shape[-1] % group == 0), GROUPS[0])


def _in_groups(x: jax.Array, group: int) -> tuple[jax.Array, jax.Array]:
    """[..., V] as whole groups [..., V // group, group], and what is left over [..., V % group]."""
    whole = x.shape[-1] // group * group
    return x[..., :whole].reshape(*x.shape[:-1], whole // group, group), x[..., whole:]
