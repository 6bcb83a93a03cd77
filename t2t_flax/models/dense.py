"""Position-wise sub-layers with logical parameter names: einsum, norms, feed-forward."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.models.dropout import Dropout, Noise

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"relu": nn.relu, "gelu": nn.gelu, "swish": nn.swish}


class Einsum(nn.Module):
    """One kernel and one einsum, written out at the call site; Xavier-uniform with this gain, biases 0.

    `in_axis` and `out_axis` are the kernel axes that are summed over and produced: without them Xavier's fans of a
    kernel with a head axis are wrong (std 0.0074 instead of 0.0442 at [512, 8, 64]).
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


def layer_norm(epsilon: float, dtype: jnp.dtype) -> nn.Module:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis; float32 statistics, two-pass variance."""
    return nn.LayerNorm(
        epsilon=epsilon,
        dtype=dtype,
        param_dtype=jnp.float32,
        use_fast_variance=False,
        scale_init=_NORM_SCALE,
        bias_init=nn.with_logical_partitioning(nn.initializers.zeros, ("norm",)),
    )


def rms_norm(epsilon: float, dtype: jnp.dtype) -> nn.Module:
    """x / sqrt(mean(x^2) + epsilon) * scale over the last axis (Zhang and Sennrich 2019); float32 statistics."""
    return nn.RMSNorm(epsilon=epsilon, dtype=dtype, param_dtype=jnp.float32, scale_init=_NORM_SCALE)


_NORM_SCALE = nn.with_logical_partitioning(nn.initializers.ones, ("norm",))

# A new norm is a row here and a word in the choices of model.norm_type.
NORMS: dict[str, Callable[[float, jnp.dtype], nn.Module]] = {"layernorm": layer_norm, "rmsnorm": rms_norm}


def make_norm(config: Model, dtype: jnp.dtype) -> nn.Module:
    """The norm of sub-layers and stacks."""
    return NORMS[config.norm_type](config.norm_eps, dtype)


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 (3.3), or another activation in place of max(0, .). x [..., D] -> [..., D]."""

    config: Model
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, noise: Noise | None) -> jax.Array:
        c = self.config
        up = Einsum("...d,df->...f", (c.d_model, c.d_ff), ("embed", "mlp"), use_bias=True, dtype=self.dtype)
        down = Einsum("...f,fd->...d", (c.d_ff, c.d_model), ("mlp", "embed"), use_bias=True, dtype=self.dtype)
        hidden = ACTIVATIONS[c.activation](up(x))
        return down(Dropout(c.dropout_ffn, name="hidden_dropout")(hidden, noise))

    @staticmethod
    def multiply_adds(config: Model, tokens: float) -> float:
        """2 n d d_ff."""
        return tokens * 2 * config.d_model * config.d_ff


class GatedFeedForward(nn.Module):
    """(activation(x W) * x V) W2 without biases (Shazeer 2020): SwiGLU with swish, GEGLU with gelu. [..., D] -> [..., D]."""

    config: Model
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, noise: Noise | None) -> jax.Array:
        c = self.config
        up, down = ("...d,df->...f", (c.d_model, c.d_ff), ("embed", "mlp")), (c.d_ff, c.d_model)
        gate = Einsum(*up, dtype=self.dtype, name="gate")(x)
        hidden = ACTIVATIONS[c.activation](gate) * Einsum(*up, dtype=self.dtype, name="up")(x)
        hidden = Dropout(c.dropout_ffn, name="hidden_dropout")(hidden, noise)
        return Einsum("...f,fd->...d", down, ("mlp", "embed"), dtype=self.dtype, name="down")(hidden)

    @staticmethod
    def multiply_adds(config: Model, tokens: float) -> float:
        """3 n d d_ff."""
        return tokens * 3 * config.d_model * config.d_ff


# A new kind is a class, a row here and a word in the choices of model.feed_forward.
FEED_FORWARDS: dict[str, type[nn.Module]] = {"dense": FeedForward, "gated": GatedFeedForward}


def make_feed_forward(config: Model, dtype: jnp.dtype) -> nn.Module:
    """The feed-forward sub-layer of a layer."""
    return FEED_FORWARDS[config.feed_forward](config, dtype)
