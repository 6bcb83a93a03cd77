"""Speculative decoding against greedy search: equal outputs, whatever the draft proposes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import devices_mesh, model_and_state, random_pairs, rows_alone, small_config
from helpers.table_model import sentences
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax.decoding.sampling import Sampling
from t2t_flax.decoding.search_loop import run_search
from t2t_flax.decoding.translator import DecodeStep, start_search
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.extensions.speculative.model import WithDraft
from t2t_flax.extensions.speculative.search import GreedySearch

VOCAB = 12
POSITIONS = dict(position="learned", max_positions=24)
MODELS = {
    "plain": dict(num_decoder_layers=2),
    "none": dict(position="none", num_kv_heads=2, norm_placement="pre"),
    "learned": POSITIONS | dict(pad_vocab_to_multiple=5, decoder_start_token="bos"),
    "rotary": dict(position="rotary", tie_embeddings="none", output_bias=True),
    "alibi": dict(position="alibi", d_model=24, d_ff=40),
    "window": dict(mixer="local_attention"),
}


@functools.cache
def made(name: str):
    """(model, parameters) with logits that are far from uniform."""
    groups = dict(layer_types=dict(window=5)) if name == "window" else {}
    seed = dict(init=list(MODELS).index(name))
    model, _, state, _ = model_and_state(
        small_config(model=dict(dropout=0.0) | MODELS[name], seed=seed, **groups), vocab=VOCAB
    )
    return model, jax.tree.map(lambda x: 2.0 * x, state.params)


def close_to(name: str, noise: float):
    """A draft that proposes what its model would write, but for some tokens."""
    model, params = made(name)
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(7), len(leaves))
    noisy = [x + noise * jnp.std(x) * jax.random.normal(key, x.shape) for key, x in zip(keys, leaves, strict=True)]
    return model, tree.unflatten(noisy)


def search(model, params, strategy, sources, caps, prefix=None, lengths=(8, 32), mesh=None):
    mesh = mesh or devices_mesh()
    params = jax.device_put(jax.device_get(params), mesh_lib.named(mesh, mesh_lib.REPLICATED))
    sources = jax.device_put(jax.device_get(sources), mesh_lib.named(mesh, mesh_lib.ROWS))
    with mesh_lib.use(mesh):
        cache = start_search(model, params, sources, 1, lengths[0])
        inputs = sentences(caps, prefix)
        return jax.device_get(run_search(DecodeStep(model), params, cache, strategy, inputs, lengths=lengths))


def assert_equal_to_greedy(name, draft, tokens, sources, caps, **options):
    model, params = made(name)
    both = {"model": params, "draft": draft[1]}
    expected = search(model, params, Sampling(temperature=0.0), sources, caps, **options)
    found = search(WithDraft(model, draft[0], tokens), both, GreedySearch(temperature=0.0), sources, caps, **options)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_array_equal(found.finished, expected.finished)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4, rtol=1e-5)
    return expected


def sources_of(count: int, seed: int = 0):
    return jnp.asarray(rows_alone(random_pairs(count, seed=seed, longest=8, vocab=VOCAB), 8)["source"])


@pytest.mark.parametrize("noise", [0.0, 0.3, 3.0])
@pytest.mark.parametrize(
    "name", [name if name == "plain" else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_outputs_are_those_of_greedy_search(name, noise):
    """With drafts that agree always, often and hardly; sentences end at EOS and at caps, and caches grow."""
    caps = np.arange(24) + 1
    result = assert_equal_to_greedy(name, close_to(name, noise), 3, sources_of(24), caps)
    assert result.lengths.max() > 8


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(st.data())
def test_any_draft_prefixes_and_caps(data):
    name, other = (data.draw(st.sampled_from(["plain", "learned", "window"])) for _ in range(2))
    noise = data.draw(st.sampled_from([None, 0.0, 0.1, 0.3]))
    draft = made(other) if noise is None else close_to(name, noise)
    tokens, seed = data.draw(st.sampled_from([1, 4])), data.draw(st.integers(0, 100))
    caps = data.draw(st.lists(st.integers(1, 24), min_size=4, max_size=4))
    prefix = np.zeros((4, 6), np.int32)
    for row in prefix[: 4 * data.draw(st.booleans())]:
        ids = data.draw(st.lists(st.integers(2, VOCAB - 1), max_size=6))
        row[: len(ids)] = ids
    assert_equal_to_greedy(name, draft, tokens, sources_of(4, seed), np.array(caps), prefix=prefix)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [dict(data=2), dict(tensor=2), pytest.param(dict(fsdp=2), marks=pytest.mark.drill)])
def test_on_several_devices(mesh):
    """Rows are independent, sharded by sentences, and heads among devices."""
    assert_equal_to_greedy(
        "plain", close_to("plain", 0.3), 3, sources_of(8), np.arange(8) + 5, mesh=devices_mesh(**mesh)
    )


class Counted(WithDraft):
    """Counts the rounds."""

    rounds = 0

    def _round(self, params, cache, written):
        def count():
            Counted.rounds += 1

        jax.debug.callback(count)
        return super()._round(params, cache, written)


def rounds(draft, caps, prefix=None):
    model, params = made("plain")
    Counted.rounds = 0
    both, counted, caps = {"model": params, "draft": draft[1]}, Counted(model, draft[0], 3), np.array(caps)
    found = search(
        counted, both, GreedySearch(temperature=0.0), sources_of(len(caps)), caps, prefix=prefix, lengths=(32,)
    )
    jax.effects_barrier()
    assert found.lengths.max() == caps.max()
    return Counted.rounds


def test_good_proposals_save_rounds():
    """24 tokens take 6 rounds where 3 proposals are always kept."""
    assert rounds(made("plain"), [24] * 8) <= 6


def test_sentences_do_not_wait_for_each_other():
    """One keeps its proposals at first, another later: forced tokens are proposed right, others by another model. Together they
    would take 4 rounds to token 4, 2 to token 12 and 4 to token 16.
    """
    prefix = np.zeros((2, 16), np.int32)
    prefix[0, :12] = prefix[1, 4:] = 5
    assert rounds(made("rotary"), [16, 16], prefix) <= 7


def test_logits_of_a_run_in_training_are_searched_greedily():
    model, params = made("plain")
    caps = np.full(8, 12)
    results = [search(model, params, s(temperature=0.0), sources_of(8), caps) for s in (Sampling, GreedySearch)]
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_kept_programs_are_told_apart_by_draft_and_number_of_tokens():
    described = pytest.importorskip("t2t_flax.extensions.serving.programs").described
    model, params = made("plain")
    other, _ = made("none")
    both = {"model": params, "draft": params}

    def description(draft, tokens):
        return described(start_search, (WithDraft(model, draft, tokens), both, sources_of(2), 1, 8))

    assert description(model, 3) == description(model, 3)
    assert len({description(model, 3), description(model, 4), description(other, 3)}) == 3
