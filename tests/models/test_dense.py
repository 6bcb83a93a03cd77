"""Products with a bias, and layer normalization, whose backward pass is written out."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_flax.models.dense import Einsum, LayerNorm


def random(shape, seed, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def test_product_and_bias_are_rounded_once():
    x, kernel, bias = (
        random((3, 5), 0, jnp.bfloat16),
        random((5, 7), 1, jnp.bfloat16),
        random((7,), 2) * 100,
    )
    module = Einsum(
        "...d,df->...f", (5, 7), ("embed", "mlp"), use_bias=True, dtype=jnp.dtype("bfloat16")
    )
    y = module.apply({"params": {"kernel": kernel.astype(jnp.float32), "bias": bias}}, x)
    exact = x.astype(jnp.float32) @ kernel.astype(jnp.float32) + bias
    np.testing.assert_array_equal(y, exact.astype(jnp.bfloat16))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layer_norm_and_its_gradients_are_flaxs(dtype):
    """Rows that lie far from 0; in bfloat16 each result is rounded once."""
    params = {"scale": random((64,), 0), "bias": random((64,), 1)}
    x = (random((3, 5, 64), 2) + 30).astype(dtype)
    weights = random(x.shape, 3)
    reference = nn.LayerNorm(epsilon=1e-6, dtype=dtype, use_fast_variance=False)

    def results(module):
        def weighted(params, x):
            y = module.apply({"params": params}, x)
            return (y * weights).sum(), y

        gradients, y = jax.grad(weighted, argnums=(0, 1), has_aux=True)(params, x)
        return y, gradients

    expected = results(reference)
    ours = results(LayerNorm(1e-6, jnp.dtype(dtype)))
    rounding = 1e-5 if dtype == "float32" else 2**-7
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        scale = float(jnp.abs(b).max())
        np.testing.assert_allclose(
            a.astype(jnp.float32) / scale, b.astype(jnp.float32) / scale, atol=rounding
        )
