"""Keys and values of incremental decoding, in the layout in which the products of a step read them: no step transposes them."""

import dataclasses

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
class Slots:
    """Keys [..., G, d_k, T * K] or values [..., G, T * K, d_v] of the K beams that share them, at the T positions of a search.

    Position t has the entries t * K to t * K + K - 1 of `axis`. Shared slots, [B, ...], stay where they are when hypotheses are
    reordered: a hypothesis finds its own by its ancestors. Those of others get the weight 0, so all must be finite. With K = 1
    each hypothesis has its own, [B, beams, ...], which are reordered with it.
    """

    array: jax.Array
    axis: int = flax.struct.field(pytree_node=False)
    beams: int = flax.struct.field(pytree_node=False)

    @property
    def shared(self) -> bool:
        """Whether several hypotheses have their entries in the same array."""
        return self.beams > 1

    @property
    def length(self) -> int:
        """T, the positions for which there is room."""
        return self.array.shape[self.axis] // self.beams

    def write(self, new: jax.Array, position: jax.Array) -> "Slots":
        """Returns a copy with `new`, K entries on `axis`, written at `position`."""
        start, axis = position * self.beams, self.axis % self.array.ndim
        return dataclasses.replace(self, array=jax.lax.dynamic_update_slice_in_dim(self.array, new, start, axis))

    def grow(self, length: int) -> "Slots":
        """Returns a copy with room for `length` positions, the new ones 0."""
        widths = [(0, 0)] * self.array.ndim
        widths[self.axis] = (0, (length - self.length) * self.beams)
        return dataclasses.replace(self, array=jnp.pad(self.array, widths))


@flax.struct.dataclass
class DecodingCache:
    """What self-attention keeps of the K hypotheses of B sentences: the `Slots` of keys and values, and with shared ones
    ancestors [B, K, T], the beam in whose slot a hypothesis finds its own. Reordering the hypotheses then moves these alone.

    Beams that share slots attend together, each masked to its own: products over the cache as it lies in memory.
    """

    key: Slots
    value: Slots
    ancestors: jax.Array | None

    @classmethod
    def empty(
        cls, batch: int, beams: int, length: int, heads: int, widths: tuple[int, int], dtype: jnp.dtype
    ) -> "DecodingCache":
        """Returns room for `length` positions of keys and values of these (d_k, d_v)."""
        d_k, d_v = widths
        rows, shared = ((batch,), beams) if 1 < beams <= SHARED_BEAMS else ((batch, beams), 1)
        return cls(
            Slots(jnp.zeros((*rows, heads, d_k, length * shared), dtype), -1, shared),
            Slots(jnp.zeros((*rows, heads, length * shared, d_v), dtype), -2, shared),
            jnp.zeros((batch, beams, length), jnp.int32) if shared > 1 else None,
        )

    @property
    def beams(self) -> int:
        """Queries of a row of slots: those of all beams, or one."""
        return self.key.beams

    @property
    def length(self) -> int:
        """T, the positions for which there is room."""
        return self.key.length

    @property
    def positions(self) -> jax.Array:
        """int32 [T * beams]: the position of each entry."""
        return jnp.repeat(jnp.arange(self.length), self.beams)

    def rows(self, x_BxKxD: jax.Array) -> jax.Array:
        """Returns the hypotheses as rows of queries: [B, K, D], or [B, K, 1, D] where each has slots of its own."""
        return x_BxKxD if self.key.shared else x_BxKxD[:, :, None]

    def hypotheses(self, x: jax.Array) -> jax.Array:
        """The inverse of `rows`: [B, K, D]."""
        return x if self.key.shared else x[:, :, 0]

    def write(self, k: jax.Array, v: jax.Array, position: jax.Array) -> "DecodingCache":
        """Returns a copy with the keys and values of the rows, [..., G, width], written at `position`."""
        new_key, new_value = decoding_layout(k, v)
        ancestors = self.ancestors
        if ancestors is not None:
            batch, beams, _ = ancestors.shape
            own_BxKx1 = jnp.broadcast_to(jnp.arange(beams)[:, None], (batch, beams, 1))
            ancestors = jax.lax.dynamic_update_slice_in_dim(ancestors, own_BxKx1, position, axis=2)
        return DecodingCache(self.key.write(new_key, position), self.value.write(new_value, position), ancestors)

    def keys_values(self) -> tuple[jax.Array, jax.Array]:
        """Keys [..., T * beams, G, d_k] and values [..., T * beams, G, d_v]."""
        return from_decoding_layout(self.key.array, self.value.array)

    def mask(self, visible_T: jax.Array) -> jax.Array:
        """Returns which entries a query attends to: those at visible positions, of its own ancestors where slots are shared."""
        if self.ancestors is None:
            return visible_T
        batch, beams, length = self.ancestors.shape
        own_BxKxTxK = (self.ancestors[..., None] == jnp.arange(beams)) & visible_T[:, None]
        return own_BxKxTxK.reshape(batch, 1, beams, length * beams)
