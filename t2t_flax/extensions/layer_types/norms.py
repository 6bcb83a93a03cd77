"""Norms other than the paper's LayerNorm."""

import flax.linen as nn
import jax.numpy as jnp


def rms_norm(epsilon: float, dtype: jnp.dtype) -> nn.Module:
    """x / sqrt(mean(x^2) + epsilon) * scale over the last axis (Zhang and Sennrich 2019); float32 statistics."""
    scale = nn.with_logical_partitioning(nn.initializers.ones, ("norm",))
    return nn.RMSNorm(epsilon=epsilon, dtype=dtype, param_dtype=jnp.float32, scale_init=scale)
