"""Mixers of Table 1: recurrent and convolutional layers.

They replace self-attention. See `t2t_flax.models.attention`.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.extensions.layer_types import LayerTypes
from t2t_flax.extensions.shared.matrices import MATRIX_AXES
from t2t_flax.models.attention import MixerInputs
from t2t_flax.models.dense import Einsum

MATRIX_AXES["taps"] = (1, 2)  # [taps, d_model, d_model]: one matrix per tap
# Dilations start again at 1 once the layers connect a row of this many positions, as in ByteNet.
LONGEST_DILATED = 256


class Recurrent(nn.Module):
    """Recurrent layer of width d_model.

    In the encoder, two layers of width d_model / 2, one in each direction, are side by side. The
    state is float32 and starts at zero in each segment. There is no projection besides the cell's
    own.
    """

    NAME: ClassVar[str] = "recurrence"
    config: Model
    dtype: jnp.dtype
    causal: bool
    depth: int = 0

    Cell: ClassVar[Callable[..., nn.RNNCellBase]]

    def setup(self):
        d = self.config.d_model
        self.forward = self._cell(d if self.causal else d // 2)
        if not self.causal:
            self.backward = self._cell(d // 2)

    def _cell(self, width: int) -> nn.RNNCellBase:
        def named(init, *names):
            return nn.with_logical_partitioning(init, names)

        # Half of d_model need not divide evenly among devices.
        rows = "embed" if width == self.config.d_model else None
        return self.Cell(
            width,
            kernel_init=named(nn.initializers.xavier_uniform(), "embed", "kv"),
            recurrent_kernel_init=named(nn.initializers.orthogonal(), rows, "kv"),
            bias_init=named(nn.initializers.zeros, "kv"),
            dtype=self.dtype,
        )

    def __call__(self, x_BxTxD: jax.Array, inputs: MixerInputs) -> jax.Array:
        """Map [B, T, D] to [B, T, D]."""
        changes = inputs.segments[:, 1:] != inputs.segments[:, :-1]
        first_BxT = jnp.pad(changes, ((0, 0), (1, 0)), constant_values=True)
        out = _run(self.forward, x_BxTxD, first_BxT)
        if not self.causal:
            last_BxT = jnp.pad(changes, ((0, 0), (0, 1)), constant_values=True)
            out = jnp.concatenate(
                [out, _run(self.backward, x_BxTxD, last_BxT, reverse=True)], axis=-1
            )
        return out.astype(self.dtype)

    def empty_cache(self, batch: int, beams: int, length: int) -> dict[str, Any]:
        """Return an empty cache: `state`, the cell's carry, arrays [B, K, D] for any length."""
        return {
            "state": self.forward.initialize_carry(
                jax.random.key(0), (batch, beams, self.config.d_model)
            )
        }

    def step(self, x_BxKxD: jax.Array, cache: dict[str, Any], position: jax.Array):
        """Decode one step. Returns ([B, K, D], the new cache)."""
        state, out = self.forward(cache["state"], x_BxKxD)
        return out.astype(self.dtype), {"state": state}


class LSTM(Recurrent):
    Cell = nn.OptimizedLSTMCell


class GRU(Recurrent):
    Cell = nn.GRUCell


def _run(
    cell: nn.RNNCellBase, x_BxTxD: jax.Array, reset_BxT: jax.Array, *, reverse: bool = False
) -> jax.Array:
    """Return outputs [B, T, width] of the cell along time.

    Where `reset`, the state is zero before the step.
    """

    def step(cell, carry, inputs):
        x_BxD, reset_B = inputs
        return cell(jax.tree.map(lambda y: jnp.where(reset_B[:, None], 0, y), carry), x_BxD)

    scan = nn.scan(
        step,
        variable_broadcast="params",
        split_rngs={"params": False},
        in_axes=1,
        out_axes=1,
        reverse=reverse,
    )
    start = cell.initialize_carry(jax.random.key(0), x_BxTxD[:, 0].shape)
    return scan(cell, start, (x_BxTxD, reset_BxT))[1]


class Convolution(nn.Module):
    """Convolution y_t = b + sum_j W_j x_(t + offset_j), linear, without gates.

    The sum is over k positions of t's segment. The offsets are multiples of the dilation: to both
    sides of t in the encoder, t and before it in the decoder.
    """

    NAME: ClassVar[str] = "convolution"
    config: Model
    dtype: jnp.dtype
    causal: bool
    depth: int = 0

    def setup(self):
        d = self.config.d_model
        self.taps = Einsum(
            "...kd,kde->...e",
            (LayerTypes.of(self.config).conv_kernel_size, d, d),
            (None, "embed", "kv"),
            in_axis=(0, 1),
            out_axis=(2,),
            use_bias=True,
            dtype=self.dtype,
        )

    @property
    def dilation(self) -> int:
        """Distance between the positions that one output sees."""
        return 1

    @property
    def offsets(self) -> list[int]:
        """Offsets of the k inputs of a position."""
        k = LayerTypes.of(self.config).conv_kernel_size
        first = 1 - k if self.causal else -(k // 2)
        return [(first + j) * self.dilation for j in range(k)]

    def __call__(self, x_BxTxD: jax.Array, inputs: MixerInputs) -> jax.Array:
        """Map [B, T, D] to [B, T, D]."""
        index = jnp.arange(x_BxTxD.shape[1])
        segments_BxT = inputs.segments

        def tap(offset):
            inside = (index + offset >= 0) & (index + offset < len(index))
            own_BxT = inside & (jnp.roll(segments_BxT, -offset, axis=1) == segments_BxT)
            return jnp.where(own_BxT[..., None], jnp.roll(x_BxTxD, -offset, axis=1), 0)

        return self.taps(jnp.stack([tap(offset) for offset in self.offsets], axis=2))

    def empty_cache(self, batch: int, beams: int, length: int) -> dict[str, jax.Array]:
        """Return an empty cache for the inputs so far, [B, K, T, D]."""
        return {"input": jnp.zeros((batch, beams, length, self.config.d_model), self.dtype)}

    def step(self, x_BxKxD: jax.Array, cache: dict[str, jax.Array], position: jax.Array):
        """Decode one step. Returns ([B, K, D], the new cache)."""
        x_BxKx1xD = x_BxKxD.astype(self.dtype)[:, :, None]
        inputs = jax.lax.dynamic_update_slice_in_dim(cache["input"], x_BxKx1xD, position, axis=2)
        index = position + jnp.array(self.offsets)
        seen = jnp.where((index >= 0)[:, None], jnp.take(inputs, jnp.maximum(index, 0), axis=2), 0)
        return self.taps(seen), {"input": inputs}


class DilatedConvolution(Convolution):
    @property
    def dilation(self) -> int:
        return dilation(LayerTypes.of(self.config).conv_kernel_size, self.depth)


def dilation(width: int, depth: int) -> int:
    """Return the dilation of the layer above `depth` others: width^depth (ByteNet).

    So n positions take log_width(n) layers. That is exact in the causal form, whose offsets are the
    digits of a distance in base `width`. The symmetric form takes up to about twice as many from
    one end of a row to the other: paths that leave the row are lost.
    """
    levels = 1
    while width**levels < LONGEST_DILATED:
        levels += 1
    return width ** (depth % levels)
