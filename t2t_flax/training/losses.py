"""Cross-entropy with label smoothing, as sums over real target tokens (5.4)."""

import jax
import jax.numpy as jnp


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

    The smoothed target is (1 - eps) one-hot + eps uniform over the `vocab_size` real classes ("all"), over all of them
    but the right one ("non_target"), or over those without class 0 ("non_target_non_pad"); rows of the logits beyond
    `vocab_size` take no mass. Weights are 0 or 1. Nothing is divided here: the caller divides once by the tokens of
    the whole update.
    """
    logits = logits_BxTxV.astype(jnp.float32)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    gold = jnp.take_along_axis(logits, targets_BxT[..., None], axis=-1)[..., 0]
    nll = jnp.sum((log_z - gold) * weights_BxT)
    if isinstance(label_smoothing, float) and label_smoothing == 0.0:
        return nll, nll
    real = jnp.arange(logits.shape[-1]) < vocab_size
    sum_logit = jnp.sum(jnp.where(real, logits, 0.0), axis=-1)
    classes = vocab_size
    if label_smoothing_over != "all":
        sum_logit, classes = sum_logit - gold, classes - 1
    if label_smoothing_over == "non_target_non_pad":
        sum_logit, classes = sum_logit - logits[..., 0], classes - 1
    uniform = jnp.sum((log_z - sum_logit / classes) * weights_BxT)
    return (1 - label_smoothing) * nll + label_smoothing * uniform, nll
