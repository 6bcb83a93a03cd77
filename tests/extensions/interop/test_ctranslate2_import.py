"""Importing CTranslate2 models.

A trained model against CTranslate2's own outputs, and invalid files.
"""

import dataclasses
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import devices_mesh
from helpers.refusals import refused

from t2t_flax.config import Config, Data, Decode
from t2t_flax.data.tokenizers import Tokenizer, TokenizerPair
from t2t_flax.decoding.translator import Translator
from t2t_flax.extensions.interop.ctranslate2_import import read_ctranslate2
from t2t_flax.extensions.interop.import_model import read_model
from t2t_flax.extensions.interop.imported import IMPROBABLE
from t2t_flax.models.transformer import Transformer

EOS = 1


class Characters:
    """A tokenizer whose tokens are characters."""

    digest = "characters"
    frame = Tokenizer.frame

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def encode(self, text):
        return [
            self.vocabulary.index(character) if character in self.vocabulary else 2
            for character in text
        ]

    encode_text = encode

    def split(self, text):
        return [], text

    def decode(self, ids):
        return "".join(self.vocabulary[i] for i in ids)


@pytest.fixture(scope="module")
def trained(real_data):
    """Return the transliteration model: (model, parameters, tokenizers, CTranslate2's outputs)."""
    folder = real_data / "models" / "ct2-aren-transliteration"
    if not folder.is_dir():
        pytest.skip("the data folder has no models/ct2-aren-transliteration")
    config, params, source, target, _ = read_ctranslate2(folder, num_heads=8)
    assert [source[:4], target[:4]] == [["<blank>", "</s>", "<unk>", "<s>"]] * 2
    assert (len(source), len(target)) == (51, 43) and sum(
        x.size for x in jax.tree.leaves(params)
    ) == 182_731 + 32
    cases = json.loads((folder / "reference.json").read_text(encoding="utf-8"))["cases"]
    assert len(cases) == 20
    return Transformer(config, 51, 43), params, Characters(source), Characters(target), cases


def rows_of(sentences):
    """ids, segments and positions [B, L] of sentences, one per row."""
    length = max(map(len, sentences))
    ids = np.array([row + [0] * (length - len(row)) for row in sentences], np.int32)
    return ids, (ids > 0).astype(np.int32), np.where(ids > 0, np.arange(length), 0).astype(np.int32)


def forced_log_probs(trained):
    """(log-probabilities [B, T, V] of teacher-forced CTranslate2 outputs, ids of these outputs)."""
    model, params, source, target, cases = trained
    forced = [target.encode(case["forced"]["tokens"][:-1]) + [EOS] for case in cases]
    batch = {}
    for side, rows in (
        ("source", [source.encode(case["source"]) for case in cases]),
        ("target", forced),
    ):
        batch[side], batch[f"{side}_segments"], batch[f"{side}_positions"] = rows_of(rows)
    log_p = jax.jit(lambda p, b: jax.nn.log_softmax(model.apply({"params": p}, b)))(params, batch)
    return np.asarray(log_p), batch["target"]


@pytest.mark.real_data
def test_forced_log_probabilities_equal_ctranslate2(trained):
    """Teacher forcing over CTranslate2's best outputs.

    The log-probability of each token and of EOS.
    """
    *_, cases = trained
    log_p, ids = forced_log_probs(trained)
    log_p = np.take_along_axis(log_p, ids[..., None], -1)[..., 0]
    for row, case in zip(log_p, cases, strict=True):
        expected = case["forced"]["log_probs"]
        np.testing.assert_allclose(row[: len(expected)], expected, rtol=0, atol=1e-5)


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["beam1", "greedy", "beam4"])
def test_search_outputs_equal_ctranslate2(trained, name):
    """n-best lists: sources without </s>, no length penalty, stop when the first is finished."""
    model, params, source, target, cases = trained
    size = 4 if name == "beam4" else 1
    config = dataclasses.replace(
        Decode(),
        strategy="greedy" if name == "greedy" else "beam",
        beam_size=size,
        n_best=size,
        length_penalty="none",
        alpha=0.0,
        early_stopping="top_finished",
        max_length_ratio=0.0,
        max_length_offset=256,
        batch_size=20,
    )
    tokenizers = TokenizerPair(source, target)
    translator = Translator(
        model, tokenizers, devices_mesh(), Config(decode=config, data=Data(source_eos=False))
    )
    translations = translator.translate(params, ["".join(case["source"]) for case in cases])
    # CTranslate2 has a minimum length of 1: its first step renormalizes without EOS.
    rest_B = np.log1p(-np.exp(forced_log_probs(trained)[0][:, 0, EOS].astype(np.float64)))
    for translation, case, rest in zip(translations, cases, rest_B, strict=True):
        expected = case["beam4" if name == "beam4" else "beam1"]
        assert [h.text for h in translation.hypotheses] == ["".join(e["tokens"]) for e in expected]
        assert not any(h.hit_cap for h in translation.hypotheses)
        log_probs = [h.log_prob - rest for h in translation.hypotheses]
        np.testing.assert_allclose(
            log_probs, [e["sum_log_prob"] for e in expected], rtol=0, atol=2e-5
        )


D, FF = 4, 6
TOKENS = ["<blank>", "<s>", "</s>", "a", "b"]


def fake_arrays(rows=6) -> dict[str, np.ndarray]:
    """A model with one layer per stack and random weights."""
    shapes = {f"{stack}/embeddings/weight": (rows, D) for stack in ("encoder", "decoder")}
    shapes |= {"decoder/projection/weight": (rows, D), "decoder/projection/bias": (rows,)}
    linear, norms = {"ffn/linear_0": (FF, D), "ffn/linear_1": (D, FF)}, ["ffn", "self_attention"]
    linear |= {"self_attention/linear_0": (3 * D, D), "self_attention/linear_1": (D, D)}
    cross = {
        "attention/linear_0": (D, D),
        "attention/linear_1": (2 * D, D),
        "attention/linear_2": (D, D),
    }
    for stack, maps, norm_names in (
        ("encoder", linear, norms),
        ("decoder", linear | cross, [*norms, "attention"]),
    ):
        prefixes = [
            f"{stack}/layer_norm",
            *(f"{stack}/layer_0/{name}/layer_norm" for name in norm_names),
        ]
        shapes |= {f"{prefix}/{part}": (D,) for prefix in prefixes for part in ("gamma", "beta")}
        for name, shape in maps.items():
            shapes |= {
                f"{stack}/layer_0/{name}/weight": shape,
                f"{stack}/layer_0/{name}/bias": shape[:1],
            }
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write(folder, arrays, source=TOKENS, target=TOKENS):
    np.savez(folder / "weights.npz", **arrays)
    for side, tokens in (("source", source), ("target", target)):
        (folder / f"{side}_vocabulary.txt").write_text(
            "".join(f"{t}\n" for t in tokens), encoding="utf-8"
        )
    return folder


def test_ids_are_renumbered_and_kernels_transposed(tmp_path):
    arrays = fake_arrays()
    config, params, source, target, _ = read_ctranslate2(
        write(tmp_path, arrays, target=["<unk>", *TOKENS]), num_heads=2
    )
    assert source == target == ["<blank>", "</s>", "<unk>", "<s>", "a", "b"]
    np.testing.assert_array_equal(
        params["source_embedding"]["table"], arrays["encoder/embeddings/weight"][[0, 2, 5, 1, 3, 4]]
    )
    order = [1, 3, 0, 2, 4, 5]  # <unk> is CTranslate2's first row
    np.testing.assert_array_equal(
        params["target_embedding"]["table"], arrays["decoder/embeddings/weight"][order]
    )
    np.testing.assert_array_equal(
        params["output_embedding"]["table"], arrays["decoder/projection/weight"][order]
    )
    np.testing.assert_array_equal(params["output_bias"], arrays["decoder/projection/bias"][order])
    np.testing.assert_array_equal(
        params["decoder_start_token"]["bos"], arrays["decoder/embeddings/weight"][2]
    )
    x = np.arange(1.0, D + 1)
    fused = arrays["decoder/layer_0/attention/linear_1/weight"] @ x
    for part, rows in (("key", slice(0, D)), ("value", slice(D, None))):
        kernel = params["decoder_0"]["cross_attention"][part]["kernel"]
        np.testing.assert_allclose(
            np.einsum("d,dnh->nh", x, kernel).ravel(), fused[rows], rtol=1e-5
        )
    heads, out = np.arange(D).reshape(2, 2), params["encoder_0"]["self_attention"]["out"]["kernel"]
    expected = arrays["encoder/layer_0/self_attention/linear_1/weight"] @ heads.ravel()
    np.testing.assert_allclose(np.einsum("nh,nhd->d", heads, out), expected, rtol=1e-5)
    ids = jnp.ones((1, 3), jnp.int32)
    names = [
        side + part for side in ("source", "target") for part in ("", "_segments", "_positions")
    ]
    model = Transformer(config, 6, 6)
    abstract = jax.eval_shape(lambda: model.init(jax.random.key(0), dict.fromkeys(names, ids)))[
        "params"
    ]

    def shapes_of(tree):
        return {jax.tree_util.keystr(k): x.shape for k, x in jax.tree.leaves_with_path(tree)}

    assert shapes_of(params) == shapes_of(nn.unbox(abstract))


@pytest.mark.parametrize("biased", [True, False])
def test_tokens_without_a_row_are_never_predicted(tmp_path, biased):
    """Padding and <unk>, also where all others have negative biases."""
    arrays = fake_arrays() | {"decoder/projection/bias": np.full(6, -9, np.float32)}
    if not biased:
        del arrays["decoder/projection/bias"]
    tokens = ["<s>", "</s>", "a", "b", "c", "d"]
    _, params, source, target, _ = read_ctranslate2(
        write(tmp_path, arrays, tokens, tokens), num_heads=2
    )
    assert source == target == ["<pad>", "</s>", "<unk>", "<s>", "a", "b", "c", "d"]
    other = -9 if biased else 0
    np.testing.assert_array_equal(
        params["output_bias"], [IMPROBABLE, other, IMPROBABLE, *[other] * 5]
    )


def without(*names):
    return lambda arrays: {k: v for k, v in arrays.items() if k not in names}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (without("encoder/layer_0/ffn/linear_0/bias"), ("'encoder/layer_0/ffn/linear_0/bias'",)),
        (without("decoder/layer_norm/gamma"), ("'layer_norm': True", "'layer_norm': False")),
        (without("decoder/projection/weight"), ("'decoder/projection/weight'",)),
        (
            lambda a: {k: v for k, v in a.items() if "decoder/layer_0/" not in k},
            ("'decoder/layer_0/",),
        ),
        (lambda a: a | {"decoder/scale": np.ones(1)}, ("decoder/scale",)),
        (
            lambda a: a | {"encoder/layer_2/ffn/linear_0/bias": np.ones(FF)},
            ("encoder/layer_2/ffn",),
        ),
        (
            lambda a: a | {"encoder/layer_0/self_attention/linear_0/weight": np.ones((2 * D, D))},
            ("'encoder/layer_0/self_attention/linear_0/weight'", "(8, 4)", "(12, 4)"),
        ),
        (
            lambda a: a | {"decoder/embeddings/weight": np.ones((6, 5))},
            ("'decoder/embeddings/weight'", "(6, 5)"),
        ),
        (
            lambda a: a | {"decoder/projection/bias": np.ones(6, np.int8)},
            ("'decoder/projection/bias'", "int8"),
        ),
    ],
)
def test_invalid_arrays_are_named(tmp_path, change, names):
    with refused(*names):
        read_ctranslate2(write(tmp_path, change(fake_arrays())), num_heads=2)


@pytest.mark.parametrize(
    ("tokens", "names"),
    [
        (TOKENS[:-1], ("5 tokens", "6 rows")),
        ([*TOKENS[:-1], "a"], ("'a'",)),
        (["<blank>", "<s>", "a", "b", "c"], ("</s>",)),
    ],
)
def test_invalid_vocabularies_are_named(tmp_path, tokens, names):
    with refused("source_vocabulary.txt", *names):
        read_ctranslate2(write(tmp_path, fake_arrays(), source=tokens), num_heads=2)


def test_missing_files_and_heads_are_named(tmp_path):
    with refused("weights.npz"):
        read_ctranslate2(tmp_path, num_heads=2)
    write(tmp_path, fake_arrays())
    with refused("num_heads", "3", "4"):
        read_ctranslate2(tmp_path, num_heads=3)
    (tmp_path / "target_vocabulary.txt").unlink()
    with refused("target_vocabulary.txt"):
        read_ctranslate2(tmp_path, num_heads=2)


MORE = [*TOKENS, "c", "d"]


def test_the_file_that_is_named_is_read(tmp_path):
    """Beside another one, which the folder alone stands for."""
    folder = write(tmp_path, fake_arrays(8), MORE, MORE)
    (folder / "model.bin").write_bytes(b"not a model at all")
    codes = dict(num_heads=2, languages=("ar", "en"))
    for path in (folder, folder / "model.bin"):
        with refused("model.bin"):
            read_model(path, **codes)
    params = read_model(folder / "weights.npz", **codes).params
    np.testing.assert_array_equal(
        params["encoder_0"]["feed_forward"]["Einsum_0"]["kernel"].T,
        fake_arrays(8)["encoder/layer_0/ffn/linear_0/weight"],
    )
    with refused("source_vocabulary.txt", "model.bin", "weights.npz"):
        read_model(folder / "source_vocabulary.txt", **codes)
