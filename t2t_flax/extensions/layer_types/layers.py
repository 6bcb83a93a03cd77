"""Alternative sub-layers: gated feed-forward networks, RMSNorm, additive scores."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.models.dense import Einsum, product_with_float32_result
from t2t_flax.models.dropout import Dropout, Noise
from t2t_flax.registry import ACTIVATIONS


class GatedFeedForward(nn.Module):
    """(activation(x W) * x V) W2 without biases (Shazeer 2020), [..., D] -> [..., D].

    SwiGLU with swish, GEGLU with gelu.
    """

    config: Model
    dtype: jnp.dtype = jnp.dtype("float32")

    @nn.compact
    def __call__(self, x: jax.Array, noise: Noise | None) -> jax.Array:
        c = self.config
        up, down = ("...d,df->...f", (c.d_model, c.d_ff), ("embed", "mlp")), (c.d_ff, c.d_model)
        gate = Einsum(*up, dtype=self.dtype, name="gate")(x)
        hidden = ACTIVATIONS.load(c.activation)(gate) * Einsum(*up, dtype=self.dtype, name="up")(x)
        hidden = Dropout(c.dropout_ffn, name="hidden_dropout")(hidden, noise)
        return Einsum("...f,fd->...d", down, ("mlp", "embed"), dtype=self.dtype, name="down")(
            hidden
        )


def rms_norm(epsilon: float, dtype: jnp.dtype) -> nn.Module:
    """RMSNorm over the last axis (Zhang and Sennrich 2019).

    It is x / sqrt(mean(x^2) + epsilon) * scale. Statistics are float32.
    """
    scale = nn.with_logical_partitioning(nn.initializers.ones, ("norm",))
    return nn.RMSNorm(epsilon=epsilon, dtype=dtype, param_dtype=jnp.float32, scale_init=scale)


class AdditiveScore(nn.Module):
    """v^T tanh(q + k) in each head; slower and larger than products, as 3.2.1 says.

    q [..., T, N, H], k [..., S, N, H] -> float32 [..., N, T, S]. q and k are projections already:
    the network of Bahdanau et al. with its first matrix cut in two.
    """

    @nn.compact
    def __call__(self, q: jax.Array, k: jax.Array) -> jax.Array:
        init = nn.initializers.variance_scaling(1.0, "fan_in", "uniform", in_axis=1, out_axis=0)
        v: Any = self.param(
            "v", nn.with_logical_partitioning(init, ("heads", "kv")), q.shape[-2:], jnp.float32
        )
        hidden = jnp.tanh(q[..., :, None, :, :] + k[..., None, :, :, :])  # [..., T, S, N, H]
        return product_with_float32_result("...tsnh,nh->...nts", hidden, v, hidden.dtype)
