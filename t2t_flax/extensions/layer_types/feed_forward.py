"""Gated feed-forward networks."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.models.dense import Einsum
from t2t_flax.models.dropout import Dropout, Noise
from t2t_flax.registry import ACTIVATIONS


class GatedFeedForward(nn.Module):
    """(activation(x W) * x V) W2 without biases (Shazeer 2020): SwiGLU with swish, GEGLU with gelu. [..., D] -> [..., D]."""

    config: Model
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, noise: Noise | None) -> jax.Array:
        c = self.config
        up, down = ("...d,df->...f", (c.d_model, c.d_ff), ("embed", "mlp")), (c.d_ff, c.d_model)
        gate = Einsum(*up, dtype=self.dtype, name="gate")(x)
        hidden = ACTIVATIONS.load(c.activation)(gate) * Einsum(*up, dtype=self.dtype, name="up")(x)
        hidden = Dropout(c.dropout_ffn, name="hidden_dropout")(hidden, noise)
        return Einsum("...f,fd->...d", down, ("mlp", "embed"), dtype=self.dtype, name="down")(hidden)
