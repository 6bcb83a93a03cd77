"""Encoder and decoder layers (3.1).

Their sub-layers are self-attention or another mixer, attention over the source, and feed-forward.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.models.attention import Mask, MixerInputs, MultiHeadAttention, make_mixer
from t2t_flax.models.decoding_cache import from_decoding_layout
from t2t_flax.models.dense import Einsum, make_norm
from t2t_flax.models.dropout import Dropout, Noise
from t2t_flax.registry import ACTIVATIONS, FEED_FORWARDS


class EncoderLayer(nn.Module):
    """Encoder layer with self-attention (or another mixer) and feed-forward (3.1).

    Maps x [B, S, D] to [B, S, D].
    """

    config: Model
    dtype: jnp.dtype
    depth: int = 0  # layers below

    def setup(self):
        self.mixer = make_mixer(self.config, self.dtype, causal=False, depth=self.depth)
        self.feed_forward = make_feed_forward(self.config, self.dtype)
        self.residual_attention = Residual(self.config, self.dtype)
        self.residual_ffn = Residual(self.config, self.dtype)

    def __call__(self, x_BxSxD: jax.Array, inputs: MixerInputs) -> jax.Array:
        x = self.residual_attention(x_BxSxD, lambda y: self.mixer(y, inputs), inputs.noise)
        return self.residual_ffn(x, lambda y: self.feed_forward(y, inputs.noise), inputs.noise)


class DecoderLayer(nn.Module):
    """Decoder layer with three sub-layers (3.1).

    Causal self-attention (or another mixer), attention over the source, and feed-forward.
    """

    config: Model
    dtype: jnp.dtype
    depth: int = 0  # layers below

    def setup(self):
        self.mixer = make_mixer(self.config, self.dtype, causal=True, depth=self.depth)
        self.cross_attention = MultiHeadAttention(self.config, self.dtype)
        self.feed_forward = make_feed_forward(self.config, self.dtype)
        self.residual_attention = Residual(self.config, self.dtype)
        self.residual_cross = Residual(self.config, self.dtype)
        self.residual_ffn = Residual(self.config, self.dtype)

    def __call__(
        self, x_BxTxD: jax.Array, memory_BxSxD: jax.Array, inputs: MixerInputs, cross_mask: Mask
    ) -> jax.Array:
        noise = inputs.noise
        x = self.residual_attention(x_BxTxD, lambda y: self.mixer(y, inputs), noise)
        x = self.residual_cross(
            x, lambda y: self.cross_attention(y, memory_BxSxD, cross_mask, noise), noise
        )
        return self.residual_ffn(x, lambda y: self.feed_forward(y, noise), noise)

    def step(self, x_BxKxD, self_cache, cross_cache, source_mask_BxS, position):
        """Run one decoding step; return [B, K, D] and the mixer's new cache."""
        new_cache = None

        def mixer(y):
            nonlocal new_cache
            out, new_cache = self.mixer.step(y, self_cache, position)
            return out

        def cross_attention(y):
            return self.cross_attention.over(
                y, *from_decoding_layout(*cross_cache), source_mask_BxS[:, None, None]
            )

        x = self.residual_attention(x_BxKxD, mixer, None)
        x = self.residual_cross(x, cross_attention, None)
        return self.residual_ffn(x, lambda y: self.feed_forward(y, None), None), new_cache


class Residual(nn.Module):
    """Residual connection: LayerNorm(x + Dropout(f(x))) (3.1, 5.4).

    With pre-norm x + Dropout(f(LayerNorm(x))).
    """

    config: Model
    dtype: jnp.dtype

    def setup(self):
        self.norm = make_norm(self.config, self.dtype)
        self.drop = Dropout(self.config.dropout)

    def __call__(self, x, sublayer, noise):
        if self.config.norm_placement == "pre":
            return x + self.drop(sublayer(self.norm(x)), noise)
        return self.norm(x + self.drop(sublayer(x), noise))


class FeedForward(nn.Module):
    """Position-wise feed-forward: max(0, x W1 + b1) W2 + b2 (3.3).

    Maps x [..., D] to [..., D]. model.activation can replace max(0, .).
    """

    config: Model
    dtype: jnp.dtype = jnp.dtype("float32")

    @nn.compact
    def __call__(self, x: jax.Array, noise: Noise | None) -> jax.Array:
        c = self.config
        up = Einsum(
            "...d,df->...f", (c.d_model, c.d_ff), ("embed", "mlp"), use_bias=True, dtype=self.dtype
        )
        down = Einsum(
            "...f,fd->...d", (c.d_ff, c.d_model), ("mlp", "embed"), use_bias=True, dtype=self.dtype
        )
        hidden = ACTIVATIONS.load(c.activation)(up(x))
        return down(Dropout(c.dropout_ffn, name="hidden_dropout")(hidden, noise))


def make_feed_forward(config: Model, dtype: jnp.dtype) -> nn.Module:
    return FEED_FORWARDS.load(config.feed_forward)(config, dtype)
