"""A training metric: the entropy of the predicted distribution."""

import jax
import jax.numpy as jnp

from t2t_flax.config.schema import HIGHER_IS_BETTER
from t2t_flax.training.losses import TOKEN_METRICS


def entropy(logits_NxV, targets_N):
    """In nats, of each target token."""
    log_p = jax.nn.log_softmax(logits_NxV)
    return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)


TOKEN_METRICS["entropy"] = entropy
HIGHER_IS_BETTER["entropy"] = False
