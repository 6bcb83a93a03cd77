"""The loss (5.4) and the metrics of training, as sums over real target tokens.

Sums are added up over microbatches, devices and batches, then divided once by the sum "tokens".
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from t2t_flax.config import Loss


def accuracy(logits_BxTxV: jax.Array, targets_BxT: jax.Array) -> jax.Array:
    """1 where the target has the highest logit, ties included."""
    target = jnp.take_along_axis(logits_BxTxV, targets_BxT[..., None], axis=-1)[..., 0]
    return target >= logits_BxTxV.max(-1)


TOKEN_METRICS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {"accuracy": accuracy}
"""(logits [B, T, V], targets [B, T]) -> a value for each target token [B, T]. The mean over real target tokens is logged
as NAME after updates and as valid_NAME after evaluations. No gradient.
"""

Sums = dict[str, jax.Array]
"""float32 scalars: "loss" (smoothed) and "nll" in nats, the token metrics, and "tokens", the real target tokens."""


def zero_sums() -> Sums:
    """Return the sums of no tokens."""
    return {name: jnp.zeros(()) for name in ("loss", "nll", *TOKEN_METRICS, "tokens")}


def means(sums: Sums) -> Sums:
    """Each sum per real target token."""
    return {name: value / sums["tokens"] for name, value in sums.items() if name != "tokens"}


def token_sums(
    logits_BxTxV: jax.Array, targets_BxT: jax.Array, weights_BxT: jax.Array, *, config: Loss, vocab_size: int
) -> tuple[jax.Array, Sums]:
    """(smoothed loss, all other sums but "tokens") over tokens of weight 1."""
    loss, nll = smoothed_cross_entropy(
        logits_BxTxV,
        targets_BxT,
        weights_BxT,
        label_smoothing=config.label_smoothing,
        label_smoothing_over=config.label_smoothing_over,
        vocab_size=vocab_size,
    )
    logits = jax.lax.stop_gradient(logits_BxTxV.astype(jnp.float32))
    metrics = {name: jnp.sum(metric(logits, targets_BxT) * weights_BxT) for name, metric in TOKEN_METRICS.items()}
    return loss, {"nll": nll} | metrics


def smoothed_cross_entropy(
    logits_BxTxV: jax.Array,
    targets_BxT: jax.Array,
    weights_BxT: jax.Array,
    *,
    label_smoothing: float | jax.Array,
    vocab_size: int,
    label_smoothing_over: str = "all",
) -> tuple[jax.Array, jax.Array]:
    """(sum of the smoothed loss, sum of the negative log-likelihood), float32 scalars in nats.

    The smoothed target is (1 - eps) one-hot + eps uniform over the `vocab_size` real classes ("all"), or over all but the
    target ("non_target"); logits beyond `vocab_size` get no mass. Weights are 0 or 1.
    """
    logits = logits_BxTxV.astype(jnp.float32)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    gold = jnp.take_along_axis(logits, targets_BxT[..., None], axis=-1)[..., 0]
    nll = jnp.sum((log_z - gold) * weights_BxT)
    if isinstance(label_smoothing, float) and label_smoothing == 0.0:
        return nll, nll
    padded = logits.shape[-1] > vocab_size
    real = jnp.where(jnp.arange(logits.shape[-1]) < vocab_size, logits, 0.0) if padded else logits
    sum_logit = jnp.sum(real, axis=-1)
    classes = vocab_size
    if label_smoothing_over != "all":
        sum_logit, classes = sum_logit - gold, classes - 1
    uniform = jnp.sum((log_z - sum_logit / classes) * weights_BxT)
    return (1 - label_smoothing) * nll + label_smoothing * uniform, nll


SumFunction = Callable[[Any, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]
"""(params, hidden [N, D], targets [N], weights [N]) -> (loss sum, other sums, which get no gradient)."""


def chunked_sums(
    sums: SumFunction,
    params: Any,
    hidden_BxTxD: jax.Array,
    targets_BxT: jax.Array,
    weights_BxT: jax.Array,
    *,
    chunk: int,
):
    """`sums` over all tokens, at most `chunk` at once; the loss differentiates.

    At a vocabulary of 37,000 the logits of 25,000 tokens take 3.7 GB, several times over in the backward pass: here only
    those of a chunk exist. The gradient is computed beside the loss, so logits are computed once.
    """
    tokens = targets_BxT.size
    # Chunks of equal size: 2,070 tokens in chunks of 512 would be padded to 2,560.
    chunk = min(chunk, 8 * math.ceil(tokens / math.ceil(tokens / chunk) / 8))

    def split(x):
        x = x.reshape(-1, *x.shape[2:])
        x = jnp.pad(x, [(0, -x.shape[0] % chunk)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(-1, chunk, *x.shape[1:])

    return _sums(sums, params, *map(split, (hidden_BxTxD, targets_BxT, weights_BxT)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sums(sums: SumFunction, params, *chunks_CxN):
    total, _ = _scan(lambda chunk_N: (sums(params, *chunk_N), None), chunks_CxN)
    return total


def _forward(sums: SumFunction, params, *chunks_CxN):
    with_gradient = jax.value_and_grad(sums, argnums=(0, 1), has_aux=True)

    def chunk(chunk_N):
        out, (d_params, d_hidden) = with_gradient(params, *chunk_N)
        return (out, d_params), d_hidden

    (out, d_params), d_hidden_CxNxD = _scan(chunk, chunks_CxN)
    return out, (d_params, d_hidden_CxNxD)


def _backward(sums: SumFunction, gradients, cotangent):
    loss_cotangent, _ = cotangent
    return *jax.tree.map(lambda x: x * loss_cotangent.astype(x.dtype), gradients), None, None


_sums.defvjp(_forward, _backward)


def _scan(function, chunks_CxN):
    """`function(chunk) -> (terms, outputs)` over all chunks: terms are summed over chunks, outputs stacked."""

    def body(total, chunk_N):
        terms, outputs = function(chunk_N)
        return jax.tree.map(jnp.add, total, terms), outputs

    first = jax.eval_shape(function, jax.tree.map(lambda x: x[0], chunks_CxN))[0]
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), first)
    return jax.lax.scan(body, zero, chunks_CxN)
