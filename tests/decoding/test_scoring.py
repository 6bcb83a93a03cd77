"""Scoring of pairs, and attention weights of a pair."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.runs import start, tiny_run

from t2t_flax.data.sources import toy
from t2t_flax.errors import UserError
from t2t_flax.evaluation.restore import load
from t2t_flax.training import loop

ALL = {"mesh.data": "-1"}
PAIRS = list(toy.pairs("test", 9))


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("run") / "run"
    config = tiny_run(
        folder, steps=6, checkpoint=dict(every_steps=2, keep_last=3), decode=dict(batch_size=2, max_length_offset=3)
    )
    loop.train(start(config, folder, cache), score=None)
    return folder


@pytest.fixture(scope="module")
def loaded(workdir):
    return load(workdir, overrides=ALL)


def test_scores_equal_those_of_the_search(loaded):
    """Forced decoding of greedy outputs gives the log-probabilities reported by the search."""
    greedy = load(loaded.workdir, overrides=ALL | {"decode.strategy": "greedy"})
    sources = [s for s, _ in PAIRS]
    outputs = [t.hypotheses[0] for t in greedy.translate(sources)]
    finished = [(s, h) for s, h in zip(sources, outputs, strict=True) if not h.hit_cap and h.text.strip()]
    for (_, h), score in zip(finished, loaded.score([(s, h.text) for s, h in finished]), strict=True):
        if tuple(loaded.tokenizers.target.encode(h.text)) == h.tokens:
            assert score.log_prob == pytest.approx(h.log_prob, abs=1e-4)


def test_scores_are_independent_of_the_batch(loaded):
    batched = loaded.score(PAIRS)
    backwards = loaded.score(PAIRS[::-1])[::-1]
    for pair, a, b in zip(PAIRS, batched, backwards, strict=True):
        (alone,) = loaded.score([pair])
        np.testing.assert_allclose(a.token_log_probs, b.token_log_probs, atol=1e-5)
        np.testing.assert_allclose(a.token_log_probs, alone.token_log_probs, atol=1e-5)
        assert a.tokens[-1] == "</s>" and len(a.tokens) == len(a.token_log_probs)
        assert a.per_token == pytest.approx(a.log_prob / len(a.tokens))


def test_invalid_pairs_are_named(loaded):
    with pytest.raises(UserError, match="pair 2: the target is empty"):
        loaded.score([PAIRS[0], ("A word.", "  ")])
    with pytest.raises(UserError, match=r"line 1: the source has \d+ tokens with EOS, more than the 1024 allowed"):
        loaded.score([("word " * 3000, "Wort")], where="line {}".format)
    with pytest.raises(UserError, match="the source is empty"):
        loaded.attend("")


def test_attention_rows_are_distributions_over_visible_tokens(loaded):
    source, target = PAIRS[0]
    maps = loaded.attend(source, target)
    s, t = len(maps.source_tokens), len(maps.target_tokens)
    layers, heads = 1, 4
    assert maps.encoder.shape == (layers, heads, s, s)
    assert maps.decoder.shape == (layers, heads, t, t)
    assert maps.cross.shape == (layers, heads, t, s)
    for weights in (maps.encoder, maps.decoder, maps.cross):
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert (maps.decoder[..., np.triu_indices(t, 1)[0], np.triu_indices(t, 1)[1]] == 0).all()
    assert maps.source_tokens[-1] == maps.target_tokens[-1] == "</s>"


def test_cached_decoder_has_the_same_attention(loaded):
    """The weights of each decoding step equal the rows of the teacher-forced pass (3.2.3)."""
    source, target = PAIRS[1]
    maps = loaded.attend(source, target)
    model, tokenizers = loaded.model, loaded.tokenizers
    ids = [*tokenizers.source.encode(source), 1], [*tokenizers.target.encode(target), 1]
    variables = {"params": jax.device_get(loaded.params)}
    cache = jax.jit(lambda source: model.apply(variables, source, 1, len(ids[1]), method="start_cache"))(
        jnp.array([ids[0]])
    )

    @jax.jit
    def step(token, position, cache):
        return model.apply(variables, token, position, cache, method="decode_step", mutable=["intermediates"])

    previous = 0
    for position, token in enumerate(ids[1]):
        (_, cache), state = step(jnp.array([[previous]]), jnp.asarray(position), cache)
        layer = state["intermediates"]["decoder_0"]
        own = np.asarray(layer["self_attention"]["weights"][0]).reshape(4, -1)
        cross = np.asarray(layer["cross_attention"]["weights"][0]).reshape(4, -1)
        np.testing.assert_allclose(own[:, : position + 1], maps.decoder[0, :, position, : position + 1], atol=2e-6)
        np.testing.assert_allclose(cross, maps.cross[0, :, position], atol=2e-6)
        previous = token


def test_attention_of_an_empty_translation_requires_a_target(loaded, monkeypatch):
    from t2t_flax.decoding.translator import Hypothesis, Translation

    empty = [Translation((Hypothesis("", (), 0.0, 0.0, False),))]
    monkeypatch.setattr(type(loaded), "translate", lambda self, lines, start: empty)
    with pytest.raises(UserError, match="own translation of this source is empty: give a --target"):
        loaded.attend("The train leaves.")
