"""Matrix products with a float32 result, of attention scores and logits."""

import functools

import jax
import jax.numpy as jnp


def product_with_float32_result(equation: str, x: jax.Array, y: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """`jnp.einsum(equation, x, y)` of operands in the compute type `dtype`, float32 [...].

    In bfloat16 the cotangent, float32 like the result, is rounded to bfloat16 before the two products of the backward
    pass: with a float32 operand they would run at a fraction of the peak. All three sum in float32, and gradients of
    float32 operands are not rounded again. Each index of an operand must be in the other one or in the result.
    """
    if dtype != jnp.bfloat16:
        return jnp.einsum(equation, x.astype(dtype), y.astype(dtype), preferred_element_type=jnp.float32)
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
    bfloat16 = jnp.bfloat16
    return jnp.einsum(equation, x.astype(bfloat16), y.astype(bfloat16), preferred_element_type=result)
