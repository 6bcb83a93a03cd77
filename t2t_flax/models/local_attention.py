"""Self-attention over whole rows, or restricted to a neighbourhood of r positions (end of section 4).

A window is computed in bands: the row is cut into blocks, and the queries of a block meet the keys of their own block
and of its neighbours, so that products and memory grow with r * n and not with n^2.
"""

import jax
import jax.numpy as jnp

from t2t_flax.models.attention import MultiHeadAttention, causal_mask, segment_mask, weights_of, widths
from t2t_flax.models.dropout import Noise

_SMALLEST_BLOCK = 8  # smaller products cost as much time


def window_mask(length: int, reach: int) -> jax.Array:
    """bool [1, 1, T, T]: a position sees those at most `reach` before or after it."""
    places = jnp.arange(length)
    return (jnp.abs(places[:, None] - places) <= reach)[None, None]


class SelfAttention(MultiHeadAttention):
    """The mixer `attention`: within segments, in the decoder up to itself, within model.attention_window if it is set.

    The window is model.attention_window = r: |i - j| <= (r - 1) / 2. The parameters are those of MultiHeadAttention.
    """

    causal: bool = False

    def __call__(self, x_BxTxD: jax.Array, segments_BxT: jax.Array, noise: Noise | None) -> jax.Array:
        """[B, T, D] -> [B, T, D].

        Short rows, and weights that are collected (`intermediates`), take the whole matrix under a mask.
        """
        length, reach, block = x_BxTxD.shape[1], self._reach(x_BxTxD.shape[1]), self._block()
        if (
            reach < length - 1
            and (3 - self.causal) * block < length
            and not self.is_mutable_collection("intermediates")
        ):
            return self._banded(x_BxTxD, segments_BxT, noise, block)
        mask = segment_mask(segments_BxT, segments_BxT)
        mask = mask & causal_mask(length) if self.causal else mask
        mask = mask & window_mask(length, reach) if reach < length - 1 else mask
        return super().__call__(x_BxTxD, x_BxTxD, mask, noise)

    def empty_cache(self, batch: int, beams: int, length: int) -> dict[str, jax.Array]:
        """Keys [B, K, T, N, d_k] and values [B, K, T, N, d_v], written as decoding goes."""
        shape = (batch, beams, length, self.config.num_heads)
        return {
            name: jnp.zeros((*shape, width), self.dtype)
            for name, width in zip(("key", "value"), widths(self.config), strict=True)
        }

    def step(self, x_BxKxD: jax.Array, cache: dict[str, jax.Array], position: jax.Array):
        """One decoding step: writes position's key and value into the cache, attends up to it.

        Returns ([B, K, D], the new cache).
        """
        x_BxKx1xD = x_BxKxD[:, :, None]
        k, v = self.keys_values(x_BxKx1xD)
        cache = {
            "key": jax.lax.dynamic_update_slice_in_dim(cache["key"], k, position, axis=2),
            "value": jax.lax.dynamic_update_slice_in_dim(cache["value"], v, position, axis=2),
        }
        places = jnp.arange(cache["key"].shape[2])
        seen = (places <= position) & (places >= position - self._reach(len(places)))
        weights = self._weights(self.query(x_BxKx1xD), cache["key"], seen)
        return self.out(jnp.einsum("bknts,bksnh->bktnh", weights, cache["value"]))[:, :, 0], cache

    def _reach(self, length: int) -> int:
        return (self.config.attention_window - 1) // 2 if self.config.attention_window else length

    def _block(self) -> int:
        return max(_SMALLEST_BLOCK, self._reach(0))

    def _banded(self, x_BxTxD: jax.Array, segments_BxT: jax.Array, noise: Noise | None, block: int) -> jax.Array:
        length, reach = x_BxTxD.shape[1], self._reach(0)
        count = -(-length // block)

        def blocks(y):
            y = jnp.pad(y, [(0, 0), (0, count * block - length)] + [(0, 0)] * (y.ndim - 2))
            return y.reshape(len(y), count, block, *y.shape[2:])

        def neighbours(y):
            sides = [(0, 0)] * (y.ndim - 1)
            before = jnp.pad(y[:, :-1], [(0, 0), (1, 0), *sides[1:]])
            after = [] if self.causal else [jnp.pad(y[:, 1:], [(0, 0), (0, 1), *sides[1:]])]
            return jnp.concatenate([before, y, *after], axis=2)

        # Letters from here: C blocks, T queries of a block, S keys of a block and its neighbours.
        k, v = self.keys_values(x_BxTxD)
        q_BxCxTxNxH, k_BxCxSxNxH, v_BxCxSxNxH = (
            blocks(self.query(x_BxTxD)),
            neighbours(blocks(k)),
            neighbours(blocks(v)),
        )
        segments = blocks(segments_BxT)
        key_segments = neighbours(segments)
        same_BxCxTxS = (segments[..., :, None] == key_segments[..., None, :]) & (key_segments > 0)[..., None, :]
        before_TxS = jnp.arange(block)[:, None] + block - jnp.arange(key_segments.shape[2])
        near_TxS = (before_TxS <= reach) & (before_TxS >= (0 if self.causal else -reach))
        scores = self.score(q_BxCxTxNxH, k_BxCxSxNxH)
        weights = weights_of(scores, (same_BxCxTxS & near_TxS)[:, :, None]).astype(self.dtype)
        mixed = jnp.einsum("bcnts,bcsnh->bctnh", self.weight_dropout(weights, noise), v_BxCxSxNxH)
        return self.out(mixed.reshape(len(mixed), count * block, *mixed.shape[3:])[:, :length])
