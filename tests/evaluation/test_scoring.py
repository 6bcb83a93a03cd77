"""Scores of given pairs."""

import pytest
from helpers.refusals import refused

from t2t_flax.data.sources import toy
from t2t_flax.evaluation.restore import load

PAIRS = list(toy.pairs("test", 9))


def test_scores_equal_those_of_the_search():
    """Forced decoding of greedy outputs gives the log-probabilities reported by the search."""
    greedy = load("pretrained:toy", overrides={"decode.strategy": "greedy"})
    sources = [source for source, _ in PAIRS]
    outputs = [translation.hypotheses[0] for translation in greedy.translate(sources)]
    encode = greedy.tokenizers.target.encode
    # Another segmentation of the same text has another score.
    pairs = [
        (s, h)
        for s, h in zip(sources, outputs, strict=True)
        if not h.hit_cap and tuple(encode(h.text)) == h.tokens
    ]
    assert len(pairs) > len(PAIRS) / 2
    for (_, h), score in zip(pairs, greedy.score([(s, h.text) for s, h in pairs]), strict=True):
        assert score.log_prob == pytest.approx(h.log_prob, abs=1e-4)


def test_invalid_pairs_are_named(finished):
    loaded = load(finished[0], overrides={"mesh.data": "-1"})
    with refused("pair 2", "target"):
        loaded.score([PAIRS[0], ("A word.", "  ")])
    with refused("line 1", "source", "1024"):
        loaded.score([("word " * 3000, "Wort")], where="line {}".format)
