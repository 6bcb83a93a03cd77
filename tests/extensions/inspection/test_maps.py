"""Attention weights of a pair."""

import numpy as np
import pytest
from helpers.refusals import refused

from t2t_flax.data.sources import toy
from t2t_flax.decoding.translator import Hypothesis, Translation
from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.shared.attention_maps import attend

PAIRS = list(toy.pairs("test", 9))


@pytest.fixture(scope="module")
def loaded():
    return load("pretrained:toy")


def test_attention_rows_are_distributions_over_visible_tokens(loaded):
    source, target = PAIRS[0]
    maps = attend(loaded, source, target)
    s, t = len(maps.source_tokens), len(maps.target_tokens)
    layers, heads = 2, 4
    assert maps.encoder.shape == (layers, heads, s, s)
    assert maps.decoder.shape == (layers, heads, t, t)
    assert maps.cross.shape == (layers, heads, t, s)
    for weights in (maps.encoder, maps.decoder, maps.cross):
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert (maps.decoder[..., np.triu_indices(t, 1)[0], np.triu_indices(t, 1)[1]] == 0).all()
    assert maps.source_tokens[-1] == maps.target_tokens[-1] == "</s>"


def test_attention_of_an_empty_translation_requires_a_target(loaded, monkeypatch):
    empty = [Translation((Hypothesis("", (), 0.0, 0.0, False),))]
    monkeypatch.setattr(type(loaded), "translate", lambda self, lines: empty)
    with refused("--target"):
        attend(loaded, "The train leaves.")
    with refused("source"):
        attend(loaded, "")
