"""Position schemes: values, and the properties stated in their papers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_flax.config import Model
from t2t_flax.models import positions
from t2t_flax.models.positions import PositionVectors


def test_sinusoids_have_the_papers_values():
    """PE[1] at d_model 512, interleaved (3.5) and in halves (tensor2tensor; not just a permutation)."""
    paper = positions.sinusoid_interleaved(jnp.arange(2), 512)
    np.testing.assert_allclose(paper[1, :4], [0.841471, 0.540302, 0.821856, 0.569695], atol=1e-6)
    assert float(paper[1, 510]) == pytest.approx(0.000104, abs=1e-6)
    np.testing.assert_array_equal(paper[0], np.tile([0.0, 1.0], 256))
    halves = positions.sinusoid_halves(jnp.arange(2), 512)
    np.testing.assert_allclose(halves[1, :2], [0.841471, 0.821779], atol=1e-6)


def test_learned_positions_beyond_the_table_give_nan():
    module = positions.PositionVectors(Model(d_model=4, position="learned", max_positions=24))
    vectors, _ = module.init_with_output(jax.random.key(0), jnp.array([0, 23, 24]))
    assert jnp.isnan(vectors).any(-1).tolist() == [False, False, True]


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
    """Pair (i, i + H/2) is rotated by pos * theta^(-2i/H); norms are preserved, and angles are float32 under bfloat16."""
    x = jax.random.normal(jax.random.key(0), (1, 1, 6))
    turned = positions.rotary(x, jnp.array([7]), 1000.0)
    z, w = (np.asarray(y[0, 0, :3]) + 1j * np.asarray(y[0, 0, 3:]) for y in (x, turned))
    np.testing.assert_allclose(w / z, np.exp(7j * 1000.0 ** (-np.arange(3) / 3)), atol=1e-5)
    low = positions.rotary(x.astype(jnp.bfloat16), jnp.array([1007]), 1000.0)
    assert low.dtype == jnp.bfloat16
    np.testing.assert_allclose(low.astype(jnp.float32), positions.rotary(x, jnp.array([1007]), 1000.0), atol=0.03)


def test_alibi_slopes_for_any_number_of_heads():
    """1/2 ... 1/256 for 8 heads; 12 heads use those of 8 and four of those of 16 (Press et al. 2022)."""
    np.testing.assert_array_equal(positions.alibi_slopes(8), 2.0 ** -np.arange(1, 9))
    twelve = positions.alibi_slopes(12)
    np.testing.assert_allclose(twelve, 2.0 ** -np.r_[1:9, [0.5, 1.5, 2.5, 3.5]], rtol=1e-6)
    np.testing.assert_allclose(positions.alibi_slopes(1), [2.0**-8])
    for heads in range(1, 40):
        slopes = positions.alibi_slopes(heads)
        assert len(np.unique(slopes)) == heads and (0 < slopes).all() and (slopes < 1).all()


@pytest.mark.parametrize("scheme", ["sinusoid_interleaved", "sinusoid_halves"])
def test_sinusoids_of_rows_equal_those_of_single_positions(scheme):
    """A row [..., T] has positions below T; one that is not becomes NaN, and not the vector of another position."""
    module = PositionVectors(Model(d_model=8, position=scheme, position_offset=2))
    rows = jnp.array([[0, 1, 2, 0, 1], [4, 3, 2, 1, 0]])
    vectors = module.apply({}, rows)
    for row in range(2):
        for t in range(5):
            np.testing.assert_allclose(vectors[row, t], module.apply({}, rows[row, t]), rtol=1e-6, atol=1e-6)
    assert jnp.isnan(module.apply({}, jnp.array([[0, 3, 1]]))).any(-1).tolist() == [[False, True, False]]
