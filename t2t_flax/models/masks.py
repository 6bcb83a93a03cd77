"""Attention masks: bool, True = may attend."""

import flax
import jax
import jax.numpy as jnp

_MASKED_SCORE = -1e9  # finite, so that a query without any key (padding) does not become NaN


def segment_mask(query_segments: jax.Array, key_segments: jax.Array) -> jax.Array:
    """[..., T] and [..., S] -> [..., 1, T, S]: same segment, and not padding (segment 0)."""
    same = query_segments[..., :, None] == key_segments[..., None, :]
    return (same & (key_segments > 0)[..., None, :])[..., None, :, :]


@flax.struct.dataclass
class SegmentMask:
    """`segment_mask` of int32 [B, T] and [B, S], with `causal` also `causal_mask`, not yet made: fused kernels make
    their own.
    """

    query_segments: jax.Array
    key_segments: jax.Array
    causal: bool = flax.struct.field(pytree_node=False, default=False)


def mask_array(mask: jax.Array | SegmentMask) -> jax.Array:
    """A `SegmentMask` as bool [B, 1, T, S]; an array as it is."""
    if not isinstance(mask, SegmentMask):
        return mask
    array = segment_mask(mask.query_segments, mask.key_segments)
    return array & causal_mask(array.shape[-1]) if mask.causal else array


def causal_mask(length: int) -> jax.Array:
    """[1, 1, T, T]: a position sees itself and earlier ones (3.1)."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def masked_softmax(scores: jax.Array, mask: jax.Array) -> jax.Array:
    """Softmax over the last axis (3.2.1). Masked keys get exactly 0, also where every key is masked."""
    return jnp.where(mask, jax.nn.softmax(jnp.where(mask, scores, _MASKED_SCORE), axis=-1), 0.0)
