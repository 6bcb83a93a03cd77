"""Additive attention."""

import jax.numpy as jnp
import numpy as np

from t2t_flax.extensions.layer_types.layers import AdditiveScore


def test_additive_score_of_a_concatenation_equals_split_matrices():
    """(3.2.1, Bahdanau et al.): v tanh(W [q; k]) = v tanh(W_q q + W_k k), the form in our projections."""
    rng = np.random.default_rng(0)
    q, k, w, v = rng.normal(size=(5, 6)), rng.normal(size=(7, 6)), rng.normal(size=(12, 4)), rng.normal(size=4)
    both = np.concatenate([np.repeat(q[:, None], 7, 1), np.repeat(k[None], 5, 0)], -1)
    expected = np.tanh(both @ w) @ v
    heads = [jnp.asarray(x[:, None], jnp.float32) for x in (q @ w[:6], k @ w[6:])]
    scores = AdditiveScore().apply({"params": {"v": jnp.asarray(v[None], jnp.float32)}}, *heads)
    np.testing.assert_allclose(scores[0], expected, atol=1e-5)
