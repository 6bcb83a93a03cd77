"""Translation with CTranslate2.

The same n-best lists and scores as the JAX search under the same rules, whatever the length limits,
prefixes and batches.
"""

import jax
import numpy as np
import pytest
from helpers.configs import devices_mesh, model_and_state, small_config

from t2t_flax.config import Config, Decode, Model
from t2t_flax.data.tokenizers import Tokenizer, TokenizerPair
from t2t_flax.decoding.translator import Translator, empty_translation
from t2t_flax.extensions.interop.ctranslate2_decoder import (
    CTranslate2Translator,
    length_difference,
    search_difference,
)
from t2t_flax.extensions.interop.ctranslate2_export import write_ctranslate2

VOCAB = 37
NEAR_TIE = 1e-4


class Ids:
    """A tokenizer of text that is ids."""

    digest = "ids"
    frame = Tokenizer.frame

    def encode(self, text):
        return list(map(int, text.split()))

    encode_text = encode

    def split(self, text):
        return [], text

    def decode(self, ids):
        return " ".join(map(str, ids))


def random_model(folder, padding):
    """(model, parameters, the exported model); `padding` is added to the logit of padding."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    keys = dict(
        norm_placement="pre", attention_bias=True, output_bias=True, dropout=0.0, d_model=32
    )
    config = small_config(model=keys)
    model, _, state, _ = model_and_state(config, vocab=VOCAB)
    random = iter(jax.random.split(jax.random.key(0), 200))
    params = jax.tree.map(
        lambda x: 1.5 * x + 0.1 * jax.random.normal(next(random), x.shape), state.params
    )
    params = params | {"output_bias": params["output_bias"].at[0].add(padding).at[1].add(2.0)}
    write_ctranslate2(
        folder, config.model, params, ([str(i) for i in range(VOCAB)],) * 2, source_eos=False
    )
    exported = ctranslate2.Translator(
        str(folder), compute_type="float32", inter_threads=1, intra_threads=1
    )
    return model, params, exported


def random_lines(count=40, shortest=1, longest=14):
    rng = np.random.default_rng(3)
    return [
        " ".join(map(str, rng.integers(3, VOCAB, rng.integers(shortest, longest))))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Padding has a probability that shows in the scores, but is none of the likeliest tokens."""
    return random_model(tmp_path_factory.mktemp("exported"), padding=-3.0)


def both(exported, lines, prefixes=None, **keys):
    """(our translations, CTranslate2's, the lines that were left to JAX)."""
    model, params, translator = exported
    config = Decode(**dict(max_length_ratio=0.5, max_length_offset=8, batch_size=16) | keys)
    assert search_difference(config) is None
    tokenizers, left = TokenizerPair(Ids(), Ids()), []
    by_jax = Translator(model, tokenizers, devices_mesh(), Config(decode=config))

    def jax_translate(lines, prefixes):
        left.extend(lines)
        return by_jax.translate(params, lines, prefixes=prefixes)

    theirs = CTranslate2Translator(translator, tokenizers, model.config, config, jax_translate)
    return (
        by_jax.translate(params, lines, prefixes=prefixes),
        theirs.translate(lines, prefixes=prefixes),
        left,
    )


def assert_same(ours, theirs, near_ties=0):
    """Check equal n-best lists, but for at most `near_ties` sentences with close scores."""
    ties = 0
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(
            [h.score for h in a.hypotheses], [h.score for h in b.hypotheses], rtol=0, atol=NEAR_TIE
        )
        ties += [(h.tokens, h.hit_cap) for h in a.hypotheses] != [
            (h.tokens, h.hit_cap) for h in b.hypotheses
        ]
        if not ties:
            assert a.source_cut == b.source_cut and [h.text for h in a.hypotheses] == [
                h.text for h in b.hypotheses
            ]
            log_probs = [[h.log_prob for h in translation.hypotheses] for translation in (a, b)]
            np.testing.assert_allclose(*log_probs, rtol=1e-5, atol=1e-4)
    assert ties <= near_ties


SEARCHES = {
    "greedy": dict(strategy="greedy", max_source_length=9),
    "beams": dict(beam_size=4, n_best=3, length_penalty="power", early_stopping="beam_full"),
    "one_beam": dict(beam_size=1, length_penalty="gnmt", early_stopping="top_finished"),
    "no_penalty": dict(beam_size=3, n_best=3, length_penalty="none", early_stopping="beam_full"),
    "no_alpha": dict(beam_size=2, alpha=0.0, early_stopping="beam_full"),
    "wide": dict(
        beam_size=6, n_best=2, alpha=1.0, length_penalty="power", early_stopping="beam_full"
    ),
}
QUICK = ("greedy", "beams")


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(v, marks=[] if k in QUICK else [pytest.mark.slow], id=k)
        for k, v in SEARCHES.items()
    ],
)
def test_searches_of_the_same_rules_give_the_same_lists(exported, keys):
    """Outputs end by themselves, at the line's own limit, or at limits below the batch's."""
    lines = [*random_lines(), ""]
    ours, theirs, left = both(exported, lines, **keys)
    assert_same(ours, theirs)
    capped = sum(t.hit_cap for t in ours)
    assert 0 < capped < len(lines) and len(left) < 0.7 * len(lines)
    assert theirs[-1].hypotheses[0].tokens == () and len(theirs[-1].hypotheses) == keys.get(
        "n_best", 1
    )
    assert any(t.source_cut for t in theirs) == ("max_source_length" in keys)


@pytest.mark.parametrize(
    "keys", [dict(strategy="greedy"), dict(length_penalty="power", early_stopping="beam_full")]
)
def test_lines_with_prefixes_are_left_to_jax(exported, keys):
    lines = random_lines(12)
    prefixes = [" ".join("7 9 4".split()[: i % 4]) for i in range(len(lines))]
    ours, theirs, left = both(exported, lines, prefixes, **keys)
    assert_same(ours, theirs)
    assert {line for line, prefix in zip(lines, prefixes, strict=True) if prefix} <= set(left)
    assert all(t.text.startswith(p) for t, p in zip(theirs, prefixes, strict=True))


def test_a_sentence_in_which_padding_is_likeliest_is_left_to_jax(tmp_path):
    """CTranslate2 would end there; padding is never generated."""
    model = random_model(tmp_path, padding=4.0)
    ours, theirs, left = both(model, random_lines(12), strategy="greedy")
    assert left
    assert_same(ours, theirs)


def test_progress_counts_every_sentence_once(exported):
    model, _, translator = exported
    tokenizers, calls = TokenizerPair(Ids(), Ids()), []
    config = Decode(strategy="greedy", max_length_offset=3, max_length_ratio=0.5, batch_size=8)
    by_jax = lambda lines, *_: [empty_translation(tokenizers, config, [])] * len(lines)  # noqa: E731
    engine = CTranslate2Translator(translator, tokenizers, model.config, config, by_jax)
    engine.translate([*random_lines(20), "", " "], progress=lambda *done: calls.append(done))
    assert calls[-1] == (20, 20) and calls == sorted(calls)


def test_outputs_longer_than_the_exported_positions_are_named():
    assert length_difference(Decode(), Model()) is None
    assert "decode.max_length_ratio" in length_difference(Decode(max_length_ratio=3.0), Model())
    assert length_difference(Decode(max_length_ratio=3.0), Model(position="learned")) is None
