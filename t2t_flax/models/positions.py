"""Position schemes (3.5 and later ones), in one table, POSITIONS.

A scheme is up to three functions, one for each place where positions can enter. The first argument
of each is the flax module that calls it: its `config`, and its `param` for schemes that learn.
"""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.config import Model


class PositionScheme(NamedTuple):
    """`vectors(module, position)`: int32 [...] -> [..., D], added to the embeddings. Positions of rows [..., T] are below T.
    `rotate(module, x, position)`: queries or keys of self-attention [..., T, N, H], position [..., T].
    `bias(module, query_position, key_position)`: int32 [..., T] and [..., S] -> float32 [..., N, T, S],
    added to the scores of self-attention.
    """

    vectors: Callable[[nn.Module, jax.Array], jax.Array] | None = None
    rotate: Callable[[nn.Module, jax.Array, jax.Array], jax.Array] | None = None
    bias: Callable[[nn.Module, jax.Array, jax.Array], jax.Array] | None = None


def sinusoid_interleaved(position: jax.Array, d_model: int) -> jax.Array:
    """int32 [...] -> float32 [..., D]: PE[pos, 2i] = sin(pos / 10000^(2i/d)), PE[pos, 2i+1] = cos (3.5)."""
    inverse = 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
    angle = position[..., None].astype(jnp.float32) * inverse.astype(np.float32)
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(*position.shape, d_model)


def sinusoid_halves(position: jax.Array, d_model: int) -> jax.Array:
    """int32 [...] -> float32 [..., D]: all sines, then all cosines, exponents i / (d/2 - 1) (tensor2tensor)."""
    half = d_model // 2
    inverse = 10000.0 ** (-np.arange(half) / max(half - 1, 1))
    angle = position[..., None].astype(jnp.float32) * inverse.astype(np.float32)
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


def _fixed(vectors: Callable[[jax.Array, int], jax.Array]) -> PositionScheme:
    def shifted(module, position):
        offset, d_model = module.config.position_offset, module.config.d_model
        if position.ndim < 2:
            return vectors(position + offset, d_model)
        # Sines once for each position of a row [..., T], where they are below T, and not for each token.
        table = vectors(jnp.arange(position.shape[-1]) + offset, d_model)
        return jnp.take(table, position, axis=0, mode="fill", fill_value=jnp.nan)

    return PositionScheme(vectors=shifted)


def learned(module: nn.Module, position: jax.Array) -> jax.Array:
    """A trained row for each position (Table 3, row E); NaN beyond max_positions instead of JAX's clamped index."""
    c = module.config
    init = nn.with_logical_partitioning(nn.initializers.normal(c.d_model**-0.5), ("position", "table"))
    table = module.param("table", init, (c.max_positions, c.d_model), jnp.float32)
    return jnp.take(table, position, axis=0, mode="fill", fill_value=jnp.nan)


def rotary(x: jax.Array, position: jax.Array, theta: float) -> jax.Array:
    """RoPE (Su et al. 2021): x [..., T, N, H], position [..., T] -> x with each pair (i, i + H/2) of
    features turned by position * theta^(-2i/H), so that q k^T depends on the distance alone.
    """
    half = x.shape[-1] // 2
    inverse = theta ** (-np.arange(half) / half)
    angle = position[..., None, None].astype(jnp.float32) * inverse.astype(np.float32)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def alibi_slopes(num_heads: int) -> np.ndarray:
    """float32 [N] (Press et al. 2022): 2^(-8/N), 2^(-16/N), ... for a power of two; for another
    number those of the next lower power, then every other one of the next higher.
    """
    lower = 2 ** int(np.log2(num_heads))
    slopes = 2.0 ** (-8 * np.arange(1, lower + 1) / lower)
    between = 2.0 ** (-8 * np.arange(1, 2 * lower, 2) / (2 * lower))
    return np.concatenate([slopes, between])[:num_heads].astype(np.float32)


def alibi(module: nn.Module, query_position: jax.Array, key_position: jax.Array) -> jax.Array:
    """-slope * |i - j| in each head, in both directions in the encoder."""
    distance = jnp.abs(query_position[..., :, None] - key_position[..., None, :])
    slopes_Nx1x1 = alibi_slopes(module.config.num_heads)[:, None, None]
    return -slopes_Nx1x1 * distance[..., None, :, :].astype(jnp.float32)


# A new scheme is a row here and a word in the choices of model.position.
POSITIONS: dict[str, PositionScheme] = {
    "sinusoid_interleaved": _fixed(sinusoid_interleaved),
    "sinusoid_halves": _fixed(sinusoid_halves),
    "learned": PositionScheme(vectors=learned),
    "rotary": PositionScheme(rotate=lambda module, x, position: rotary(x, position, module.config.rope_theta)),
    "alibi": PositionScheme(bias=alibi),
    "none": PositionScheme(),
}


class PositionVectors(nn.Module):
    """int32 positions [...] -> the vectors [..., D] of the scheme that are added to the embeddings, or 0."""

    config: Model
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, position: jax.Array) -> jax.Array:
        vectors = POSITIONS[self.config.position].vectors
        return vectors(self, position).astype(self.dtype) if vectors else jnp.zeros((), self.dtype)


class PositionBias(nn.Module):
    """int32 [..., T] and [..., S] -> the scheme's bias on the scores, float32 [..., N, T, S], or None."""

    config: Model

    @nn.compact
    def __call__(self, query_position: jax.Array, key_position: jax.Array) -> jax.Array | None:
        bias = POSITIONS[self.config.position].bias
        return bias(self, query_position, key_position) if bias else None


class PositionRotation(nn.Module):
    """Queries or keys [..., T, N, H] at positions [..., T], turned as the scheme says, or as they are."""

    config: Model

    @nn.compact
    def __call__(self, x: jax.Array, position: jax.Array) -> jax.Array:
        rotate = POSITIONS[self.config.position].rotate
        return rotate(self, x, position) if rotate else x
