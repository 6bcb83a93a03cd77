"""Rotary positions and ALiBi: values, and the properties stated in their papers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_flax.extensions.layer_types import positions


@pytest.mark.parametrize("theta", [100.0, 10_000.0])
def test_rotary_scores_depend_only_on_distance(theta):
    q, k = (jax.random.normal(jax.random.key(i), (5, 2, 8)) for i in (0, 1))

    def scores(shift):
        q_turned, k_turned = (positions.rotary(x, jnp.arange(5) + shift, theta) for x in (q, k))
        return jnp.einsum("tnh,snh->nts", q_turned, k_turned)

    np.testing.assert_allclose(scores(700), scores(0), atol=2e-3)
    np.testing.assert_allclose(scores(3), scores(0), atol=2e-5)
    one_further = jnp.einsum("tnh,snh->nts", q, positions.rotary(k, jnp.ones(5), theta))
    assert float(jnp.abs(one_further - jnp.einsum("tnh,snh->nts", q, k)).max()) > 0.1


def test_rotary_is_a_rotation_by_position_times_frequency():
    """Pair (i, i + H/2) is rotated by pos * theta^(-2i/H).

    Norms are preserved, and angles are float32 under bfloat16.
    """
    x = jax.random.normal(jax.random.key(0), (1, 1, 6))
    turned = positions.rotary(x, jnp.array([7]), 1000.0)
    z, w = (np.asarray(y[0, 0, :3]) + 1j * np.asarray(y[0, 0, 3:]) for y in (x, turned))
    np.testing.assert_allclose(w / z, np.exp(7j * 1000.0 ** (-np.arange(3) / 3)), atol=1e-5)
    low = positions.rotary(x.astype(jnp.bfloat16), jnp.array([1007]), 1000.0)
    assert low.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        low.astype(jnp.float32), positions.rotary(x, jnp.array([1007]), 1000.0), atol=0.03
    )


def test_alibi_slopes_for_any_number_of_heads():
    """1/2 ... 1/256 for 8 heads; 12 heads use these and four of 16 heads' (Press et al. 2022)."""
    np.testing.assert_array_equal(positions.alibi_slopes(8), 2.0 ** -np.arange(1, 9))
    twelve = positions.alibi_slopes(12)
    np.testing.assert_allclose(twelve, 2.0 ** -np.r_[1:9, [0.5, 1.5, 2.5, 3.5]], rtol=1e-6)
    np.testing.assert_allclose(positions.alibi_slopes(1), [2.0**-8])
    for heads in range(1, 40):
        slopes = positions.alibi_slopes(heads)
        assert len(np.unique(slopes)) == heads and (0 < slopes).all() and (slopes < 1).all()
