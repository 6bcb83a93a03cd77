"""Translation of lines: one output per line, independent of batch, order and mesh."""

import contextlib
import dataclasses
import itertools
from unittest.mock import Mock, call

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import devices_mesh, model_and_state, random_pairs, rows_alone, small_config
from helpers.refusals import refused

from t2t_flax.config import Config, Data, Decode
from t2t_flax.data.sources import toy
from t2t_flax.data.tokenizers import SentencePieceTokenizer, TokenizerPair
from t2t_flax.decoding.translator import Translator, in_compute_type

SMALL = dict(d_model=32, d_ff=64, num_encoder_layers=1, num_decoder_layers=1)


@pytest.fixture(scope="module")
def small_model():
    """A model with sharpened random weights: outputs terminate and differ between sentences."""
    pairs = list(toy.pairs("train", 300))
    tokenizer = SentencePieceTokenizer.train(
        [s for pair in pairs for s in pair],
        Data(tokenizer="bpe", vocab_size=300, byte_fallback=False),
    )
    model, _, state, _ = model_and_state(small_config(model=SMALL), vocab=300)
    params = jax.tree.map(lambda x: x * 1.7 if x.ndim > 1 else x, state.params)
    row = params["shared_embedding"]["table"][1]
    table = params["shared_embedding"]["table"].at[1].set(row * 3.0)
    params = params | {"shared_embedding": {"table": table}}
    # One shape: fewer programs.
    lines = [s for s, _ in toy.pairs("test", 60) if 16 < len(tokenizer.encode(s)) < 32][:20]
    assert len(lines) == 20
    return model, params, TokenizerPair(tokenizer, tokenizer), lines


def translate(
    small_model, lines=None, mesh=None, params=None, prefixes=None, first_line=0, **decode
):
    model, own, tokenizers, all_lines = small_model
    config = dataclasses.replace(
        Decode(batch_size=8, max_length_ratio=0.5, max_length_offset=6), **decode
    )
    translator = Translator(model, tokenizers, mesh or devices_mesh(), Config(decode=config))
    lines = all_lines if lines is None else lines
    return translator.translate(params or own, lines, prefixes=prefixes, first_line=first_line)


def assert_same(a, b):
    assert [h.tokens for h in a.hypotheses] == [h.tokens for h in b.hypotheses]
    np.testing.assert_allclose(
        [h.score for h in a.hypotheses], [h.score for h in b.hypotheses], rtol=1e-5, atol=1e-5
    )
    assert [h.text for h in a.hypotheses] == [h.text for h in b.hypotheses]


@pytest.mark.parametrize("strategy", ["beam", pytest.param("greedy", marks=pytest.mark.slow)])
def test_translation_is_independent_of_batch_and_order(small_model, strategy):
    lines = small_model[3]
    together = translate(small_model, strategy=strategy)
    assert len({t.text for t in together}) > 10
    order = np.random.default_rng(0).permutation(len(lines))
    shuffled = translate(small_model, [lines[i] for i in order], strategy=strategy, batch_size=4)
    for position, i in enumerate(order):
        assert_same(shuffled[position], together[i])
    for i in (0, 7, 19):
        assert_same(
            translate(small_model, [lines[i]], strategy=strategy, batch_size=1)[0], together[i]
        )
    long = translate(small_model, [lines[3], " ".join(lines[:6])], strategy=strategy)
    assert_same(long[0], together[3])


@pytest.mark.parametrize("strategy", ["beam", pytest.param("sample", marks=pytest.mark.slow)])
def test_batches_decoded_at_once_give_the_same_translations_bit_for_bit(small_model, strategy):
    model, params, tokenizers, lines = small_model
    config = Decode(batch_size=2, max_length_ratio=0.5, max_length_offset=6, strategy=strategy)

    def translations(at_once):
        translator, done = (
            Translator(model, tokenizers, devices_mesh(1), Config(decode=config), at_once=at_once),
            [],
        )
        return translator.translate(
            params, lines, progress=lambda *counts: done.append(counts)
        ), done

    alone, several = translations(1), translations(4)
    assert several == alone and len(alone[1]) > 4


def test_an_error_in_one_of_several_batches_is_raised(small_model, monkeypatch):
    model, params, tokenizers, lines = small_model
    translator = Translator(
        model, tokenizers, devices_mesh(1), Config(decode=Decode(batch_size=2)), at_once=3
    )

    decode, calls = translator._decode, itertools.count()

    def fourth_fails(*args, **options):
        if next(calls) == 3:
            raise MemoryError("no room")
        return decode(*args, **options)

    monkeypatch.setattr(translator, "_decode", fourth_fails)
    with refused("no room", error=MemoryError):
        translator.translate(params, lines)


def test_compiling_context_is_entered_once_per_batch_shape(small_model):
    """A training run can exit on a signal there instead of waiting for the compiler."""
    model, params, tokenizers, lines = small_model
    entered = []

    @contextlib.contextmanager
    def compiling():
        entered.append(1)
        yield

    decode = Decode(batch_size=8, max_length_ratio=0.5, max_length_offset=6)
    translator = Translator(model, tokenizers, devices_mesh(), Config(decode=decode))
    for expected in (1, 1):
        translator.translate(params, lines, compiling=compiling)
        assert len(entered) == expected


def test_position_table_may_be_shorter_than_the_padded_source(small_model):
    """Learned positions: padding beyond the table gives no NaN."""
    _, _, tokenizers, lines = small_model
    lines = [line for line in lines if len(tokenizers.source.encode(line)) < 28]
    longest = max(len(tokenizers.source.encode(line)) + 1 for line in lines)
    assert 16 < longest < 32
    tables = dict(position="learned", max_positions=longest)
    model, _, state, _ = model_and_state(small_config(model=SMALL | tables), vocab=300)
    translations = translate((model, state.params, tokenizers, lines))
    assert all(np.isfinite(t.hypotheses[0].score) for t in translations)


def test_samples_depend_on_the_line_number_only(small_model):
    lines = small_model[3]
    together = translate(small_model, strategy="sample", n_best=2)
    other = translate(
        small_model, [*lines[:4], "", *lines[5:]], strategy="sample", n_best=2, batch_size=4
    )
    for i in (0, 1, 2, 3, 5, 19):
        assert_same(together[i], other[i])
    rest = translate(small_model, lines[4:], strategy="sample", n_best=2, first_line=4)
    for a, b in zip(rest, together[4:], strict=True):
        assert_same(a, b)
    assert translate(small_model, strategy="sample", seed=1)[0].text != together[0].text


@pytest.mark.parametrize("shape", [(2, 2, 2), pytest.param((8, 1, 1), marks=pytest.mark.drill)])
def test_sharded_decoding_gives_the_same_translations(small_model, shape):
    mesh = devices_mesh(*shape)
    shardings = model_and_state(small_config(model=SMALL), mesh, vocab=300)[3].params
    moved = jax.device_put(small_model[1], shardings)
    sharded = translate(small_model, mesh=mesh, params=moved, batch_size=2)
    for a, b in zip(sharded, translate(small_model), strict=True):
        assert_same(a, b)


def test_empty_lines_stay_empty(small_model):
    lines = ["", small_model[3][0], "   ", small_model[3][1], ""]
    out = translate(small_model, lines)
    assert len(out) == 5 and [t.text == "" for t in out] == [True, False, True, False, True]
    assert_same(out[1], translate(small_model, [small_model[3][0]])[0])
    assert translate(small_model, []) == []


@pytest.mark.parametrize("search", [{}, {"strategy": "sample"}])
def test_empty_lines_return_their_prefix_n_best_times(small_model, search):
    lines, prefixes = ["", small_model[3][0], " ", ""], ["Der alte Mann", "Der alte", "", "Der"]
    out = translate(small_model, lines, prefixes=prefixes, n_best=3, **search)
    assert [len(t.hypotheses) for t in out] == [3] * 4
    for translation, prefix in zip(out, prefixes, strict=True):
        assert all(h.text.startswith(prefix) for h in translation.hypotheses)
    assert [out[i].text for i in (0, 2, 3)] == ["Der alte Mann", "", "Der"]
    assert [len(t.hypotheses) for t in translate(small_model, ["", ""], n_best=2, **search)] == [
        2,
        2,
    ]


def test_a_translation_is_one_line_where_a_token_writes_a_newline(small_model, monkeypatch):
    decode = SentencePieceTokenizer.decode
    monkeypatch.setattr(
        SentencePieceTokenizer, "decode", lambda self, ids: decode(self, ids).replace(" ", "\n")
    )
    lines, prefixes = ["", small_model[3][0]], ["Der alte Mann", "Der alte Mann"]
    assert [t.text[:13] for t in translate(small_model, lines, prefixes=prefixes)] == [
        "Der alte Mann"
    ] * 2


def test_truncated_sources_and_capped_outputs_are_flagged(small_model):
    long = " ".join(small_model[3])
    out = translate(small_model, [long, small_model[3][0]], max_source_length=40)
    assert [t.source_cut for t in out] == [True, False]
    capped = translate(small_model, max_length_ratio=0.0, max_length_offset=2)
    assert any(t.hit_cap for t in capped)
    assert all(len(h.tokens) <= 2 for t in capped for h in t.hypotheses)
    assert all(t.text for t in capped if t.hit_cap)


def test_output_cap_follows_the_source_length(small_model):
    """max_length_ratio * source tokens + max_length_offset, with EOS counted on both sides."""
    model, params, tokenizers, lines = small_model
    never = params | {
        "shared_embedding": {"table": params["shared_embedding"]["table"].at[1].set(-50.0)}
    }
    for ratio, extra in ((0.5, 3), (0.25, 0)):
        out = translate(
            small_model,
            params=never,
            max_length_ratio=ratio,
            max_length_offset=extra,
            strategy="greedy",
        )
        for line, t in zip(lines, out, strict=True):
            if t.hit_cap:
                assert (
                    len(t.hypotheses[0].tokens)
                    == int(ratio * (len(tokenizers.source.encode(line)) + 1)) + extra
                )
        assert sum(t.hit_cap for t in out) > len(lines) / 2


def test_forced_prefix_and_n_best(small_model):
    out = translate(small_model, prefixes=["Der alte Mann"] * 20, n_best=3)
    for t in out:
        assert all(h.text.startswith("Der alte Mann") for h in t.hypotheses)
        assert len({h.tokens for h in t.hypotheses}) == 3
    with refused("2 prefixes", "20 lines"):
        translate(small_model, prefixes=["a", "b"])


def test_score_equals_the_uncached_models_log_probability(small_model):
    """The returned tokens are teacher-forced through the model without a cache."""
    model, params, tokenizers, lines = small_model
    best = [t.hypotheses[0] for t in translate(small_model)[:6]]
    targets = [[*h.tokens] + ([] if h.hit_cap else [1]) for h in best]
    sources = [tokenizers.source.encode(line) + [1] for line in lines[:6]]
    batch = rows_alone(list(zip(sources, targets, strict=True)), 40)
    log_p = np.asarray(
        jax.nn.log_softmax(jax.jit(lambda b: model.apply({"params": params}, b))(batch))
    )
    for i, (hypothesis, target) in enumerate(zip(best, targets, strict=True)):
        expected = float(log_p[i, np.arange(len(target)), target].sum())
        assert hypothesis.log_prob == pytest.approx(expected, abs=1e-4)
        assert hypothesis.score == pytest.approx(
            expected / ((5 + len(target)) / 6) ** 0.6, abs=1e-4
        )


@pytest.mark.slow
def test_search_keys_change_the_output(small_model, monkeypatch):
    """beam_size, alpha, temperature, top_k, top_p, epsilon and batch_size have an effect."""
    greedy = [t.text for t in translate(small_model, strategy="greedy")]
    assert [t.text for t in translate(small_model, beam_size=6)] != [
        t.text for t in translate(small_model, beam_size=1)
    ]
    long, short = (
        sum(len(t.hypotheses[0].tokens) for t in translate(small_model, alpha=alpha, beam_size=8))
        for alpha in (3.0, 0.0)
    )
    assert long > short
    samples = {"temperature": 1e-4, "top_k": 1, "top_p": 1e-6, "epsilon": 1.0}
    assert [t.text for t in translate(small_model, strategy="sample")] != greedy
    for key, value in samples.items():
        assert [
            t.text for t in translate(small_model, strategy="sample", **{key: value})
        ] == greedy, key
    model, params, tokenizers, lines = small_model
    for batch_size in (3, 8):
        translator = Translator(
            model, tokenizers, devices_mesh(), Config(decode=Decode(batch_size=batch_size))
        )
        calls = Mock()
        translator.translate(params, ["", *lines[:9], " "], progress=calls)
        assert calls.mock_calls == [
            call(done, 9) for done in (*range(batch_size, 9, batch_size), 9)
        ]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        pytest.param(dict(position="learned", num_kv_heads=2), marks=pytest.mark.slow),
        pytest.param(dict(mixer="lstm", tie_embeddings="none"), marks=pytest.mark.slow),
    ],
)
def test_matrices_in_bfloat16_give_the_same_logits(keys):
    """Bit for bit: the model rounds them to its compute type wherever it reads them."""
    config = small_config(
        model=SMALL | dict(num_heads=4, attention_bias=True) | keys,
        train=dict(precision="bfloat16"),
    )
    model, _, state, _ = model_and_state(config)
    sources = rows_alone(random_pairs(2, longest=12), 16)["source"]

    @jax.jit
    def logits(params):
        cache = model.apply({"params": params}, sources, 2, 8, method="start_cache")
        outputs = []
        for position in range(2):
            tokens = np.full((2, 2), 5 + position)
            out, cache = model.apply(
                {"params": params}, tokens, jnp.int32(position), cache, method="decode_step"
            )
            outputs.append(out)
        return outputs

    cast = in_compute_type(model, state.params)
    matrices = [x.dtype for x in jax.tree.leaves(cast) if x.ndim > 1]
    assert set(matrices) == {np.dtype(model.dtype)} and model.dtype != np.float32
    jax.tree.map(np.testing.assert_array_equal, logits(state.params), logits(cast))
    assert in_compute_type(model, cast) is cast, "a server converts them once, not at every request"
