"""The cache of incremental decoding: slots of beams."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import model_and_state, random_pairs, rows_alone, small_config
from helpers.table_model import sentences

from t2t_flax.config import Model
from t2t_flax.decoding.beam_search import BeamSearch
from t2t_flax.decoding.search_loop import run_search
from t2t_flax.models import decoding_cache
from t2t_flax.models.attention import MixerInputs, SelfAttention


@pytest.mark.parametrize(
    "keys", [dict(num_kv_heads=2, position="learned"), pytest.param({}, marks=pytest.mark.slow)]
)
def test_shared_and_own_slots_give_the_same_beams(monkeypatch, keys):
    """Beams that share slots find theirs by ancestors; slots of their own move with them.

    Also as the cache grows.
    """
    model, _, state, _ = model_and_state(small_config(model=dict(num_decoder_layers=2) | keys))
    params = jax.tree.map(lambda x: 2 * x if x.ndim > 1 else x, state.params)
    sources = rows_alone(random_pairs(3, longest=12, seed=2), 16)["source"]
    results = []
    for shared, dims in ((8, 4), (1, 5)):
        monkeypatch.setattr(decoding_cache, "SHARED_BEAMS", shared)
        start = jax.jit(
            lambda params: model.apply({"params": params}, sources, 4, 8, method="start_cache")
        )
        cache = start(params)
        assert cache["self"][0].key.ndim == dims

        def step(params, tokens, position, cache):
            return model.apply({"params": params}, tokens, position, cache, method="decode_step")

        options = BeamSearch(4, 0.6, 4)
        results.append(
            run_search(step, params, cache, options, sentences([12] * 3), lengths=(8, 16))
        )
    np.testing.assert_array_equal(results[0].tokens, results[1].tokens)
    np.testing.assert_allclose(results[0].log_probs, results[1].log_probs, rtol=1e-5)
    assert len(np.unique(np.asarray(results[0].tokens)[0], axis=0)) == 4


def test_wide_beams_and_samples_have_slots_of_their_own():
    """Shared ones would multiply products and scores by their number."""
    module = SelfAttention(Model(d_model=8, num_heads=2), causal=True)
    rows = jnp.zeros((1, 2, 8)), MixerInputs(jnp.ones((1, 2), int), jnp.zeros((1, 2), int))
    variables = jax.eval_shape(lambda: module.init(jax.random.key(0), *rows))

    def shape(beams):
        return jax.eval_shape(
            lambda x: module.apply(x, 3, beams, 16, method="empty_cache"), variables
        ).key.shape

    shapes = {beams: shape(beams) for beams in (1, 8, 9, 64)}
    assert shapes == {
        1: (3, 1, 2, 4, 16),
        8: (3, 2, 4, 128),
        9: (3, 9, 2, 4, 16),
        64: (3, 64, 2, 4, 16),
    }
