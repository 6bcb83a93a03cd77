"""Layers that carry the logical names of their parameters: einsum, LayerNorm, embedding, feed-forward."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.models.dropout import Dropout, Noise

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"relu": nn.relu, "gelu": nn.gelu, "swish": nn.swish}


class Einsum(nn.Module):
    """One kernel and one einsum, written out at the call site; Xavier-uniform with this gain, biases 0.

    `in_axis` and `out_axis` say which kernel axes are summed over and produced: Xavier's fans of a kernel with separate
    head axes come out wrong without them (std 0.0074 instead of 0.0442 at [512, 8, 64]).
    """

    equation: str
    shape: tuple[int, ...]
    names: tuple[str, ...]
    in_axis: tuple[int, ...] = (0,)
    out_axis: tuple[int, ...] = (1,)
    use_bias: bool = False
    gain: float = 1.0
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        init = nn.initializers.variance_scaling(
            self.gain**2, "fan_avg", "uniform", in_axis=self.in_axis, out_axis=self.out_axis
        )
        kernel = self.param("kernel", nn.with_logical_partitioning(init, self.names), self.shape, jnp.float32)
        y = jnp.einsum(self.equation, x.astype(self.dtype), kernel.astype(self.dtype))
        if self.use_bias:
            names, shape = ([of[axis] for axis in self.out_axis] for of in (self.names, self.shape))
            init = nn.with_logical_partitioning(nn.initializers.zeros, tuple(names))
            y += self.param("bias", init, tuple(shape), jnp.float32).astype(self.dtype)
        return y


def layer_norm(epsilon: float, dtype: jnp.dtype, name: str | None = None) -> nn.LayerNorm:
    """LayerNorm over the last axis; float32 statistics, two-pass variance."""
    return nn.LayerNorm(
        epsilon=epsilon,
        dtype=dtype,
        param_dtype=jnp.float32,
        use_fast_variance=False,
        scale_init=nn.with_logical_partitioning(nn.initializers.ones, ("norm",)),
        bias_init=nn.with_logical_partitioning(nn.initializers.zeros, ("norm",)),
        name=name,
    )


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 (3.3), or another activation in place of max(0, .). x [..., D] -> [..., D]."""

    d_model: int
    d_ff: int
    dropout: float = 0.0
    activation: str = "relu"
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, noise: Noise | None) -> jax.Array:
        up = Einsum("...d,df->...f", (self.d_model, self.d_ff), ("embed", "mlp"), use_bias=True, dtype=self.dtype)
        down = Einsum("...f,fd->...d", (self.d_ff, self.d_model), ("mlp", "embed"), use_bias=True, dtype=self.dtype)
        hidden = Dropout(self.dropout, name="hidden_dropout")(ACTIVATIONS[self.activation](up(x)), noise)
        return down(hidden)
