"""Keys and values of incremental decoding, in the layout in which the products of a step read them: no step transposes them."""

from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp

SHARED_BEAMS = 8
"""The beams of a sentence share slots up to this number. Each attends over the slots of all, so that products grow with the
square of the number; more than these have slots of their own, which move with them.
"""


def decoding_layout(k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keys [..., S, G, d_k] and values [..., S, G, d_v] as [..., G, d_k, S] and [..., G, S, d_v]."""
    return jnp.moveaxis(k, -3, -1), jnp.moveaxis(v, -3, -2)


def from_decoding_layout(k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The inverse of `decoding_layout`; compiled for a CPU, a view."""
    return jnp.moveaxis(k, -1, -3), jnp.moveaxis(v, -2, -3)


@flax.struct.dataclass
class DecodingCache:
    """Slots for the keys and values of K hypotheses at T positions: key [..., G, d_k, slots], value [..., G, slots, d_v].

    Shared slots, [B, ...], are T x K: position t has the slots t * K to t * K + K - 1, one for each hypothesis. They stay where
    they are when hypotheses are reordered: ancestors, int32 [B, K, T], says in whose slot a hypothesis finds each position. The
    slots of others get the weight 0, so all must be finite. Without `ancestors` each hypothesis has T slots of its own,
    [B, K, ...], which are reordered with it.
    """

    key: jax.Array
    value: jax.Array
    ancestors: jax.Array | None

    @classmethod
    def empty(
        cls, batch: int, beams: int, length: int, heads: int, widths: tuple[int, int], dtype: jnp.dtype
    ) -> "DecodingCache":
        """Returns room for `length` positions of keys and values of these (d_k, d_v)."""
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
        """Hypotheses that share slots."""
        return 1 if self.ancestors is None else self.ancestors.shape[1]

    @property
    def length(self) -> int:
        """T, the positions for which there is room."""
        return self.key.shape[-1] // self.beams

    @property
    def positions(self) -> jax.Array:
        """int32 [slots]: the position of each slot."""
        return jnp.repeat(jnp.arange(self.length), self.beams)

    def rows(self, x_BxKxD: jax.Array) -> jax.Array:
        """Returns the hypotheses as rows of queries: [B, K, D], or [B, K, 1, D] where each has slots of its own."""
        return x_BxKxD[:, :, None] if self.ancestors is None else x_BxKxD

    def hypotheses(self, x: jax.Array) -> jax.Array:
        """The inverse of `rows`: [B, K, D]."""
        return x[:, :, 0] if self.ancestors is None else x

    def write(self, k: jax.Array, v: jax.Array, position: jax.Array) -> "DecodingCache":
        """Returns a copy with the keys and values of the rows, [..., G, width], written at `position`."""
        update = jax.lax.dynamic_update_slice_in_dim
        (new_key, new_value), first = decoding_layout(k, v), position * self.beams
        key = update(self.key, new_key, first, self.key.ndim - 1)
        value = update(self.value, new_value, first, self.value.ndim - 2)
        if self.ancestors is None:
            return DecodingCache(key, value, None)
        own_BxKx1 = jnp.broadcast_to(jnp.arange(self.beams)[:, None], (*self.ancestors.shape[:2], 1))
        return DecodingCache(key, value, update(self.ancestors, own_BxKx1, position, 2))

    def keys_values(self) -> tuple[jax.Array, jax.Array]:
        """Keys [..., slots, G, d_k] and values [..., slots, G, d_v]."""
        return from_decoding_layout(self.key, self.value)

    def mask(self, visible_T: jax.Array) -> jax.Array:
        """Returns which slots a query attends to: those at visible positions, of its own ancestors where they are shared."""
        if self.ancestors is None:
            return visible_T
        own_BxKxTxK = (self.ancestors[..., None] == jnp.arange(self.beams)) & visible_T[:, None]
        return own_BxKxTxK.reshape(len(self.ancestors), 1, self.beams, -1)

    def grow(self, length: int) -> "DecodingCache":
        """Returns a copy with room for `length` positions."""
        more = length - self.length

        def pad(x, axis, count):
            return jnp.pad(x, [(0, count if i == axis % x.ndim else 0) for i in range(x.ndim)])

        ancestors = None if self.ancestors is None else pad(self.ancestors, -1, more)
        return DecodingCache(pad(self.key, -1, more * self.beams), pad(self.value, -2, more * self.beams), ancestors)

    def reorder(self, pick: Callable[[jax.Array], jax.Array]) -> "DecodingCache":
        """Returns a copy whose hypotheses are others of the same sentence. pick: of an array [B, K, ...], theirs."""
        if self.ancestors is None:
            return DecodingCache(pick(self.key), pick(self.value), None)
        return DecodingCache(self.key, self.value, pick(self.ancestors))
