"""Products with a bias."""

import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.models.dense import Einsum


def random(shape, seed, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def test_product_and_bias_are_rounded_once():
    x, kernel, bias = random((3, 5), 0, jnp.bfloat16), random((5, 7), 1, jnp.bfloat16), random((7,), 2) * 100
    module = Einsum("...d,df->...f", (5, 7), ("embed", "mlp"), use_bias=True, dtype=jnp.dtype("bfloat16"))
    y = module.apply({"params": {"kernel": kernel.astype(jnp.float32), "bias": bias}}, x)
    exact = x.astype(jnp.float32) @ kernel.astype(jnp.float32) + bias
    np.testing.assert_array_equal(y, exact.astype(jnp.bfloat16))
