"""Multi-head attention (3.2): of any queries over any memory, and one decoding step over the encoder output.

Masks are bool, True = may attend. Scores and softmax are float32 whatever the compute type. A new kind of score is a
row of SCORES; a new pattern is a mask. Self-attention, with or without a window, is `SelfAttention` in window.py.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.models.dense import Einsum
from t2t_flax.models.dropout import Dropout, Noise

_MASKED = -1e9  # finite, so that a row without any key (padding) gives numbers and not NaN


def segment_mask(query_segment_BxT: jax.Array, key_segment_BxS: jax.Array) -> jax.Array:
    """bool [B, 1, T, S]: same segment, and not padding (segment 0)."""
    same = query_segment_BxT[:, :, None] == key_segment_BxS[:, None, :]
    return (same & (key_segment_BxS > 0)[:, None, :])[:, None]


def causal_mask(length: int) -> jax.Array:
    """bool [1, 1, T, T]: a position sees itself and what is before it (3.1)."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def weights_of(scores: jax.Array, mask: jax.Array) -> jax.Array:
    """softmax over the keys (last axis), float32; masked keys get exactly 0, also where every key is masked."""
    return jnp.where(mask, jax.nn.softmax(jnp.where(mask, scores, _MASKED), axis=-1), 0.0)


def widths(config: Model) -> tuple[int, int]:
    """(d_k, d_v) of a head (3.2.2)."""
    width = config.d_model // config.num_heads
    return config.d_k or width, config.d_v or width


class DotScore(nn.Module):
    """Q K^T (3.2.1), divided by sqrt(d_k) if `scaled`. q [..., T, N, H], k [..., S, N, H] -> float32 [..., N, T, S]."""

    scaled: bool

    def __call__(self, q: jax.Array, k: jax.Array) -> jax.Array:
        scores = jnp.einsum("...tnh,...snh->...nts", q, k, preferred_element_type=jnp.float32)
        return scores * q.shape[-1] ** -0.5 if self.scaled else scores


class AdditiveScore(nn.Module):
    """v^T tanh(q + k) in each head, of which 3.2.1 says that it is slower and takes more space. Axes as `DotScore`.

    q and k are projections already, so this is the network of Bahdanau et al. with its first matrix cut in two.
    """

    @nn.compact
    def __call__(self, q: jax.Array, k: jax.Array) -> jax.Array:
        init = nn.initializers.variance_scaling(1.0, "fan_in", "uniform", in_axis=1, out_axis=0)
        v = self.param("v", nn.with_logical_partitioning(init, ("heads", "kv")), q.shape[-2:], jnp.float32)
        hidden = jnp.tanh(q[..., :, None, :, :] + k[..., None, :, :, :])  # [..., T, S, N, H]
        return jnp.einsum("...tsnh,nh->...nts", hidden, v.astype(hidden.dtype), preferred_element_type=jnp.float32)


SCORES = {
    "scaled_dot": lambda: DotScore(scaled=True),
    "dot": lambda: DotScore(scaled=False),
    "additive": lambda: AdditiveScore(),
}


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W_O with head_i = Attention(Q W_Q, K W_K, V W_V) (3.2.2); no biases by default."""

    config: Model
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        c = self.config
        d_k, d_v = widths(c)
        gain = 0.5**0.5 if c.kernel_init == "xavier_qkv_rsqrt2" else 1.0

        def project(width):
            shape, names = (c.d_model, c.num_heads, width), ("embed", "heads", "kv")
            axes = dict(in_axis=(0,), out_axis=(1, 2))
            return Einsum(
                "...d,dnh->...nh", shape, names, **axes, use_bias=c.attention_bias, gain=gain, dtype=self.dtype
            )

        self.query, self.key, self.value = project(d_k), project(d_k), project(d_v)
        self.score = SCORES[c.attention_score]()
        shape, names = (c.num_heads, d_v, c.d_model), ("heads", "kv", "embed")
        axes = dict(in_axis=(0, 1), out_axis=(2,))
        self.out = Einsum("...nh,nhd->...d", shape, names, **axes, use_bias=c.attention_bias, dtype=self.dtype)
        self.weight_dropout = Dropout(c.dropout_attention)

    def __call__(self, x_BxTxD: jax.Array, memory_BxSxD: jax.Array, mask: jax.Array, noise: Noise | None) -> jax.Array:
        """[B, T, D] queries over [B, S, D] memory under a bool mask [B, 1, T, S] -> [B, T, D]."""
        k, v = self.keys_values(memory_BxSxD)
        weights = self._weights(self.query(x_BxTxD), k, mask)
        return self.out(jnp.einsum("bnts,bsnh->btnh", self.weight_dropout(weights, noise), v))

    def keys_values(self, memory: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[..., D] -> keys [..., N, d_k], values [..., N, d_v]."""
        return self.key(memory), self.value(memory)

    def cross_step(self, x_BxKxD: jax.Array, k_BxSxNxH: jax.Array, v_BxSxNxH: jax.Array, mask_BxS: jax.Array):
        """One decoding step over the encoder output, whose keys and values all beams of a sentence share."""
        weights = self._weights(self.query(x_BxKxD), k_BxSxNxH, mask_BxS[:, None, None])
        return self.out(jnp.einsum("bnks,bsnh->bknh", weights, v_BxSxNxH))

    def _weights(self, q: jax.Array, k: jax.Array, mask: jax.Array) -> jax.Array:
        weights = weights_of(self.score(q, k), mask)
        self.sow("intermediates", "weights", weights)
        return weights.astype(self.dtype)
