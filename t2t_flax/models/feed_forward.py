"""Position-wise feed-forward networks (3.3)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.models.dense import Einsum
from t2t_flax.models.dropout import Dropout, Noise
from t2t_flax.registry import ACTIVATIONS, FEED_FORWARDS


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 (3.3), or another activation in place of max(0, .). x [..., D] -> [..., D]."""

    config: Model
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, noise: Noise | None) -> jax.Array:
        c = self.config
        up = Einsum("...d,df->...f", (c.d_model, c.d_ff), ("embed", "mlp"), use_bias=True, dtype=self.dtype)
        down = Einsum("...f,fd->...d", (c.d_ff, c.d_model), ("mlp", "embed"), use_bias=True, dtype=self.dtype)
        hidden = ACTIVATIONS.load(c.activation)(up(x))
        return down(Dropout(c.dropout_ffn, name="hidden_dropout")(hidden, noise))


def make_feed_forward(config: Model, dtype: jnp.dtype) -> nn.Module:
    """Returns the feed-forward sub-layer of a layer."""
    return FEED_FORWARDS.load(config.feed_forward)(config, dtype)
