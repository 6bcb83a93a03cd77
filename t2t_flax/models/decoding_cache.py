"""Keys and values of incremental decoding.

They are stored in the layout that a step's products read, so no step transposes them.
"""

from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp

SHARED_BEAMS = 8
"""Largest beam whose hypotheses share slots.

Each hypothesis then attends over the slots of all of them, so the cost of the products grows with
the square of the beam. In a larger beam each hypothesis has its own slots, which move with it.
"""


def decoding_layout(k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Transpose keys and values to the layout of `DecodingCache`.

    Keys [..., S, G, d_k] become [..., G, d_k, S]. Values [..., S, G, d_v] become [..., G, S, d_v].
    """
    return jnp.moveaxis(k, -3, -1), jnp.moveaxis(v, -3, -2)


def from_decoding_layout(k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Invert `decoding_layout`; compiled for a CPU, this is a view."""
    return jnp.moveaxis(k, -1, -3), jnp.moveaxis(v, -2, -3)


@flax.struct.dataclass
class DecodingCache:
    """Keys and values of K hypotheses at T positions.

    Keys are [..., G, d_k, slots], values [..., G, slots, d_v].

    With `ancestors` the hypotheses of a sentence share T x K slots, [B, ...]: position t has the
    slots t * K to t * K + K - 1, one for each hypothesis. Slots stay in place when hypotheses are
    reordered: ancestors, int32 [B, K, T], names the slot (0 to K - 1) of each position for each
    hypothesis. All other slots get the weight 0, so every slot must be finite.

    Without `ancestors` each hypothesis has its own T slots, [B, K, ...], reordered with it.
    """

    key: jax.Array
    value: jax.Array
    ancestors: jax.Array | None

    @classmethod
    def empty(
        cls,
        batch: int,
        beams: int,
        length: int,
        heads: int,
        widths: tuple[int, int],
        dtype: jnp.dtype,
    ) -> "DecodingCache":
        """Return an empty cache for `length` positions; `widths` is (d_k, d_v)."""
        d_k, d_v = widths
        shared = 1 < beams <= SHARED_BEAMS
        rows, slots = ((batch,), length * beams) if shared else ((batch, beams), length)
        return cls(
            jnp.zeros((*rows, heads, d_k, slots), dtype),
            jnp.zeros((*rows, heads, slots, d_v), dtype),
            jnp.zeros((batch, beams, length), jnp.int32) if shared else None,
        )

    @property
    def beams(self) -> int:
        """Number of hypotheses that share slots."""
        return 1 if self.ancestors is None else self.ancestors.shape[1]

    @property
    def length(self) -> int:
        """T, the number of positions that fit."""
        return self.key.shape[-1] // self.beams

    @property
    def positions(self) -> jax.Array:
        """Position of each slot, int32 [slots]."""
        return jnp.repeat(jnp.arange(self.length), self.beams)

    def rows(self, x_BxKxD: jax.Array) -> jax.Array:
        """Return the hypotheses as query rows [B, K, D].

        With unshared slots the rows are [B, K, 1, D].
        """
        return x_BxKxD[:, :, None] if self.ancestors is None else x_BxKxD

    def hypotheses(self, x: jax.Array) -> jax.Array:
        """Invert `rows`: return [B, K, D]."""
        return x[:, :, 0] if self.ancestors is None else x

    def write(self, k: jax.Array, v: jax.Array, position: jax.Array) -> "DecodingCache":
        """Return a copy with the rows' keys and values written at `position`.

        They are [..., G, width].
        """
        update = jax.lax.dynamic_update_slice_in_dim
        (new_key, new_value), first = decoding_layout(k, v), position * self.beams
        key = update(self.key, new_key, first, self.key.ndim - 1)
        value = update(self.value, new_value, first, self.value.ndim - 2)
        if self.ancestors is None:
            return DecodingCache(key, value, None)
        own_BxKx1 = jnp.broadcast_to(
            jnp.arange(self.beams)[:, None], (*self.ancestors.shape[:2], 1)
        )
        return DecodingCache(key, value, update(self.ancestors, own_BxKx1, position, 2))

    def keys_values(self) -> tuple[jax.Array, jax.Array]:
        """Return keys [..., slots, G, d_k] and values [..., slots, G, d_v]."""
        return from_decoding_layout(self.key, self.value)

    def mask(self, visible_T: jax.Array) -> jax.Array:
        """Return the mask of slots at visible positions.

        With shared slots it contains only the slots of a hypothesis and its ancestors.
        """
        if self.ancestors is None:
            return visible_T
        own_BxKxTxK = (self.ancestors[..., None] == jnp.arange(self.beams)) & visible_T[:, None]
        return own_BxKxTxK.reshape(len(self.ancestors), 1, self.beams, -1)

    def grow(self, length: int) -> "DecodingCache":
        """Return a copy that fits `length` positions."""
        more = length - self.length

        def pad(x, axis, count):
            return jnp.pad(x, [(0, count if i == axis % x.ndim else 0) for i in range(x.ndim)])

        ancestors = None if self.ancestors is None else pad(self.ancestors, -1, more)
        return DecodingCache(
            pad(self.key, -1, more * self.beams), pad(self.value, -2, more * self.beams), ancestors
        )

    def reorder(self, pick: Callable[[jax.Array], jax.Array]) -> "DecodingCache":
        """Return a copy with other hypotheses of the same sentences.

        Args:
            pick: selects these hypotheses from an array [B, K, ...].
        """
        if self.ancestors is None:
            return DecodingCache(pick(self.key), pick(self.value), None)
        return DecodingCache(self.key, self.value, pick(self.ancestors))
