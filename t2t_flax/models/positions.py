"""Position kinds: each turns position ids into vectors of width d_model (3.5). Add a kind by adding a row to KINDS."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np


def sinusoid_interleaved(position: jax.Array, d_model: int) -> jax.Array:
    """PE[pos, 2i] = sin(pos / 10000^(2i/d)), PE[pos, 2i+1] = cos of the same (3.5). int32 [...] -> float32 [..., D]."""
    inverse = 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
    angle = position[..., None].astype(jnp.float32) * inverse.astype(np.float32)
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(*position.shape, d_model)


def sinusoid_halves(position: jax.Array, d_model: int) -> jax.Array:
    """tensor2tensor's layout: all sines, then all cosines, exponents i / (d/2 - 1). int32 [...] -> float32 [..., D]."""
    half = d_model // 2
    inverse = 10000.0 ** (-np.arange(half) / max(half - 1, 1))
    angle = position[..., None].astype(jnp.float32) * inverse.astype(np.float32)
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


# Kinds without parameters. `learned` keeps a table and therefore lives in the Transformer module.
KINDS: dict[str, Callable[[jax.Array, int], jax.Array]] = {
    "sinusoid_interleaved": sinusoid_interleaved,
    "sinusoid_halves": sinusoid_halves,
}
