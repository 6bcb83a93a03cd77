"""Hugging Face's Marian models against its logits, beams, tokenizer; files that do not fit."""

import io
import json
import shutil
import sys

import numpy as np
import pytest
from helpers.refusals import assert_names, refused

import t2t_flax
from t2t_flax.__main__ import main
from t2t_flax.config.data_keys import UNK
from t2t_flax.data.sources import toy
from t2t_flax.extensions.interop.import_model import read_model
from t2t_flax.extensions.interop.imported import IMPROBABLE
from t2t_flax.extensions.interop.safetensors_file import flatten

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="needs the extra hf")

LINES = [source for source, _ in toy.pairs("test", 8)] + [">>deu<< It is late.", "Ω unknown"]
CAP = 40
SHARED = dict(
    activation_function="swish", scale_embedding=True, renormalize_logits=True, bad_words=True
)
SEPARATE = dict(
    activation_function="relu", share_encoder_decoder_embeddings=False, attention_dropout=0.1
)


def sentencepiece(texts, size):
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=size,
        minloglevel=2,
        character_coverage=1.0,
    )
    return model.getvalue()


def pieces_of(model):
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(3, len(processor))]


def write_vocabulary(path, pieces):
    """Marian's order: end of sentence and unknown first, padding last."""
    tokens = ["</s>", "<unk>", *dict.fromkeys(pieces), ">>deu<<", "<pad>"]
    path.write_text(json.dumps({token: i for i, token in enumerate(tokens)}, ensure_ascii=False))
    return len(tokens)


def write_model(folder, keys):
    """A model with random weights, none of them at its initial value; outputs end."""
    pairs = list(toy.pairs("train", 400))
    models = [sentencepiece([pair[side] for pair in pairs], 90 + 10 * side) for side in (0, 1)]
    separate = not keys.get("share_encoder_decoder_embeddings", True)
    lists = [pieces_of(model) for model in models]
    # Each has its own pieces, in as many rows as the other, so that padding has one number.
    if separate:
        width = min(map(len, lists))
        lists = [pieces[:width] for pieces in lists]
        size = write_vocabulary(folder / "target_vocab.json", lists[1])
        write_vocabulary(folder / "vocab.json", lists[0])
    else:
        size = write_vocabulary(folder / "vocab.json", lists[0] + lists[1])
    for name, model in zip(("source", "target"), models, strict=True):
        (folder / f"{name}.spm").write_bytes(model)
    tokenizer = dict(
        source_lang="en",
        target_lang="de",
        tokenizer_class="MarianTokenizer",
        separate_vocabs=separate,
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    generation = {key: keys[key] for key in ("renormalize_logits",) if key in keys}
    model_keys = {
        key: x for key, x in keys.items() if key not in ("renormalize_logits", "bad_words")
    }
    config = transformers.MarianConfig(
        vocab_size=size, decoder_vocab_size=size, d_model=32, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=48,
        decoder_ffn_dim=48, encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=64,
        pad_token_id=size - 1, eos_token_id=0, decoder_start_token_id=size - 1, forced_eos_token_id=None, **model_keys,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "embed_positions" not in name:
                x.add_(torch.randn(x.shape) * (0.2 if x.ndim > 1 else 0.1))
        for embedding in {model.get_encoder().embed_tokens, model.get_decoder().embed_tokens}:
            embedding.weight[size - 1] = 0
        model.final_logits_bias.copy_(torch.randn(1, size) * 0.3)
        model.final_logits_bias[0, 0] += 4.0
    model.generation_config = transformers.GenerationConfig(
        pad_token_id=size - 1, eos_token_id=0, decoder_start_token_id=size - 1, num_beams=3, early_stopping=True,
        length_penalty=0.8, max_length=CAP, bad_words_ids=[[size - 1]], **generation,
    )  # fmt: skip
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module", params=["shared", "separate"])
def opus(request, tmp_path_factory):
    """(folder, Hugging Face's model, its tokenizer, the imported run)."""
    folder = tmp_path_factory.mktemp(request.param) / "opus"
    folder.mkdir()
    model = write_model(folder, {"shared": SHARED, "separate": SEPARATE}[request.param])
    run = folder.parent / "run"
    assert main(["import", f"--from={folder}", f"--workdir={run}"]) == 0
    return folder, model, transformers.AutoTokenizer.from_pretrained(folder), t2t_flax.load(run)


def test_tokens_are_those_of_hugging_face(opus):
    """By their pieces: ids 0, 1 and 2 have another meaning there."""
    _, _, tokenizer, run = opus
    source_pieces = {i: piece for piece, i in tokenizer.encoder.items()}
    for line in LINES:
        theirs = [source_pieces[i] for i in tokenizer(line).input_ids[:-1]]
        ids = run.tokenizers.source.encode(line)
        assert run.tokenizers.source.pieces(ids) == theirs
    for _, target in toy.pairs("test", 8):
        ids = run.tokenizers.target.encode(target)
        theirs = tokenizer(text_target=target).input_ids[:-1]
        names = tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder
        assert [names[piece] for piece in run.tokenizers.target.pieces(ids)] == theirs
        ids = [i for i in ids if i != UNK]  # which is shown here, and left out there
        assert run.tokenizers.target.decode(ids) == tokenizer.decode(
            theirs, skip_special_tokens=True
        )
    assert UNK in run.tokenizers.source.encode("Ω unknown")
    assert run.tokenizers.source.pieces(run.tokenizers.source.encode(">>deu<< It"))[0] == ">>deu<<"


def test_logits_equal_hugging_faces(opus):
    """Of every class but padding, whose bias differs where it is never generated."""
    from helpers.configs import rows_alone

    _, model, tokenizer, run = opus
    pairs = list(toy.pairs("test", 6))
    sides = run.tokenizers.source, run.tokenizers.target
    ids = [
        tuple(side.encode(text) + [1] for side, text in zip(sides, pair, strict=True))
        for pair in pairs
    ]
    length = max(len(row) for pair in ids for row in pair)
    ours = np.asarray(run.model.apply({"params": run.params}, rows_alone(ids, length)))
    source = tokenizer([pair[0] for pair in pairs], return_tensors="pt", padding=True)
    target = tokenizer(
        text_target=[pair[1] for pair in pairs], return_tensors="pt", padding=True
    ).input_ids
    with torch.no_grad():
        theirs = model(
            **source, decoder_input_ids=model.prepare_decoder_input_ids_from_labels(target)
        ).logits.numpy()
    vocabulary = tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder
    order = [vocabulary[piece] for piece in sides[1].pieces(range(1, sides[1].vocab_size))]
    for row, (_, forced) in enumerate(ids):
        count = len(forced)
        np.testing.assert_allclose(
            ours[row, :count, 1 : 1 + len(order)],
            theirs[row, :count][:, order],
            rtol=1e-4,
            atol=1e-4,
        )


def test_beams_equal_those_of_generate(opus):
    """Under the rules of generation_config.json, which the run's config holds.

    Where both end before the limit.
    """
    _, model, tokenizer, run = opus
    decode = run.config.decode
    assert (decode.beam_size, decode.length_penalty, decode.alpha, decode.early_stopping) == (
        3,
        "power",
        0.8,
        "beam_full",
    )
    lines = LINES[:8]
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    theirs = tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
    ours = [t.hypotheses[0] for t in run.translate(lines)]
    ended = [(a.text, b) for a, b in zip(ours, theirs, strict=True) if not a.hit_cap]
    assert len(ended) >= 4 and all(a == b for a, b in ended)


@pytest.mark.parametrize("opus", ["shared"], indirect=True)
@pytest.mark.parametrize("quantization", ["float32", "int8"])
def test_conversion_by_ctranslate2_is_the_same_model(opus, quantization, tmp_path):
    """What its own converter makes of the folder, without padding.

    The same run, with quantized weights a near one.
    """
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    folder, _, _, run = opus
    converter = ctranslate2.converters.TransformersConverter(
        str(folder), copy_files=["source.spm", "target.spm"]
    )
    converter.convert(str(tmp_path / "ct2"), quantization=quantization)
    with refused("--source-language=CODE"):
        read_model(tmp_path / "ct2")
    read = read_model(tmp_path / "ct2", languages=("en", "de"))
    assert read.config.model == run.config.model and read.config.data == run.config.data
    assert read.tokenizers.digest == run.tokenizers.digest
    for path, x in flatten(run.params).items():
        atol = 0.6 / 127 * np.abs(x).max() if quantization == "int8" else 0
        np.testing.assert_allclose(flatten(read.params)[path], x, rtol=0, atol=atol, err_msg=path)


@pytest.mark.parametrize("opus", ["shared"], indirect=True)
def test_pytorch_files_are_read_with_their_duplicates(opus, tmp_path, monkeypatch):
    """Older ones hold every tied table and the vectors of positions."""
    folder, model, _, run = opus
    copy = shutil.copytree(folder, tmp_path / "old")
    (copy / "model.safetensors").unlink()
    state = model.state_dict()
    assert {
        "lm_head.weight",
        "model.encoder.embed_tokens.weight",
        "model.encoder.embed_positions.weight",
    } <= set(state)
    torch.save(state, copy / "pytorch_model.bin")
    read = read_model(copy)
    for path, x in flatten(run.params).items():
        np.testing.assert_array_equal(flatten(read.params)[path], x, err_msg=path)
    for name in ("lm_head.weight", "model.encoder.embed_positions.weight"):
        torch.save(state | {name: state[name] + 1.0}, copy / "pytorch_model.bin")
        with refused(name):
            read_model(copy)
    with monkeypatch.context() as without_torch:
        without_torch.setitem(sys.modules, "torch", None)
        with refused("torch", ".[torch]"):
            read_model(copy)
    with monkeypatch.context() as old_torch:
        old_torch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was read"))
        for version in ("2.5.1+cpu", "1.13.0a0"):
            old_torch.setattr(torch, "__version__", version)
            with refused(f"torch {version}", ".[torch]"):
                read_model(copy)
    (copy / "pytorch_model.bin").write_bytes(b"PK no weights")
    with refused("pytorch_model.bin"):
        read_model(copy)


@pytest.mark.parametrize("opus", ["shared"], indirect=True)
@pytest.mark.parametrize(
    "file, change, names",
    [
        ("config.json", dict(decoder_ffn_dim=50), ("encoder_ffn_dim", "decoder_ffn_dim")),
        (
            "config.json",
            dict(encoder_attention_heads=8),
            ("encoder_attention_heads", "decoder_attention_heads"),
        ),
        ("config.json", dict(activation_function="gelu"), ("activation_function", "'gelu'")),
        ("config.json", dict(normalize_before=True), ("normalize_before",)),
        ("config.json", dict(static_position_embeddings=False), ("static_position_embeddings",)),
        ("config.json", dict(add_final_layer_norm=True), ("add_final_layer_norm",)),
        ("config.json", dict(normalize_embedding=True), ("normalize_embedding",)),
        (
            "config.json",
            dict(encoder_layers=3),
            ("'model.encoder.layers.2.self_attn.q_proj.weight'",),
        ),
        ("config.json", dict(encoder_layers=1), ("model.encoder.layers.1",)),
        ("config.json", dict(eos_token_id=5), ("eos_token_id", "vocab.json", "'</s>'")),
        ("config.json", dict(decoder_start_token_id=10**6), ("decoder_start_token_id", "1000000")),
        ("vocab.json", {"more": 10**6}, ("vocab.json",)),
        ("tokenizer_config.json", dict(source_lang=None), ("--source-language=CODE",)),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(opus, file, change, names, tmp_path):
    copy = shutil.copytree(opus[0], tmp_path / "bad")
    content = json.loads((copy / file).read_text())
    (copy / file).write_text(json.dumps(content | change))
    with refused(*names):
        read_model(copy)


@pytest.mark.parametrize("opus", ["shared"], indirect=True)
def test_languages_of_opus_are_read(opus, tmp_path):
    """A vocabulary with several tags.

    A target language is asked for, and gives the ids of the tagged text there.
    """
    copy, run = shutil.copytree(opus[0], tmp_path / "copy"), tmp_path / "run"
    ids = json.loads((copy / "vocab.json").read_text())
    other = next(piece for piece, i in ids.items() if i == 40)
    (copy / "vocab.json").write_text(
        json.dumps({">>fra<<" if piece == other else piece: i for piece, i in ids.items()})
    )
    settings = json.loads((copy / "tokenizer_config.json").read_text()) | {"target_lang": "ROMANCE"}
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    assert main(["import", f"--from={copy}", f"--workdir={run}"]) == 0
    loaded, theirs = t2t_flax.load(run), transformers.AutoTokenizer.from_pretrained(copy)
    assert list(loaded.tokenizers.source.target_languages) == ["deu", "fra"]
    assert loaded.config.data.target_language == "mul"
    assert sorted(theirs.supported_language_codes) == [">>deu<<", ">>fra<<"]
    pieces = {i: piece for piece, i in theirs.encoder.items()}
    for language in ("deu", "fra"):
        for text in (
            f"<2{language}> {LINES[0]}",
            f">>{language}<< {LINES[0]}",
            f">>{language}<<{LINES[0]}",
        ):
            # A text that has its tag gets no second one.
            pair = loaded.encode_pair(loaded.in_language(text, "deu"), "x")
            expected = [pieces[i] for i in theirs(f">>{language}<< {LINES[0]}").input_ids]
            assert loaded.tokenizers.source.pieces(pair.source) == expected
    with refused("deu, fra"):
        loaded.translate(LINES)


@pytest.mark.parametrize("opus", ["shared"], indirect=True)
def test_a_token_that_the_vocabulary_lacks_is_never_predicted(opus, tmp_path):
    copy = shutil.copytree(opus[0], tmp_path / "copy")
    ids = json.loads((copy / "vocab.json").read_text())
    (copy / "vocab.json").write_text(
        json.dumps({"other" if piece == "<unk>" else piece: i for piece, i in ids.items()})
    )
    assert (
        read_model(copy).params["output_bias"][UNK]
        == IMPROBABLE
        < read_model(opus[0]).params["output_bias"][UNK]
    )


@pytest.mark.parametrize("opus", ["shared"], indirect=True)
def test_missing_files_and_foreign_rules_are_named(opus, tmp_path):
    copy = shutil.copytree(opus[0], tmp_path / "copy")
    generation = json.loads((copy / "generation_config.json").read_text())
    assert read_model(copy).notes == ()
    rules = {"no_repeat_ngram_size": 3, "max_new_tokens": 5, "length_penalty": -1.0}
    rules |= {"sequence_bias": [[[5], 1.0]], "do_sample": True}
    without_effect = {
        "temperature": 0.7,
        "num_return_sequences": 1,
        "min_length": 0,
        "max_time": None,
    }
    (copy / "generation_config.json").write_text(json.dumps(generation | rules | without_effect))
    for note, key in zip(read_model(copy).notes, sorted(rules), strict=True):
        assert_names(note, "generation_config.json", key, repr(rules[key]))
    with refused("--num-heads=2", "encoder_attention_heads", "4"):
        read_model(copy, num_heads=2)
    (copy / "source.spm").write_bytes(b"no model")
    with refused("source.spm"):
        read_model(copy)
    for name in ("target.spm", "model.safetensors", "vocab.json"):
        (copy / name).unlink()
        with refused(name):
            read_model(copy)
