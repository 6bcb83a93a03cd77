"""Loss (5.4) and training metrics, as sums over real target tokens.

Sums are added up over microbatches, devices and batches, then divided once by the sum "tokens".

The backward pass is written out: softmax minus smoothed target, in the compute dtype, computed
together with the loss. Automatic differentiation would read and write float32 logits many times,
which takes a third of an update on a GPU.
Letters: B batch, T target length, N tokens, C chunks, D d_model, V rows of the output table.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from t2t_flax.config import Config, Loss
from t2t_flax.distributed.mesh import Params
from t2t_flax.models.dense import product_with_float32_result
from t2t_flax.models.dropout import Noise
from t2t_flax.models.transformer import Transformer

TOKEN_METRICS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {}
"""Extra metrics by name: (float32 logits [N, V], targets [N]) -> values [N].

The mean over real target tokens is logged as NAME after updates and as valid_NAME after
evaluations. Metrics get no gradient.
"""

Sums = dict[str, jax.Array]
"""float32 sums by name.

They are "loss" (smoothed) and "nll" in nats, "accuracy", the token metrics, and "tokens", the
number of real target tokens.
"""


def loss_sums(
    config: Config,
    model: Transformer,
    params: Params,
    batch: dict[str, jax.Array],
    noise: Noise | None,
) -> tuple[jax.Array, Sums]:
    """Return (smoothed loss, all other sums) of rows [B, L], in float32.

    The logits are those of `Transformer.logits`, computed in chunks from the table and the bias, so
    that they are never in memory at once. Change both.
    """
    hidden: Any = model.apply({"params": params}, batch, noise, method="hidden")
    if config.model.logit_scale == "rsqrt_d":
        hidden = (hidden.astype(jnp.float32) * config.model.d_model**-0.5).astype(hidden.dtype)
    sums, weights = _sums_and_weights(config, model, batch)
    table, bias = params[model.output_params[0]]["table"], params.get("output_bias")
    loss, others = output_sums(
        sums, hidden, table, bias, batch["target"], weights, chunk=model.logits_chunk
    )
    return loss, others | {"tokens": weights.sum()}


def validation_sums(
    config: Config, model: Transformer, params: Params, batch: dict[str, jax.Array]
) -> Sums:
    """Return all sums of rows [B, L], from float32 logits and without dropout.

    The smoothed loss is the sum "loss".
    """
    hidden: Any = model.apply({"params": params}, batch, method="hidden")
    logits: Any = functools.partial(model.apply, {"params": params}, method="logits")
    sums, weights = _sums_and_weights(config, model, batch)
    targets, chunk = batch["target"], model.logits_chunk
    loss, others = sums_without_gradient(sums, logits, hidden, targets, weights, chunk=chunk)
    return {"loss": loss} | others | {"tokens": weights.sum()}


def _sums_and_weights(config: Config, model: Transformer, batch: dict[str, jax.Array]):
    sums = functools.partial(token_sums, config=config.loss, vocab_size=model.target_vocab)
    return sums, (batch["target_segments"] > 0).astype(jnp.float32)


def zero_sums() -> tuple[jax.Array, Sums]:
    """Return the result of `loss_sums` for zero tokens."""
    return jnp.zeros(()), {
        name: jnp.zeros(()) for name in ("nll", "accuracy", *TOKEN_METRICS, "tokens")
    }


def means(sums: Sums) -> Sums:
    """Divide each sum by the number of real target tokens."""
    return {name: value / sums["tokens"] for name, value in sums.items() if name != "tokens"}


def perplexity(nll: float) -> float:
    """Return exp(nll), or a large finite number where that would overflow."""
    return math.exp(min(nll, 700.0))


def token_sums(
    logits: jax.Array, targets: jax.Array, weights: jax.Array, *, config: Loss, vocab_size: int
) -> tuple[jax.Array, Sums]:
    """Return (smoothed loss, all other sums except "tokens"), weighted by token.

    Only the loss has a gradient.

    Args:
        logits: [..., V].
        targets: ids [...].
        weights: [...], 1 for real target tokens and 0 for padding.
    """
    keys = config.label_smoothing, config.label_smoothing_over, vocab_size
    loss, sums = smoothed_cross_entropy(*keys, logits, targets, weights)
    if TOKEN_METRICS:
        real = jax.lax.stop_gradient(_masked(logits, vocab_size))
        sums |= {
            name: jnp.sum(metric(real, targets) * weights) for name, metric in TOKEN_METRICS.items()
        }
    return loss, sums


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def smoothed_cross_entropy(
    label_smoothing: float,
    label_smoothing_over: str,
    vocab_size: int,
    logits: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
) -> tuple[jax.Array, Sums]:
    """Return the summed smoothed loss in nats, and the sums "nll" and "accuracy".

    The smoothed target is (1 - eps) one-hot + eps uniform over the `vocab_size` real classes
    ("all"), or over all of them except the target ("non_target"). Logits beyond `vocab_size` get no
    mass. Statistics and results are float32. A token is accurate if its target has the highest
    logit, ties included. Only the smoothed loss has a gradient, in the dtype of the logits.

    Args:
        label_smoothing: eps.
        label_smoothing_over: "all" or "non_target".
        logits: [..., V].
        targets: ids [...].
        weights: [...], 0 or 1.
    """
    return _cross_entropy(
        label_smoothing, label_smoothing_over, vocab_size, logits, targets, weights
    )[0]


def _cross_entropy(eps, over, vocab_size, logits, targets, weights):
    statistics = functools.partial(
        jax.lax.platform_dependent, cuda=_statistics_in_one_pass, default=_statistics
    )
    highest, sum_exp, total = statistics(
        _masked(logits, vocab_size), _masked(logits, vocab_size, 0.0)
    )
    log_z, kind = highest + jnp.log(sum_exp), jnp.finfo(logits.dtype)
    gold = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0].astype(jnp.float32)
    nll = jnp.sum((log_z - gold) * weights)
    loss = nll
    if eps:
        total, classes = (total, vocab_size) if over == "all" else (total - gold, vocab_size - 1)
        loss = (1 - eps) * nll + eps * jnp.sum((log_z - total / classes) * weights)
    # XLA may skip the rounding of one of the two logits and not of the other. Equal logits would
    # then differ, so both are rounded here.
    gold, highest_logit = (
        jax.lax.reduce_precision(x, kind.nexp, kind.nmant) for x in (gold, highest)
    )
    sums = {"nll": nll, "accuracy": jnp.sum((gold >= highest_logit) * weights)}
    return (loss, sums), (logits, targets, weights, highest, sum_exp)


def _cross_entropy_gradient(eps, over, vocab_size, saved, cotangents):
    logits, targets, weights, highest, sum_exp = saved
    share = eps / (vocab_size if over == "all" else vocab_size - 1)  # of each other class
    of_target = 1 - eps + (share if over == "all" else 0.0)
    classes = jnp.arange(logits.shape[-1])
    smoothed = jnp.where(classes == targets[..., None], of_target, share)
    # On CPU, XLA computes these exponentials once for the loss and the gradient.
    exponentials = jnp.exp(_masked(logits, vocab_size) - highest[..., None])
    gradient = (exponentials / sum_exp[..., None] - smoothed) * (weights * cotangents[0])[..., None]
    if logits.shape[-1] > vocab_size:
        gradient = jnp.where(classes < vocab_size, gradient, 0.0)
    return gradient.astype(logits.dtype), None, None


smoothed_cross_entropy.defvjp(_cross_entropy, _cross_entropy_gradient)


def _statistics(logits: jax.Array, for_total: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Reduce [..., V] to max(logits), sum of exp(logits - max), sum of `for_total`."""
    highest = logits.max(-1)
    return highest, jnp.exp(logits - highest[..., None]).sum(-1), for_total.sum(-1)


def _statistics_in_one_pass(
    logits: jax.Array, for_total: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute `_statistics` in one pass over the logits in memory.

    On GPUs XLA would make three passes of `_statistics`.
    """

    def join(a, b):
        highest = jnp.maximum(a[0], b[0])
        return highest, a[1] * jnp.exp(a[0] - highest) + b[1] * jnp.exp(b[0] - highest), a[2] + b[2]

    starts = jnp.float32(jnp.finfo(jnp.float32).min), jnp.float32(0), jnp.float32(0)
    values = logits, jnp.ones_like(logits), for_total
    return jax.lax.reduce(values, starts, join, (logits.ndim - 1,))


def _masked(logits: jax.Array, vocab_size: int, value: float = -1e9) -> jax.Array:
    """Return float32 logits [..., V], with `value` beyond the vocabulary."""
    logits = logits.astype(jnp.float32)
    if logits.shape[-1] == vocab_size:
        return logits
    return jnp.where(jnp.arange(logits.shape[-1]) < vocab_size, logits, value)


SumFunction = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, Sums]]
"""Function (logits [N, V], targets [N], weights [N]) -> (loss sum, other sums).

Other sums get no gradient.
"""


def output_sums(
    sums: SumFunction,
    hidden_BxTxD: jax.Array,
    table_VxD: jax.Array,
    bias_V: jax.Array | None,
    targets_BxT: jax.Array,
    weights_BxT: jax.Array,
    *,
    chunk: int,
) -> tuple[jax.Array, Sums]:
    """Compute `sums` for the logits hidden table^T + bias (3.4), with a gradient.

    At a vocabulary of 37,000 the logits of 25,000 tokens take 1.9 GB in bfloat16, and their
    gradient as much. Here only the logits of one chunk exist at a time. The gradient is computed
    together with the loss, so logits are computed once. Products and logits have the dtype of
    `hidden`. The gradients of table and bias are summed in float32.

    Args:
        chunk: limit of tokens whose logits exist at the same time.
    """
    return _output_sums(
        sums, table_VxD, bias_V, *_split(chunk, hidden_BxTxD, targets_BxT, weights_BxT)
    )


def sums_without_gradient(
    sums: SumFunction,
    logits: Callable[[jax.Array], jax.Array],
    hidden_BxTxD,
    targets_BxT,
    weights_BxT,
    *,
    chunk: int,
) -> tuple[jax.Array, Sums]:
    """Compute `sums` for `logits(hidden [N, D])`, at most `chunk` tokens at a time."""

    def of_chunk(hidden, targets, weights):
        return sums(logits(hidden), targets, weights), None

    return _over_chunks(of_chunk, *_split(chunk, hidden_BxTxD, targets_BxT, weights_BxT))[0]


def _split(chunk: int, *arrays_BxT: jax.Array) -> list[jax.Array]:
    """Reshape arrays [B, T, ...] to [C, N, ...], where N is at most `chunk`.

    The last chunk is padded with zeros.
    """
    tokens = arrays_BxT[0].shape[0] * arrays_BxT[0].shape[1]
    # Chunks of equal size: 2,070 tokens in chunks of 512 would be padded to 2,560.
    chunk = min(chunk, 8 * math.ceil(tokens / math.ceil(tokens / chunk) / 8))

    def split(x):
        x = x.reshape(-1, *x.shape[2:])
        x = jnp.pad(x, [(0, -x.shape[0] % chunk)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(-1, chunk, *x.shape[1:])

    return [split(x) for x in arrays_BxT]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _output_sums(sums: SumFunction, table_VxD, bias_V, hidden_CxNxD, targets_CxN, weights_CxN):
    return _forward(sums, table_VxD, bias_V, hidden_CxNxD, targets_CxN, weights_CxN)[0]


def _forward(sums: SumFunction, table_VxD, bias_V, hidden_CxNxD, targets_CxN, weights_CxN):
    dtype = hidden_CxNxD.dtype
    table = table_VxD.astype(dtype)

    def chunk(hidden, targets, weights):
        logits = jnp.einsum("nd,vd->nv", hidden, table)
        logits = logits if bias_V is None else logits + bias_V.astype(dtype)
        loss, gradient, others = jax.vjp(lambda x: sums(x, targets, weights), logits, has_aux=True)
        (d_logits,) = gradient(jnp.ones_like(loss))
        d_hidden = jnp.einsum("nv,vd->nd", d_logits, table)
        d_table = product_with_float32_result("nv,nd->vd", d_logits, hidden, dtype)
        d_bias = None if bias_V is None else jnp.sum(d_logits, axis=0, dtype=jnp.float32)
        return ((loss, others), (d_table, d_bias)), d_hidden

    (out, d_output), d_hidden_CxNxD = _over_chunks(chunk, hidden_CxNxD, targets_CxN, weights_CxN)
    return out, (*d_output, d_hidden_CxNxD)


def _backward(sums: SumFunction, gradients, cotangents):
    return *jax.tree.map(lambda x: x * cotangents[0].astype(x.dtype), gradients), None, None


_output_sums.defvjp(_forward, _backward)


def _over_chunks(function, *chunks_CxN):
    """Call `function(chunk) -> (terms, outputs)` for all chunks.

    Terms are summed over the chunks, outputs are stacked.
    """
    if len(chunks_CxN[0]) == 1:
        terms, outputs = function(*(x[0] for x in chunks_CxN))
        return terms, jax.tree.map(lambda x: x[None], outputs)

    def body(total, chunk_N):
        terms, outputs = function(*chunk_N)
        return jax.tree.map(jnp.add, total, terms), outputs

    first = jax.eval_shape(function, *(x[0] for x in chunks_CxN))[0]
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), first)
    return jax.lax.scan(body, zero, chunks_CxN)
