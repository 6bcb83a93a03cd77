"""The layout of keys and values in decoding: as the products of a step read them, so that no step transposes them."""

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
        """With `new`, of K entries on `axis`, at a position."""
        start, axis = position * self.beams, self.axis % self.array.ndim
        return self.replace(array=jax.lax.dynamic_update_slice_in_dim(self.array, new, start, axis))

    def grow(self, length: int) -> "Slots":
        """With room for `length` positions, the new ones 0."""
        widths = [(0, 0)] * self.array.ndim
        widths[self.axis] = (0, (length - self.length) * self.beams)
        return self.replace(array=jnp.pad(self.array, widths))
