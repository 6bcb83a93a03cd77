"""Exported models: log-probabilities in CTranslate2 and Marian, whole files, refused configs."""

import jax
import numpy as np
import pytest
from helpers.configs import model_and_state, rows_alone, small_config
from helpers.refusals import refused

from t2t_flax.extensions.interop import marian_export
from t2t_flax.extensions.interop.ctranslate2_export import check_exportable, write_ctranslate2
from t2t_flax.extensions.interop.ctranslate2_import import read_ctranslate2
from t2t_flax.extensions.interop.safetensors_file import (
    flatten,
    read_safetensors,
    write_safetensors,
)

VOCAB = 37
# <s>: no start token, a word as any other.
WORDS = [
    "<pad>",
    "</s>",
    "<unk>",
    "<s>",
    *(f"w{i}" for i in range(4, VOCAB)),
]
VARIANTS = {
    "paper": {},
    "pre": dict(
        norm_placement="pre",
        attention_bias=True,
        output_bias=True,
        activation="gelu",
        norm_eps=1e-5,
    ),
    "gated": dict(
        feed_forward="gated",
        activation="swish",
        norm_type="rmsnorm",
        position="learned",
        max_positions=64,
    ),
    "untied": dict(
        tie_embeddings="none",
        decoder_start_token="bos",
        position="sinusoid_halves",
        position_offset=1,
    ),
    "start": dict(
        tie_embeddings="decoder",
        decoder_start_token="eos",
        embed_scale="none",
        logit_scale="rsqrt_d",
    ),
    "scores": dict(
        attention_score="dot",
        decoder_start_token="pad",
        position="none",
        norm_placement="pre",
        final_norm="none",
    ),
}
SLOW = ("start", "scores")
VARIANT_PARAMS = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in VARIANTS
]


def random_model(keys):
    """A variant with random parameters in which no bias or scale is 0 or 1."""
    config = small_config(model=keys | dict(dropout=0.0, d_model=32, num_decoder_layers=2))
    model, _, state, _ = model_and_state(config, vocab=VOCAB)
    random = iter(jax.random.split(jax.random.key(1), 200))
    params = jax.tree.map(
        lambda x: 1.5 * x + 0.1 * jax.random.normal(next(random), x.shape), state.params
    )
    return config, model, params


def random_batch():
    """(pairs of ids without EOS, their rows)."""
    rng = np.random.default_rng(0)
    pairs = [
        [rng.integers(3, VOCAB, rng.integers(2, 14)).tolist() for _ in range(2)] for _ in range(6)
    ]
    return pairs, rows_alone([(source + [1], target + [1]) for source, target in pairs], 16)


@pytest.mark.parametrize("name", VARIANT_PARAMS)
def test_log_probabilities_equal_ours(name, tmp_path):
    """Of each token of given targets and of EOS."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    config, model, params = random_model(VARIANTS[name])
    write_ctranslate2(tmp_path, config.model, params, (WORDS, WORDS), source_eos=True)
    translator = ctranslate2.Translator(str(tmp_path), intra_threads=1)
    pairs, batch = random_batch()
    log_p = jax.jit(lambda p: jax.nn.log_softmax(model.apply({"params": p}, batch)[..., :VOCAB]))(
        params
    )
    gold = np.take_along_axis(np.asarray(log_p), batch["target"][..., None], -1)[..., 0]
    scored = translator.score_batch(
        *([[WORDS[i] for i in ids] for ids in side] for side in zip(*pairs, strict=True))
    )
    for row, result in zip(gold, scored, strict=True):
        # Without a final norm logits of 100 are rounded to 1e-5 of that.
        atol = 1e-4 + 1e-5 * np.abs(row).max()
        np.testing.assert_allclose(
            row[: len(result.log_probs)], result.log_probs, rtol=1e-4, atol=atol
        )


@pytest.mark.torch
@pytest.mark.parametrize(
    "keys",
    [
        {},
        dict(activation="swish", attention_bias=True, output_bias=True, decoder_start_token="eos"),
    ],
)
def test_marian_has_the_same_logits(keys, tmp_path):
    """Hugging Face's model, whose features are in another order and whose norms have eps = 1e-5."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", reason="compares with Hugging Face's Marian")
    config, model, params = random_model(keys | dict(norm_eps=1e-5))
    tensors = marian_export._tensors(config.model, params, VOCAB)
    start = 1 if config.model.decoder_start_token == "eos" else 0
    marian = transformers.MarianConfig(**marian_export.model_keys(config, VOCAB, "float32"), decoder_start_token_id=start,
                                       pad_token_id=0, eos_token_id=1)  # fmt: skip
    theirs = transformers.MarianMTModel(marian).eval()
    missing, unexpected = theirs.load_state_dict(
        {k: torch.tensor(x) for k, x in tensors.items()}, strict=False
    )
    assert not unexpected and all("embed" in name or "lm_head" in name for name in missing)
    theirs.tie_weights()
    pairs, batch = random_batch()
    ours = jax.jit(lambda p: model.apply({"params": p}, batch)[..., 1:VOCAB])(params)
    shifted = np.pad(batch["target"], ((0, 0), (1, 0)), constant_values=start)[:, :-1]
    source = torch.tensor(batch["source"]).long()
    with torch.no_grad():
        logits = theirs(
            source, (source > 0).long(), decoder_input_ids=torch.tensor(shifted).long()
        ).logits
    for row, (_, target) in enumerate(pairs):
        count = len(target) + 1
        np.testing.assert_allclose(ours[row, :count], logits[row, :count, 1:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "check, key, value",
    [
        (marian_export.check_exportable, "norm_placement", "pre"),
        (marian_export.check_exportable, "position", "learned"),
        (marian_export.check_exportable, "tie_embeddings", "none"),
        (marian_export.check_exportable, "decoder_start_token", "bos"),
        (check_exportable, "mixer", "lstm"),
        (check_exportable, "attention_score", "additive"),
        (check_exportable, "num_encoder_layers", 0),
        (check_exportable, "num_kv_heads", 2),
        (check_exportable, "d_k", 3),
        (check_exportable, "position", "rotary"),
        (check_exportable, "final_norm", "both"),
    ],
)
def test_models_of_another_kind_are_refused_by_key(check, key, value):
    config = small_config(model={key: value})
    with refused(f"model.{key}", str(value)):
        check(config if check is marian_export.check_exportable else config.model)


def test_safetensors_return_the_parameters_and_the_config(tmp_path):
    _, _, params = random_model({})
    path = tmp_path / "model.safetensors"
    write_safetensors(path, params, {"model": {"d_model": 32}})
    read, config = read_safetensors(path)
    assert config == {"model": {"d_model": 32}} and flatten(read).keys() == flatten(params).keys()
    jax.tree.map(np.testing.assert_array_equal, read, jax.tree.map(np.asarray, params))
    write_safetensors(path, params, {}, dtype="float16")
    halves, _ = read_safetensors(path)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-2),
        halves,
        jax.tree.map(np.asarray, params),
    )
    assert path.stat().st_size < 0.6 * sum(x.nbytes for x in jax.tree.leaves(params))
    for content in (b"", b"not a model" * 99, path.read_bytes()[:500]):
        path.write_bytes(content)
        with refused(str(path)):
            read_safetensors(path)


@pytest.mark.parametrize("name", VARIANTS)
def test_exported_models_come_back(name, tmp_path):
    """A second export is the same file byte for byte; ids, scale and tables match the run."""
    pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    config, _, params = random_model(VARIANTS[name])
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    write_ctranslate2(folders[0], config.model, params, (WORDS, WORDS), source_eos=True)
    model, read, source, target, _ = read_ctranslate2(folders[0])
    assert source == target == WORDS
    write_ctranslate2(folders[1], model, read, (source, target), source_eos=True)
    assert (folders[0] / "model.bin").read_bytes() == (folders[1] / "model.bin").read_bytes()
    if name != "start":  # logit_scale is part of the projection there
        assert flatten(read).keys() == flatten(params).keys()
        for path, x in flatten(params).items():
            rows = VOCAB if "embedding" in path or path == "output_bias" else len(x)
            np.testing.assert_array_equal(flatten(read)[path], x[:rows], err_msg=path)


@pytest.mark.parametrize(
    "quantization, error", [("int8", 0.6 / 127), ("int16", 0.6 / 1024), ("float16", 1e-3)]
)
def test_quantized_models_come_back_within_their_rounding(quantization, error, tmp_path):
    pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    config, _, params = random_model({})
    write_ctranslate2(
        tmp_path, config.model, params, (WORDS, WORDS), source_eos=True, quantization=quantization
    )
    read = flatten(read_ctranslate2(tmp_path)[1])
    for path, x in flatten(params).items():
        x = x[:VOCAB] if "embedding" in path else x
        np.testing.assert_allclose(
            read[path], x, rtol=0, atol=error * np.abs(x).max(), err_msg=path
        )
    assert any(np.any(read[path] != x[: len(read[path])]) for path, x in flatten(params).items())


def test_a_damaged_model_bin_is_refused(tmp_path):
    """Cut off anywhere, longer than it should be, of a newer version, or not a model at all."""
    pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    config, _, params = random_model({})
    write_ctranslate2(tmp_path, config.model, params, (WORDS, WORDS), source_eos=True)
    path = tmp_path / "model.bin"
    whole = path.read_bytes()
    for size in (3, 5, 24, 40, 1000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with refused("model.bin"):
            read_ctranslate2(tmp_path)
    bias = b"encoder/layer_0/ffn/linear_0/bias"
    for content, name in (
        (whole + b"\0", "model.bin"),
        (b"\x07" + whole[1:], "version 7;"),
        (b"not a model" * 9, "model.bin"),
        (whole.replace(b"TransformerSpec\0", b"WhisperSpecABCD\0"), "WhisperSpecABCD"),
        (whole.replace(bias, bias.replace(b"r_0/bias", b"r_9/bias")), f"'{bias.decode()}'"),
    ):
        path.write_bytes(content)
        with refused(name):
            read_ctranslate2(tmp_path)
