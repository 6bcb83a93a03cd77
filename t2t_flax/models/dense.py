"""Building blocks: einsum with logical axis names, float32 results, and norms."""

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.registry import NORMS


class Einsum(nn.Module):
    """Einsum with one kernel; Xavier-uniform with this gain, biases 0.

    `in_axis` and `out_axis` are the kernel axes that are summed over and produced. Without them
    Xavier's fans are wrong for a kernel with a head axis (std 0.0074 instead of 0.0442 at
    [512, 8, 64]).
    """

    equation: str
    shape: tuple[int, ...]
    names: tuple[str | None, ...]
    in_axis: tuple[int, ...] = (0,)
    out_axis: tuple[int, ...] = (1,)
    use_bias: bool = False
    gain: float = 1.0
    dtype: jnp.dtype = jnp.dtype("float32")

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        init = nn.initializers.variance_scaling(
            self.gain**2, "fan_avg", "uniform", in_axis=self.in_axis, out_axis=self.out_axis
        )
        kernel: Any = self.param(
            "kernel", nn.with_logical_partitioning(init, self.names), self.shape, jnp.float32
        )
        if not self.use_bias:
            return jnp.einsum(self.equation, x.astype(self.dtype), kernel.astype(self.dtype))
        names = tuple(self.names[axis] for axis in self.out_axis)
        shape = tuple(self.shape[axis] for axis in self.out_axis)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, names)
        bias: Any = self.param("bias", zeros, shape, jnp.float32)
        # Added in float32: XLA then fuses product, bias and rounding into one GPU kernel.
        return (product_with_float32_result(self.equation, x, kernel, self.dtype) + bias).astype(
            self.dtype
        )


_CAST: contextvars.ContextVar[bool] = contextvars.ContextVar("cast", default=False)


@contextlib.contextmanager
def cast_results() -> Iterator[None]:
    """Trace `product_with_float32_result` as a bfloat16 product and a cast.

    The product is cast to float32 and scaled. This context is for compilers that fuse these steps
    into one operation without rounding. The scale, a power of two, is taken out of an operand
    before the product.
    """
    token = _CAST.set(True)
    try:
        yield
    finally:
        _CAST.reset(token)


def product_with_float32_result(
    equation: str, x: jax.Array, y: jax.Array, dtype: jnp.dtype
) -> jax.Array:
    """Return `jnp.einsum(equation, x, y)` as float32.

    Operands are in the compute type `dtype`. In bfloat16 the backward pass rounds the cotangent,
    float32 like the result, to bfloat16 before its two products: with a float32 operand they would
    run at a fraction of the peak. All three products sum in float32, and gradients of float32
    operands are not rounded again. Each index of an operand must occur in the other operand or in
    the result.
    """
    if dtype != jnp.bfloat16:
        return jnp.einsum(
            equation, x.astype(dtype), y.astype(dtype), preferred_element_type=jnp.float32
        )
    return _bfloat16_product(equation, x, y)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _bfloat16_product(equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return _einsum(equation, x, y, jnp.float32)


def _forward(equation, x, y):
    return _bfloat16_product(equation, x, y), (x, y)


def _backward(equation, operands, cotangent):
    x, y = operands
    operands, of_result = equation.split("->")
    of_x, of_y = operands.split(",")
    return (
        _einsum(f"{of_result},{of_y}->{of_x}", cotangent, y, x.dtype),
        _einsum(f"{of_result},{of_x}->{of_y}", cotangent, x, y.dtype),
    )


_bfloat16_product.defvjp(_forward, _backward)


def _einsum(equation, x, y, result):
    x, y = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
    if _CAST.get() and result == jnp.float32:
        return jnp.einsum(equation, x * jnp.bfloat16(0.5), y).astype(jnp.float32) * 2.0
    return jnp.einsum(equation, x, y, preferred_element_type=result)


class LayerNorm(nn.Module):
    """Layer normalization over the last axis (3.1).

    (x - mean) / sqrt(variance + epsilon) * scale + bias, with float32 statistics and a two-pass
    variance.
    """

    epsilon: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def vector(name, init) -> Any:
            init = nn.with_logical_partitioning(init, ("norm",))
            return self.param(name, init, x.shape[-1:], jnp.float32)

        scale, bias = vector("scale", nn.initializers.ones), vector("bias", nn.initializers.zeros)
        return _layer_norm(x, scale, bias, self.epsilon, self.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _layer_norm(x, scale, bias, epsilon, dtype):
    # On a CPU this mean is faster than the one of training: XLA vectorizes the sum.
    return _norm(x, scale, bias, epsilon, dtype, lambda x: x.mean(-1, keepdims=True))[0]


def _norm_forward(x, scale, bias, epsilon, dtype):
    return _norm(x, scale, bias, epsilon, dtype, _mean)


def _mean(x):
    # Multiplies instead of dividing the sum: the division would be a separate kernel on a GPU.
    return (x * (1 / x.shape[-1])).sum(-1, keepdims=True)


def _norm(x, scale, bias, epsilon, dtype, mean_of):
    mean = mean_of(x.astype(jnp.float32))
    inverse = jax.lax.rsqrt(mean_of(jnp.square(x - mean)) + epsilon)
    # Saved for the backward pass, where XLA would otherwise recompute them in each kernel.
    mean, inverse = jax.lax.optimization_barrier((mean, inverse))
    y = (x - mean) * (inverse * scale) + bias
    return y.astype(dtype), (x, mean, inverse, scale)


def _norm_backward(epsilon, dtype, saved, cotangent):
    x, mean, inverse, scale = saved
    cotangent = cotangent.astype(jnp.float32)
    normalized = (x - mean) * inverse
    tokens = tuple(range(x.ndim - 1))
    d_scale = (cotangent * normalized).sum(tokens)
    d = cotangent * scale
    d -= _mean(d) + normalized * _mean(d * normalized)
    return (inverse * d).astype(x.dtype), d_scale, cotangent.sum(tokens)


_layer_norm.defvjp(_norm_forward, _norm_backward)


def make_norm(config: Model, dtype: jnp.dtype) -> nn.Module:
    return NORMS.load(config.norm_type)(config.norm_eps, dtype)
