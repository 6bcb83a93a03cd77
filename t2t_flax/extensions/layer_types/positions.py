"""Positions in self-attention: rotary, and distances subtracted from the scores."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.extensions.layer_types import LayerTypes
from t2t_flax.models.embeddings import PositionScheme


def rotary(x: jax.Array, position: jax.Array, theta: float) -> jax.Array:
    """Apply RoPE (Su et al. 2021) to x [..., T, N, H] at position [..., T].

    Each pair (i, i + H/2) of features is turned by position * theta^(-2i/H), so that q k^T depends
    on the distance alone.
    """
    half = x.shape[-1] // 2
    inverse = theta ** (-np.arange(half) / half)
    angle = position[..., None, None].astype(jnp.float32) * inverse.astype(np.float32)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Return ALiBi's slopes, float32 [N] (Press et al. 2022).

    They are 2^(-8/N), 2^(-16/N), ... for a power of two. Another number takes the slopes of the
    next lower power, then every other slope of the next higher.
    """
    lower = 2 ** int(np.log2(num_heads))
    slopes = 2.0 ** (-8 * np.arange(1, lower + 1) / lower)
    between = 2.0 ** (-8 * np.arange(1, 2 * lower, 2) / (2 * lower))
    return np.concatenate([slopes, between])[:num_heads].astype(np.float32)


def _alibi(module: nn.Module, query_position: jax.Array, key_position: jax.Array) -> jax.Array:
    """Return -slope * |i - j| in each head, in both directions in the encoder."""
    distance = jnp.abs(query_position[..., :, None] - key_position[..., None, :])
    slopes_Nx1x1 = jnp.asarray(-alibi_slopes(module.config.num_heads)[:, None, None])
    return slopes_Nx1x1 * distance[..., None, :, :].astype(jnp.float32)


def _rotary(module: nn.Module, x: jax.Array, position: jax.Array) -> jax.Array:
    return rotary(x, position, LayerTypes.of(module.config).rope_theta)


ROTARY, ALIBI = PositionScheme(rotate=_rotary), PositionScheme(bias=_alibi)
