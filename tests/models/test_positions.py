"""Sinusoids and learned positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_flax.config import Model
from t2t_flax.models import embeddings as positions
from t2t_flax.models.embeddings import PositionVectors


def test_sinusoids_have_the_papers_values():
    """PE[1] at d_model 512, interleaved (3.5) and in halves (tensor2tensor; no permutation)."""
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


@pytest.mark.parametrize("scheme", ["sinusoid_interleaved", "sinusoid_halves"])
def test_sinusoids_of_rows_equal_those_of_single_positions(scheme):
    """A row [..., T] has positions below T.

    One that is not becomes NaN, and not the vector of another position.
    """
    module = PositionVectors(Model(d_model=8, position=scheme, position_offset=2))
    rows = jnp.array([[0, 1, 2, 0, 1], [4, 3, 2, 1, 0]])
    vectors = module.apply({}, rows)
    for row in range(2):
        for t in range(5):
            np.testing.assert_allclose(
                vectors[row, t], module.apply({}, rows[row, t]), rtol=1e-6, atol=1e-6
            )
    assert jnp.isnan(module.apply({}, jnp.array([[0, 3, 1]]))).any(-1).tolist() == [
        [False, True, False]
    ]
