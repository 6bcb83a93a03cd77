"""Multi-head attention (3.2): over whole rows in training, over a key/value cache in decoding.

Masks are bool, True = may attend. Scores and softmax are float32 whatever the compute type. A new kind of score is a
function beside `scaled_dot`; a new pattern is a mask.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.models.dropout import Dropout, Noise
from t2t_flax.models.layers import Einsum

_MASKED = -1e9  # finite, so that a row without any key (padding) gives numbers and not NaN


def segment_mask(query_segment_BxT: jax.Array, key_segment_BxS: jax.Array) -> jax.Array:
    """bool [B, 1, T, S]: same segment, and not padding (segment 0)."""
    same = query_segment_BxT[:, :, None] == key_segment_BxS[:, None, :]
    return (same & (key_segment_BxS > 0)[:, None, :])[:, None]


def causal_mask(length: int) -> jax.Array:
    """bool [1, 1, T, T]: a position sees itself and what is before it (3.1)."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def scaled_dot(q: jax.Array, k: jax.Array) -> jax.Array:
    """Q K^T / sqrt(d_k) in float32 (3.2.1). q [B, T, N, H], k [B, S, N, H] -> [B, N, T, S]."""
    scores = jnp.einsum("btnh,bsnh->bnts", q, k, preferred_element_type=jnp.float32)
    return scores * q.shape[-1] ** -0.5


def weights_of(scores: jax.Array, mask: jax.Array) -> jax.Array:
    """softmax over the keys (last axis), float32; masked keys get exactly 0 unless every key is masked."""
    return jax.nn.softmax(jnp.where(mask, scores, _MASKED), axis=-1)


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W_O with head_i = Attention(Q W_Q, K W_K, V W_V), no biases (3.2.2)."""

    d_model: int
    num_heads: int
    d_k: int
    d_v: int
    dropout: float = 0.0
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        def project(width):
            shape, names = (self.d_model, self.num_heads, width), ("embed", "heads", "kv")
            return Einsum("...d,dnh->...nh", shape, names, in_axis=0, out_axis=(1, 2), dtype=self.dtype)

        self.query, self.key, self.value = project(self.d_k), project(self.d_k), project(self.d_v)
        shape, names = (self.num_heads, self.d_v, self.d_model), ("heads", "kv", "embed")
        self.out = Einsum("...nh,nhd->...d", shape, names, in_axis=(0, 1), out_axis=2, dtype=self.dtype)
        self.weight_dropout = Dropout(self.dropout)

    def __call__(self, x_BxTxD: jax.Array, memory_BxSxD: jax.Array, mask: jax.Array, noise: Noise | None) -> jax.Array:
        """[B, T, D] queries over [B, S, D] memory under a bool mask [B, 1, T, S] -> [B, T, D]."""
        k, v = self.keys_values(memory_BxSxD)
        weights = weights_of(scaled_dot(self.query(x_BxTxD), k), mask).astype(self.dtype)
        context = jnp.einsum("bnts,bsnh->btnh", self.weight_dropout(weights, noise), v)
        return self.out(context)

    def keys_values(self, memory: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[..., D] -> keys [..., N, d_k], values [..., N, d_v]."""
        return self.key(memory), self.value(memory)

    def cross_step(self, x_BxKxD: jax.Array, k_BxSxNxH: jax.Array, v_BxSxNxH: jax.Array, mask_BxS: jax.Array):
        """One decoding step over the encoder output, whose keys and values all beams of a sentence share."""
        weights = weights_of(scaled_dot(self.query(x_BxKxD), k_BxSxNxH), mask_BxS[:, None, None]).astype(self.dtype)
        return self.out(jnp.einsum("bnks,bsnh->bknh", weights, v_BxSxNxH))

    def self_step(self, x_BxKxD: jax.Array, cache: dict[str, jax.Array], position: jax.Array):
        """One decoding step: writes position's key and value into the cache [B, K, T, N, H], attends up to it.

        Returns ([B, K, D], the new cache).
        """
        k, v = self.keys_values(x_BxKxD)
        cache = {
            "key": jax.lax.dynamic_update_slice_in_dim(cache["key"], k[:, :, None], position, axis=2),
            "value": jax.lax.dynamic_update_slice_in_dim(cache["value"], v[:, :, None], position, axis=2),
        }
        scores = jnp.einsum("bknh,bktnh->bknt", self.query(x_BxKxD), cache["key"], preferred_element_type=jnp.float32)
        seen = jnp.arange(cache["key"].shape[2]) <= position
        weights = weights_of(scores * self.d_k**-0.5, seen).astype(self.dtype)
        return self.out(jnp.einsum("bknt,bktnh->bknh", weights, cache["value"])), cache
