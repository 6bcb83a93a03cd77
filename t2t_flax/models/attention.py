"""Attention (3.2): scaled dot products, multiple heads and self-attention.

Scaled dot products are section 3.2.1, multiple heads 3.2.2, and self-attention, the mixer of a
layer, 3.2.3. Scores and the softmax are float32 in every compute dtype.

Letters: B batch, K beam, T queries, S keys, D d_model, N heads, G key and value heads, H head
width.
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
    """Dot product Q K^T (3.2.1), divided by sqrt(d_k) if `scaled`.

    Maps q [..., T, N, H] and k [..., S, N, H] to float32 scores [..., N, T, S].
    """

    scaled: bool

    def __call__(self, q: jax.Array, k: jax.Array) -> jax.Array:
        scores = product_with_float32_result("...tnh,...snh->...nts", q, k, q.dtype)
        return scores * q.shape[-1] ** -0.5 if self.scaled else scores


scaled_dot = functools.partial(DotScore, scaled=True)
"""Q K^T / sqrt(d_k) (3.2.1)."""
dot = functools.partial(DotScore, scaled=False)
"""Q K^T (3.2.1)."""


def masked_softmax(scores: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the softmax over the last axis (3.2.1), with 0 for masked keys.

    A row in which every key is masked is all 0.
    """
    return jnp.where(mask, jax.nn.softmax(jnp.where(mask, scores, _MASKED_SCORE), axis=-1), 0.0)


@jax.custom_vjp
def bfloat16_softmax(scores: jax.Array, mask: jax.Array) -> jax.Array:
    """Return `masked_softmax`, computed in float32 and rounded to bfloat16.

    The backward pass reads the rounded weights, not the scores.
    """
    # Without the barrier XLA skips the rounding and recomputes float32 weights from the scores.
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
    """Segment ids that define an attention mask; fused kernels make their own mask.

    Stands for `segment_mask(query_segments, key_segments)`, combined with `causal_mask` if
    `causal`. The ids are int32, query_segments [B, T] and key_segments [B, S].
    """

    query_segments: jax.Array
    key_segments: jax.Array
    causal: bool = flax.struct.field(pytree_node=False, default=False)


Mask = jax.Array | SegmentMask  # an array is bool, True = may attend


class MultiHeadAttention(nn.Module):
    """Multi-head attention (3.2.2), without biases by default.

    Concat(head_1, ..., head_h) W_O with head_i = Attention(Q W_Q, K W_K, V W_V).
    """

    config: Model
    dtype: jnp.dtype = jnp.dtype("float32")

    def setup(self):
        c = self.config
        d_k, d_v = c.head_widths
        gain = 0.5**0.5 if c.kernel_init == "xavier_qkv_rsqrt2" else 1.0

        def project(heads, width):
            # With fewer key than query heads, keys and values have their own axis in mesh.rules.
            shape, axis = (c.d_model, heads, width), "heads" if heads == c.num_heads else "kv_heads"
            axes: dict[str, Any] = dict(
                in_axis=(0,),
                out_axis=(1, 2),
                use_bias=c.attention_bias,
                gain=gain,
                dtype=self.dtype,
            )
            return Einsum("...d,dnh->...nh", shape, ("embed", axis, "kv"), **axes)

        self.query = project(c.num_heads, d_k)
        self.key, self.value = project(c.key_heads, d_k), project(c.key_heads, d_v)
        self.score = SCORES.load(c.attention_score)()
        shape, names = (c.num_heads, d_v, c.d_model), ("heads", "kv", "embed")
        axes: dict[str, Any] = dict(
            in_axis=(0, 1), out_axis=(2,), use_bias=c.attention_bias, dtype=self.dtype
        )
        self.out = Einsum("...nh,nhd->...d", shape, names, **axes)
        self.weight_dropout = Dropout(c.dropout_attention)

    def __call__(
        self, x_BxTxD: jax.Array, memory_BxSxD: jax.Array, mask: Mask, noise: Noise | None
    ) -> jax.Array:
        """Attend from queries [B, T, D] to memory [B, S, D] under a mask [B, 1, T, S].

        Returns [B, T, D].
        """
        return self.over(x_BxTxD, *self.keys_values(memory_BxSxD), mask, noise)

    def keys_values(self, memory: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Project [..., D] to keys [..., G, d_k] and values [..., G, d_v]."""
        return self.key(memory), self.value(memory)

    def over(
        self, x_BxTxD, k_BxSxGxH, v_BxSxGxH, mask: Mask, noise: Noise | None = None
    ) -> jax.Array:
        """Attend as `__call__` does, with computed keys and values.

        In decoding T is the beam.
        """
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
        """Return softmax(score(q, k) + bias) v (3.2.1), [..., T, N, d_v].

        Sows the weights as the intermediate "weights".

        Args:
            q: queries [..., T, N, d_k].
            k: keys [..., S, G, d_k].
            v: values [..., S, G, d_v].
            mask: broadcasts to [..., N, T, S].
            bias: added to the scores; broadcasts to [..., N, T, S].
            noise: for dropout of the weights; None disables dropout.
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
        """Return the module of model.attention_kernel if it computes this case, else None.

        A kernel computes scores without a bias and returns no weights. It can refuse other cases
        by `takes`; `training.attention_kernel` has decided the rest.
        """
        name = self.config.attention_kernel
        if (
            not ATTENTION_KERNELS[name]
            or bias is not None
            or self.is_mutable_collection("intermediates")
        ):
            return None
        kernel = ATTENTION_KERNELS.load(name)
        return kernel if kernel.takes(q, k, v, mask) else None


@flax.struct.dataclass
class MixerInputs:
    """Inputs that a mixer receives besides the activations.

    Args:
        segments: int32 [B, T], numbered from 1 in each row; 0 is padding.
        positions: int32 [B, T], from 0 in each segment.
        noise: for dropout; None disables dropout.
    """

    segments: jax.Array
    positions: jax.Array
    noise: Noise | None = None


class SelfAttention(MultiHeadAttention):
    """Self-attention within segments (3.2.3), the mixer `attention`.

    In the decoder a position attends to itself and to earlier positions.
    """

    NAME: ClassVar[str] = "self_attention"
    causal: bool = False
    depth: int = 0

    def setup(self):
        super().setup()
        self.rotation, self.position_bias = PositionRotation(self.config), PositionBias(self.config)

    def __call__(self, x_BxTxD: jax.Array, inputs: MixerInputs) -> jax.Array:  # type: ignore[override]  # a mixer's
        """Mix positions: [B, T, D] -> [B, T, D]."""
        k, v = self.keys_values(x_BxTxD)
        q, k = (self.rotation(y, inputs.positions) for y in (self.query(x_BxTxD), k))
        return self.out(self.attend_row(q, k, v, inputs))

    def attend_row(
        self, q: jax.Array, k: jax.Array, v: jax.Array, inputs: MixerInputs
    ) -> jax.Array:
        """Attend from every position [B, T, N, H] to the positions of its segment."""
        mask = SegmentMask(inputs.segments, inputs.segments, self.causal)
        bias = self.position_bias(inputs.positions, inputs.positions)
        return self.attend(q, k, v, mask, bias=bias, noise=inputs.noise)

    def visible(self, position: jax.Array, keys_T: jax.Array) -> jax.Array:
        """Return the positions in `keys_T` that the decoded position attends to, bool [T]."""
        return keys_T <= position

    def empty_cache(self, batch: int, beams: int, length: int) -> DecodingCache:
        """Return an empty cache for `length` positions, which `step` fills."""
        return DecodingCache.empty(
            batch, beams, length, self.config.key_heads, self.config.head_widths, self.dtype
        )

    def step(
        self, x_BxKxD: jax.Array, cache: DecodingCache, position: jax.Array
    ) -> tuple[jax.Array, DecodingCache]:
        """Write keys and values at `position`, int32 [], and attend up to it.

        Returns ([B, K, D], the new cache).
        """
        x = cache.rows(x_BxKxD)
        here = jnp.full(cache.beams, position)
        k, v = self.keys_values(x)
        q, k = (self.rotation(y, here) for y in (self.query(x), k))
        cache = cache.write(k, v, position)
        mask = cache.mask(self.visible(position, jnp.arange(cache.length)))
        bias = self.position_bias(here, cache.positions)
        return cache.hypotheses(
            self.out(self.attend(q, *cache.keys_values(), mask, bias=bias))
        ), cache


def mixer_class(config: Model) -> Any:
    return MIXERS.load(config.mixer)


def make_mixer(config: Model, dtype: jnp.dtype, *, causal: bool, depth: int) -> nn.Module:
    """Return the mixer of a layer, causal in the decoder.

    `depth` is the number of layers below it.
    """
    mixer = mixer_class(config)
    return mixer(config, dtype, causal, depth, name=mixer.NAME)


def segment_mask(query_segments: jax.Array, key_segments: jax.Array) -> jax.Array:
    """Return a mask [..., 1, T, S]: same segment, and not padding (segment 0).

    Args:
        query_segments: segment ids [..., T].
        key_segments: segment ids [..., S].
    """
    same = query_segments[..., :, None] == key_segments[..., None, :]
    return (same & (key_segments > 0)[..., None, :])[..., None, :, :]


def causal_mask(length: int) -> jax.Array:
    """Return a mask [1, 1, T, T]: a position sees itself and earlier positions (3.1)."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def mask_array(mask: jax.Array | SegmentMask) -> jax.Array:
    """Return a `SegmentMask` as bool [B, 1, T, S], and an array unchanged."""
    if not isinstance(mask, SegmentMask):
        return mask
    array = segment_mask(mask.query_segments, mask.key_segments)
    return array & causal_mask(array.shape[-1]) if mask.causal else array


def scores_of_groups(
    score: Callable[[jax.Array, jax.Array], jax.Array], q: jax.Array, k: jax.Array
) -> jax.Array:
    """Return `score` of q [..., T, N, H] and k [..., S, G, H] as [..., N, T, S].

    Query heads that share a key head are computed as queries of one head.
    """
    *batch, length, heads, width = q.shape
    if (sharing := heads // k.shape[-2]) > 1:
        q = jnp.moveaxis(q.reshape(*batch, length, -1, sharing, width), -2, -4)
        q = q.reshape(*batch, sharing * length, -1, width)
    scores = score(q, k)
    return scores.reshape(*scores.shape[:-3], heads, length, scores.shape[-1])


def weighted_values(weights: jax.Array, v: jax.Array) -> jax.Array:
    """Return weights [..., N, T, S] times values v [..., S, G, H], as [..., T, N, H]."""
    *batch, heads, length, keys = weights.shape
    values = jnp.einsum("...nts,...snh->...nth", weights.reshape(*batch, v.shape[-2], -1, keys), v)
    return jnp.moveaxis(values.reshape(*values.shape[:-3], heads, length, values.shape[-1]), -2, -3)
