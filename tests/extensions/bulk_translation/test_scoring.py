"""Scoring of pairs."""

import numpy as np
import pytest
from helpers.refusals import refused
from helpers.runs import start, tiny_run

from t2t_flax.data.sources import toy
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
    with refused("pair 2", "target"):
        loaded.score([PAIRS[0], ("A word.", "  ")])
    with refused("line 1", "source", "1024"):
        loaded.score([("word " * 3000, "Wort")], where="line {}".format)
