"""Attention (3.2): scaled dot products (3.2.1), several heads (3.2.2), and self-attention as the mixer of a layer (3.2.3).

Scores and softmax are float32 whatever the compute type.

Letters: B batch, K beam, T queries, S keys, D d_model, N heads, G heads of keys and values, H width
of a head.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.models.decoding_cache import DecodingCache
from t2t_flax.models.dense import Einsum, product_with_float32_result
from t2t_flax.models.dropout import Dropout, Noise
from t2t_flax.models.embeddings import PositionBias, PositionRotation
from t2t_flax.registry import ATTENTION_KERNELS, MIXERS, SCORES

_MASKED_SCORE = -1e9  # finite, so that a query without any key (padding) does not become NaN


class DotScore(nn.Module):
    """Q K^T, divided by sqrt(d_k) if `scaled` (3.2.1). q [..., T, N, H], k [..., S, N, H] -> float32 [..., N, T, S]."""

    scaled: bool

    def __call__(self, q: jax.Array, k: jax.Array) -> jax.Array:
        scores = product_with_float32_result("...tnh,...snh->...nts", q, k, q.dtype)
        return scores * q.shape[-1] ** -0.5 if self.scaled else scores


scaled_dot = functools.partial(DotScore, scaled=True)
"""Q K^T / sqrt(d_k) (3.2.1)."""
dot = functools.partial(DotScore, scaled=False)
"""Q K^T (3.2.1)."""


def masked_softmax(scores: jax.Array, mask: jax.Array) -> jax.Array:
    """Softmax over the last axis (3.2.1). Masked keys get exactly 0, also where every key is masked."""
    return jnp.where(mask, jax.nn.softmax(jnp.where(mask, scores, _MASKED_SCORE), axis=-1), 0.0)


@jax.custom_vjp
def bfloat16_softmax(scores: jax.Array, mask: jax.Array) -> jax.Array:
    """`masked_softmax`, computed in float32 and rounded. The backward pass reads the rounded weights, not the scores."""
    # Without a barrier XLA skips the rounding and computes the weights again from the scores, in float32.
    return jax.lax.optimization_barrier(masked_softmax(scores, mask).astype(jnp.bfloat16))


def _forward(scores: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    weights = bfloat16_softmax(scores, mask)
    return weights, weights


def _backward(weights: jax.Array, gradient: jax.Array) -> tuple[jax.Array, None]:
    weights, gradient = weights.astype(jnp.float32), gradient.astype(jnp.float32)
    return weights * (gradient - (weights * gradient).sum(-1, keepdims=True)), None


bfloat16_softmax.defvjp(_forward, _backward)


@flax.struct.dataclass
class SegmentMask:
    """`segment_mask` of int32 [B, T] and [B, S], with `causal` also `causal_mask`, not yet made: fused kernels make
    their own.
    """

    query_segments: jax.Array
    key_segments: jax.Array
    causal: bool = flax.struct.field(pytree_node=False, default=False)


Mask = jax.Array | SegmentMask  # an array is bool, True = may attend


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W_O with head_i = Attention(Q W_Q, K W_K, V W_V) (3.2.2); no biases by default."""

    config: Model
    dtype: jnp.dtype = jnp.dtype("float32")

    def setup(self):
        c = self.config
        d_k, d_v = c.head_widths
        gain = 0.5**0.5 if c.kernel_init == "xavier_qkv_rsqrt2" else 1.0

        def project(heads, width):
            # With fewer heads than the queries have, keys and values get an axis of their own in mesh.rules.
            shape, axis = (c.d_model, heads, width), "heads" if heads == c.num_heads else "kv_heads"
            axes: dict[str, Any] = dict(
                in_axis=(0,), out_axis=(1, 2), use_bias=c.attention_bias, gain=gain, dtype=self.dtype
            )
            return Einsum("...d,dnh->...nh", shape, ("embed", axis, "kv"), **axes)

        self.query = project(c.num_heads, d_k)
        self.key, self.value = project(c.key_heads, d_k), project(c.key_heads, d_v)
        self.score = SCORES.load(c.attention_score)()
        shape, names = (c.num_heads, d_v, c.d_model), ("heads", "kv", "embed")
        axes: dict[str, Any] = dict(in_axis=(0, 1), out_axis=(2,), use_bias=c.attention_bias, dtype=self.dtype)
        self.out = Einsum("...nh,nhd->...d", shape, names, **axes)
        self.weight_dropout = Dropout(c.dropout_attention)

    def __call__(self, x_BxTxD: jax.Array, memory_BxSxD: jax.Array, mask: Mask, noise: Noise | None) -> jax.Array:
        """[B, T, D] queries over [B, S, D] memory under a mask [B, 1, T, S] -> [B, T, D]."""
        return self.over(x_BxTxD, *self.keys_values(memory_BxSxD), mask, noise)

    def keys_values(self, memory: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[..., D] -> keys [..., G, d_k], values [..., G, d_v]."""
        return self.key(memory), self.value(memory)

    def over(self, x_BxTxD, k_BxSxGxH, v_BxSxGxH, mask: Mask, noise: Noise | None = None) -> jax.Array:
        """As `__call__`, over keys and values that are computed already. In decoding T is the beam."""
        return self.out(self.attend(self.query(x_BxTxD), k_BxSxGxH, v_BxSxGxH, mask, noise=noise))

    def attend(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        mask: Mask,
        *,
        bias: jax.Array | None = None,
        noise: Noise | None = None,
    ) -> jax.Array:
        """softmax(score(q, k) + bias) v (3.2.1): q [..., T, N, d_k], k and v [..., S, G, width] -> [..., T, N, d_v].

        `mask` and `bias` broadcast to [..., N, T, S]. The weights are sown as the intermediate "weights".
        """
        if kernel := self._kernel(q, k, v, mask, bias):
            return kernel.attend(q, k, v, mask, scaled=self.score.scaled)
        scores = scores_of_groups(self.score, q, k)
        scores = scores if bias is None else scores + bias
        if self.dtype == jnp.bfloat16 and not self.is_mutable_collection("intermediates"):
            weights = bfloat16_softmax(scores, mask_array(mask))
        else:
            weights = masked_softmax(scores, mask_array(mask))
            self.sow("intermediates", "weights", weights)
        return weighted_values(self.weight_dropout(weights.astype(self.dtype), noise), v)

    def _kernel(self, q, k, v, mask: Mask, bias: jax.Array | None) -> ModuleType | None:
        """Return the module of model.attention_kernel if it computes this case: scores without a bias, whose weights
        are not read. `training.attention_kernel` has decided the rest.
        """
        name = self.config.attention_kernel
        if not ATTENTION_KERNELS[name] or bias is not None or self.is_mutable_collection("intermediates"):
            return None
        kernel = ATTENTION_KERNELS.load(name)
        return kernel if kernel.takes(q, k, v, mask) else None


@flax.struct.dataclass
class MixerInputs:
    """segments: int32 [B, T], numbered from 1 in each row, 0 = padding. positions: int32 [B, T], from 0 in each
    segment. noise: of dropout, None = no dropout.
    """

    segments: jax.Array
    positions: jax.Array
    noise: Noise | None = None


class SelfAttention(MultiHeadAttention):
    """The mixer `attention` (3.2.3): within segments, in the decoder up to itself."""

    NAME: ClassVar[str] = "self_attention"
    causal: bool = False
    depth: int = 0

    def setup(self):
        super().setup()
        self.rotation, self.position_bias = PositionRotation(self.config), PositionBias(self.config)

    def __call__(self, x_BxTxD: jax.Array, inputs: MixerInputs) -> jax.Array:  # type: ignore[override]  # a mixer's
        """[B, T, D] -> [B, T, D]."""
        k, v = self.keys_values(x_BxTxD)
        q, k = (self.rotation(y, inputs.positions) for y in (self.query(x_BxTxD), k))
        return self.out(self.attend_row(q, k, v, inputs))

    def attend_row(self, q: jax.Array, k: jax.Array, v: jax.Array, inputs: MixerInputs) -> jax.Array:
        """[B, T, N, H]: every position of a row over those of its segment."""
        mask = SegmentMask(inputs.segments, inputs.segments, self.causal)
        bias = self.position_bias(inputs.positions, inputs.positions)
        return self.attend(q, k, v, mask, bias=bias, noise=inputs.noise)

    def visible(self, position: jax.Array, keys_T: jax.Array) -> jax.Array:
        """bool [T]: which positions `keys_T` the one that is decoded attends to."""
        return keys_T <= position

    def empty_cache(self, batch: int, beams: int, length: int) -> DecodingCache:
        """Room for the keys and values of `length` positions, to be filled by `step`."""
        return DecodingCache.empty(batch, beams, length, self.config.key_heads, self.config.head_widths, self.dtype)

    def step(self, x_BxKxD: jax.Array, cache: DecodingCache, position: jax.Array) -> tuple[jax.Array, DecodingCache]:
        """Writes keys and values at `position`, int32 [], and attends up to it. Returns ([B, K, D], the new cache)."""
        x = cache.rows(x_BxKxD)
        here = jnp.full(cache.beams, position)
        k, v = self.keys_values(x)
        q, k = (self.rotation(y, here) for y in (self.query(x), k))
        cache = cache.write(k, v, position)
        mask = cache.mask(self.visible(position, jnp.arange(cache.length)))
        bias = self.position_bias(here, cache.positions)
        return cache.hypotheses(self.out(self.attend(q, *cache.keys_values(), mask, bias=bias))), cache


def mixer_class(config: Model) -> Any:
    """Returns the class of model.mixer."""
    return MIXERS.load(config.mixer)


def make_mixer(config: Model, dtype: jnp.dtype, *, causal: bool, depth: int) -> nn.Module:
    """Returns the mixer of a layer above `depth` others, causal in the decoder."""
    mixer = mixer_class(config)
    return mixer(config, dtype, causal, depth, name=mixer.NAME)


def segment_mask(query_segments: jax.Array, key_segments: jax.Array) -> jax.Array:
    """[..., T] and [..., S] -> [..., 1, T, S]: same segment, and not padding (segment 0)."""
    same = query_segments[..., :, None] == key_segments[..., None, :]
    return (same & (key_segments > 0)[..., None, :])[..., None, :, :]


def causal_mask(length: int) -> jax.Array:
    """[1, 1, T, T]: a position sees itself and earlier ones (3.1)."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def mask_array(mask: jax.Array | SegmentMask) -> jax.Array:
    """A `SegmentMask` as bool [B, 1, T, S]; an array as it is."""
    if not isinstance(mask, SegmentMask):
        return mask
    array = segment_mask(mask.query_segments, mask.key_segments)
    return array & causal_mask(array.shape[-1]) if mask.causal else array


def scores_of_groups(score: Callable[[jax.Array, jax.Array], jax.Array], q: jax.Array, k: jax.Array) -> jax.Array:
    """`score` of q [..., T, N, H] over k [..., S, G, H]: [..., N, T, S]. Heads that share a key are queries of one head."""
    *batch, length, heads, width = q.shape
    if (sharing := heads // k.shape[-2]) > 1:
        q = jnp.moveaxis(q.reshape(*batch, length, -1, sharing, width), -2, -4)
        q = q.reshape(*batch, sharing * length, -1, width)
    scores = score(q, k)
    return scores.reshape(*scores.shape[:-3], heads, length, scores.shape[-1])


def weighted_values(weights: jax.Array, v: jax.Array) -> jax.Array:
    """weights [..., N, T, S] times v [..., S, G, H]: [..., T, N, H]."""
    *batch, heads, length, keys = weights.shape
    values = jnp.einsum("...nts,...snh->...nth", weights.reshape(*batch, v.shape[-2], -1, keys), v)
    return jnp.moveaxis(values.reshape(*values.shape[:-3], heads, length, values.shape[-1]), -2, -3)
