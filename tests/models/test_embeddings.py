"""The gradient of a lookup in a table."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import model_and_state, random_pairs, rows_alone, small_config

from t2t_flax.models.embeddings import lookup, sum_rows

_SCATTER = re.compile(r"stablehlo\.scatter.*?unique_indices = (\w+)", re.DOTALL)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    "ids",
    [
        [3],
        np.zeros(300),  # an id that fills blocks
        np.repeat([0, 5, 6], [130, 300, 1]),
        np.random.default_rng(0).integers(0, 9, 700),  # out of order; 7 and 8 are beyond the table
        np.random.default_rng(0).zipf(1.3, (4, 200)) - 1,
    ],
    ids=["one", "equal", "runs", "random", "rows"],
)
def test_ordered_sums_of_rows_are_the_gradient_of_a_lookup(ids, dtype):
    """Small integers, whose sums are exact in any order."""
    ids = jnp.asarray(ids, jnp.int32)
    x = jnp.asarray(np.random.default_rng(1).integers(-9, 9, (*ids.shape, 3)), dtype)
    _, transposed = jax.vjp(lambda table: lookup(table, ids, dtype), jnp.zeros((7, 3)))
    sums = jax.jit(sum_rows, static_argnums=2)(x.reshape(-1, 3), ids.reshape(-1), 7)
    np.testing.assert_array_equal(sums, transposed(x)[0])
    assert sums.dtype == jnp.float32


@pytest.mark.parametrize(("platform", "unique"), [("cuda", {"true"}), ("cpu", {"false"})])
def test_gradients_of_tables_are_ordered_sums_on_a_gpu(platform, unique):
    """Elsewhere a plain scatter has an order."""
    model, _, state, _ = model_and_state(
        small_config(model=dict(position="learned", decoder_start_token="eos"))
    )
    batch = rows_alone(random_pairs(4), 24)

    def total(params):
        return model.apply({"params": params}, batch, method="hidden").sum()

    text = (
        jax.jit(jax.grad(total)).trace(state.params).lower(lowering_platforms=(platform,)).as_text()
    )
    assert set(_SCATTER.findall(text)) == unique
