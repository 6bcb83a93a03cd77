"""A loss over the vocabulary without the logits of all tokens: they exist, and are turned into gradients, chunk by chunk.

At a vocabulary of 37,000 the logits of 25,000 tokens alone take 3.7 GB, several times over in the backward pass.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# sums(params, hidden_NxD, targets_N, weights_N) -> (loss sum, aux): aux gets no gradient.
Sums = Callable[[Any, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]


def chunked_sums(
    sums: Sums,
    params: Any,
    hidden_BxTxD: jax.Array,
    targets_BxT: jax.Array,
    weights_BxT: jax.Array,
    *,
    chunk: int,
    shards: int = 1,
):
    """`sums` over all tokens, at most `chunk` of each of the `shards` of the batch axis at once; the loss differentiates.

    The gradient is made beside the loss, so the logits are computed once. The shards have an axis of their own: what
    each adds to the gradient of `params` is added up over the mesh once, after the last chunk.
    """

    def split(x):
        x = x.reshape(shards, -1, *x.shape[2:])
        x = jnp.pad(x, [(0, 0), (0, -x.shape[1] % chunk)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(shards, -1, chunk, *x.shape[2:]), 1, 0)

    return _sums(sums, params, *map(split, (hidden_BxTxD, targets_BxT, weights_BxT)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sums(sums: Sums, params, *chunks_CxSxN):
    of_shards = jax.vmap(sums, in_axes=(None, 0, 0, 0))
    total, _ = _scan(lambda chunk_SxN: (of_shards(params, *chunk_SxN), None), chunks_CxSxN)
    return total


def _forward(sums: Sums, params, *chunks_CxSxN):
    of_shards = jax.vmap(jax.value_and_grad(sums, argnums=(0, 1), has_aux=True), in_axes=(None, 0, 0, 0))

    def chunk(chunk_SxN):
        out, (d_params, d_hidden) = of_shards(params, *chunk_SxN)
        return (out, d_params), d_hidden

    (out, d_params), d_hidden_CxSxNxD = _scan(chunk, chunks_CxSxN)
    return out, (d_params, d_hidden_CxSxNxD)


def _backward(sums: Sums, kept, cotangent):
    loss_cotangent, _ = cotangent
    return *jax.tree.map(lambda x: x * loss_cotangent.astype(x.dtype), kept), None, None


_sums.defvjp(_forward, _backward)


def _scan(function, chunks_CxSxN):
    """`function(chunk) -> (to be summed over chunks and shards, to be kept of each chunk)` over all chunks."""

    def body(total, chunk_SxN):
        more, kept = function(chunk_SxN)
        return jax.tree.map(jnp.add, total, more), kept

    first = jax.eval_shape(function, jax.tree.map(lambda x: x[0], chunks_CxSxN))[0]
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), first)
    total, kept = jax.lax.scan(body, zero, chunks_CxSxN)
    return jax.tree.map(lambda x: x.sum(0), total), kept
