"""An attention score, an activation and a norm."""

import flax.linen as nn
import jax.numpy as jnp

from t2t_flax.registry import ACTIVATIONS, NORMS, SCORES


class CosineScore(nn.Module):
    """cos(q, k) times a learned temperature in each head."""

    @nn.compact
    def __call__(self, q, k):
        init = nn.with_logical_partitioning(nn.initializers.constant(10.0), ("heads",))
        temperature = self.param("temperature", init, (q.shape[-2],), jnp.float32)
        q, k = (x / jnp.linalg.norm(x.astype(jnp.float32), axis=-1, keepdims=True) for x in (q, k))
        return jnp.einsum("...tnh,...snh->...nts", q, k) * temperature[:, None, None]


def relu_squared(x):
    return jnp.square(nn.relu(x))


def max_norm(epsilon, dtype):
    """x over its largest absolute value."""
    return lambda x: (x / (jnp.abs(x).max(-1, keepdims=True) + epsilon)).astype(dtype)


SCORES.add("cosine", "cosine:CosineScore")
ACTIVATIONS.add("relu_squared", "cosine:relu_squared")
NORMS.add("max_norm", "cosine:max_norm")
