"""Encoder and decoder layers (3.1): a mixer of positions, in the decoder attention over the source, feed-forward."""

import flax.linen as nn
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.models.attention import MultiHeadAttention
from t2t_flax.models.dense import FeedForward, layer_norm
from t2t_flax.models.dropout import Dropout
from t2t_flax.models.mixers import make_mixer


class Residual(nn.Module):
    """LayerNorm(x + Dropout(f(x))) (3.1, 5.4), or x + Dropout(f(LayerNorm(x))) with pre-norm."""

    config: Model
    dtype: jnp.dtype

    def setup(self):
        self.norm = layer_norm(self.config.norm_eps, self.dtype)
        self.drop = Dropout(self.config.dropout)

    def __call__(self, x, sublayer, noise):
        if self.config.norm_placement == "pre":
            return x + self.drop(sublayer(self.norm(x)), noise)
        return self.norm(x + self.drop(sublayer(x), noise))


def _feed_forward(c: Model, dtype: jnp.dtype) -> FeedForward:
    return FeedForward(c.d_model, c.d_ff, c.dropout_ffn, c.activation, dtype)


class EncoderLayer(nn.Module):
    config: Model
    dtype: jnp.dtype
    depth: int = 0  # layers below

    def setup(self):
        self.mixer = make_mixer(self.config, self.dtype, causal=False, depth=self.depth)
        self.feed_forward = _feed_forward(self.config, self.dtype)
        self.residual_attention = Residual(self.config, self.dtype)
        self.residual_ffn = Residual(self.config, self.dtype)

    def __call__(self, x, segments, noise):
        x = self.residual_attention(x, lambda y: self.mixer(y, segments, noise), noise)
        return self.residual_ffn(x, lambda y: self.feed_forward(y, noise), noise)


class DecoderLayer(nn.Module):
    config: Model
    dtype: jnp.dtype
    depth: int = 0  # layers below

    def setup(self):
        self.mixer = make_mixer(self.config, self.dtype, causal=True, depth=self.depth)
        self.cross_attention = MultiHeadAttention(self.config, self.dtype)
        self.feed_forward = _feed_forward(self.config, self.dtype)
        self.residual_attention = Residual(self.config, self.dtype)
        self.residual_cross = Residual(self.config, self.dtype)
        self.residual_ffn = Residual(self.config, self.dtype)

    def __call__(self, x, memory, segments, cross_mask, noise):
        x = self.residual_attention(x, lambda y: self.mixer(y, segments, noise), noise)
        x = self.residual_cross(x, lambda y: self.cross_attention(y, memory, cross_mask, noise), noise)
        return self.residual_ffn(x, lambda y: self.feed_forward(y, noise), noise)

    def step(self, x_BxKxD, self_cache, cross_cache, source_mask_BxS, position):
        new_cache = {}

        def mixer(y):
            out, new_cache["self"] = self.mixer.step(y, self_cache, position)
            return out

        def cross_attention(y):
            return self.cross_attention.cross_step(y, cross_cache["key"], cross_cache["value"], source_mask_BxS)

        x = self.residual_attention(x_BxKxD, mixer, None)
        x = self.residual_cross(x, cross_attention, None)
        return self.residual_ffn(x, lambda y: self.feed_forward(y, None), None), new_cache["self"]
