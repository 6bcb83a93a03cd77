"""Attention restricted to a neighbourhood (end of section 4), computed in bands.

A row is cut into blocks. The queries of a block meet the keys of their own block and of its
neighbours, so that products and memory grow with r * n instead of n^2.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.extensions.layer_types import LayerTypes
from t2t_flax.models.attention import (
    MixerInputs,
    SegmentMask,
    SelfAttention,
    mask_array,
    segment_mask,
)

_SMALLEST_BLOCK = 8  # smaller products are no faster


class LocalAttention(SelfAttention):
    """Mixer `local_attention`: a position sees its neighbours.

    Position i sees each j with |i - j| <= (r - 1) / 2, where r = layer_types.window.
    """

    @property
    def reach(self) -> int:
        """Positions that one sees to each side."""
        return LayerTypes.of(self.config).window // 2

    def attend_row(
        self, q: jax.Array, k: jax.Array, v: jax.Array, inputs: MixerInputs
    ) -> jax.Array:
        """Return attention [B, T, N, H], computed in bands.

        Short rows, and weights that are collected (`intermediates`), take the whole matrix.
        """
        length = q.shape[1]

        def attend(q, k, v, mask, query_positions, key_positions):
            bias = self.position_bias(query_positions, key_positions)
            return self.attend(q, k, v, mask, bias=bias, noise=inputs.noise)

        if saves_work(self.reach, length, causal=self.causal) and not self.is_mutable_collection(
            "intermediates"
        ):
            rows = (q, k, v, inputs.segments, inputs.positions)
            return banded_attention(attend, *rows, reach=self.reach, causal=self.causal)
        if self.reach >= length - 1:
            return super().attend_row(q, k, v, inputs)
        mask = mask_array(SegmentMask(inputs.segments, inputs.segments, self.causal)) & window_mask(
            length, self.reach
        )
        return attend(q, k, v, mask, inputs.positions, inputs.positions)

    def visible(self, position: jax.Array, keys_T: jax.Array) -> jax.Array:
        """Return bool [T]: the positions `keys_T` in the decoded position's window."""
        return super().visible(position, keys_T) & (keys_T >= position - self.reach)

    @staticmethod
    def compared_pairs(config: Model, tokens: float, pairs: float) -> float:
        """Return the number of compared pairs of tokens, r n for n tokens (Table 1).

        Args:
            pairs: pairs of tokens in the same segment.
        """
        return min(pairs, tokens * LayerTypes.of(config).window)


def window_mask(length: int, reach: int) -> jax.Array:
    """Return a mask [1, 1, T, T] of the positions in reach.

    A position sees at most `reach` before or after it.
    """
    index = jnp.arange(length)
    return (jnp.abs(index[:, None] - index) <= reach)[None, None]


def block_size(reach: int) -> int:
    """Return the positions in a block.

    It is at least `reach`, so that a window ends in the neighbouring blocks.
    """
    return max(_SMALLEST_BLOCK, reach)


def saves_work(reach: int, length: int, *, causal: bool) -> bool:
    """Return True if the bands are smaller than the whole matrix.

    The matrix is for a row of this length.
    """
    return reach < length - 1 and (2 if causal else 3) * block_size(reach) < length


def banded_attention(
    attend: Callable[..., jax.Array],
    q_BxTxNxH: jax.Array,
    k_BxTxGxH: jax.Array,
    v_BxTxGxH: jax.Array,
    segments_BxT: jax.Array,
    positions_BxT: jax.Array,
    *,
    reach: int,
    causal: bool,
) -> jax.Array:
    """Return attention [B, T, N, H] over the segment, at most `reach` away.

    Args:
        attend: attend(q, k, v, mask, query_positions, key_positions) is plain attention over the
            last axes. It gets C blocks in a row, each with T queries and S keys (its own and its
            neighbours').
    """
    batch, length = segments_BxT.shape
    block = block_size(reach)
    count = -(-length // block)

    def blocks(x):
        x = jnp.pad(x, [(0, 0), (0, count * block - length)] + [(0, 0)] * (x.ndim - 2))
        return x.reshape(batch, count, block, *x.shape[2:])

    def with_neighbours(x):
        rest = [(0, 0)] * (x.ndim - 2)
        before = jnp.pad(x[:, :-1], [(0, 0), (1, 0), *rest])
        after = [] if causal else [jnp.pad(x[:, 1:], [(0, 0), (0, 1), *rest])]
        return jnp.concatenate([before, x, *after], axis=2)

    segments, positions = blocks(segments_BxT), blocks(positions_BxT)
    key_segments = with_neighbours(segments)
    distance_TxS = jnp.arange(block)[:, None] + block - jnp.arange(key_segments.shape[2])
    near_TxS = (distance_TxS <= reach) & (distance_TxS >= (0 if causal else -reach))
    mixed_BxCxTxNxH = attend(
        blocks(q_BxTxNxH),
        with_neighbours(blocks(k_BxTxGxH)),
        with_neighbours(blocks(v_BxTxGxH)),
        segment_mask(segments, key_segments) & near_TxS,
        positions,
        with_neighbours(positions),
    )
    return mixed_BxCxTxNxH.reshape(batch, count * block, *mixed_BxCxTxNxH.shape[3:])[:, :length]
