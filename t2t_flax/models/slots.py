"""The layout of keys and values in decoding: as the products of a step read them, so that no step copies or transposes them."""

import flax.struct
import jax
import jax.numpy as jnp


def decoding_layout(k_BxSxGxH: jax.Array, v_BxSxGxH: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keys [B, G, H, S] and values [B, G, S, H]."""
    return jnp.moveaxis(k_BxSxGxH, 1, 3), jnp.moveaxis(v_BxSxGxH, 1, 2)


def from_decoding_layout(k_BxGxHxS: jax.Array, v_BxGxSxH: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The inverse of `decoding_layout`: a view, as far as the compiled step is concerned."""
    return jnp.moveaxis(k_BxGxHxS, 3, 1), jnp.moveaxis(v_BxGxSxH, 2, 1)


@flax.struct.dataclass
class Slots:
    """Keys or values of all beams at all positions of a search: the entries of position t are t * beams ... on `axis`.

    Nothing is moved when hypotheses are reordered: a hypothesis knows its ancestors, and finds its entries by them.
    """

    array: jax.Array
    axis: int = flax.struct.field(pytree_node=False)
    beams: int = flax.struct.field(pytree_node=False)

    @property
    def length(self) -> int:
        """Positions for which there is room."""
        return self.array.shape[self.axis] // self.beams

    def write(self, new: jax.Array, position: jax.Array) -> "Slots":
        """With the entries `new`, of size `beams` on `axis`, at a position."""
        start = position * self.beams
        return self.replace(array=jax.lax.dynamic_update_slice_in_dim(self.array, new, start, self.axis))

    def grow(self, length: int) -> "Slots":
        """With room for `length` positions, the new ones 0."""
        more = (length - self.length) * self.beams
        return self.replace(
            array=jnp.pad(self.array, [(0, more if axis == self.axis else 0) for axis in range(self.array.ndim)])
        )
