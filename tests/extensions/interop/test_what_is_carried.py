"""Exported folders hold the run's rules of decoding, and name the ones that the format lacks."""

import dataclasses
import json

import numpy as np
import pytest
from helpers.refusals import refused

from t2t_flax.__main__ import main
from t2t_flax.config import Config, Decode, Model
from t2t_flax.evaluation.restore import load, stored_config
from t2t_flax.extensions.interop import ctranslate2_export, marian_export, marian_import
from t2t_flax.extensions.interop import export as export_lib
from t2t_flax.extensions.interop.export import export
from t2t_flax.extensions.interop.import_model import read_model
from t2t_flax.extensions.interop.model_card import front_matter, sections
from t2t_flax.extensions.interop.safetensors_file import check_representable, flatten, read_tensors
from t2t_flax.extensions.shared.directions import Direction

LINES = ["Where is the dog?", "It is late.", "The small house is old."]
EXACT = dict(max_length_ratio=0.0, max_length_offset=12)
GREEDY = dict(EXACT, strategy="greedy")
POWER = dict(EXACT, beam_size=3, length_penalty="power", alpha=0.8, early_stopping="beam_full")


@pytest.mark.parametrize(
    "beams, penalty, alpha, early_stopping",
    [
        (1, "power", 0.7, "exact"),
        (5, "power", 0.0, "beam_full"),
        (5, "power", 0.7, "exact"),
        (5, "none", 0.6, "beam_full"),
        (5, "gnmt", 0.0, "exact"),
    ],
)
def test_rules_of_hugging_face_come_back(beams, penalty, alpha, early_stopping):
    decode = Decode(
        beam_size=beams, length_penalty=penalty, alpha=alpha, early_stopping=early_stopping, **EXACT
    )
    assert marian_export.not_carried(Config(decode=decode, model=Model(norm_eps=1e-5))) == []
    back = marian_import.decode_keys({}, marian_export.search_keys(decode))
    assert (back["beam_size"], back["max_length_offset"]) == (beams, decode.max_length_offset)
    if beams > 1:
        power = 0.0 if penalty in ("none", "gnmt") else alpha
        assert (back["length_penalty"], back["alpha"], back["early_stopping"]) == (
            "power",
            power,
            early_stopping,
        )


@pytest.mark.parametrize(
    ("keys", "rules", "said"),
    [
        (dict(strategy="greedy"), {"num_beams": 1, "do_sample": False}, ["decode.max_length_ratio = 1"]),
        (GREEDY | {"length_penalty": "gnmt", "early_stopping": "top_finished"}, {"num_beams": 1}, []),
        (
            dict(EXACT, strategy="sample", top_k=5, top_p=0.9, temperature=0.7),
            {"num_beams": 1, "do_sample": True, "top_k": 5, "top_p": 0.9, "temperature": 0.7},
            ["decode.seed"],
        ),
        (
            dict(EXACT, strategy="sample", top_k=5, epsilon=0.02),
            {"do_sample": True, "top_k": 5, "epsilon_cutoff": 0.02},
            ["decode.seed", "decode.epsilon"],
        ),
        (EXACT, {"num_beams": 4, "length_penalty": 0.6, "early_stopping": "never"}, ["decode.length_penalty = gnmt"]),
        (POWER | {"early_stopping": "top_finished"}, {"early_stopping": "never"}, ["decode.early_stopping = top_finished"]),
    ],
)  # fmt: skip
def test_what_hugging_face_has_not_is_said(keys, rules, said):
    decode = Decode(**keys)
    written = marian_export.search_keys(decode)
    assert {key: written[key] for key in rules} == rules
    notes = marian_export.not_carried(Config(decode=decode, model=Model(norm_eps=1e-5)))
    assert len(notes) == len(said) and all(
        note.startswith(start) for note, start in zip(notes, said, strict=True)
    )


def test_what_the_models_have_not_is_said():
    model = Model(norm_eps=1e-6, dropout=0.3, dropout_attention=0.2)
    notes = marian_export.not_carried(Config(model=model, decode=Decode(**POWER)))
    assert [note.split(" = ")[0] for note in notes] == ["model.norm_eps"]
    config = marian_export.model_keys(Config(model=model), 10, "float32")
    assert (config["dropout"], config["attention_dropout"], config["activation_dropout"]) == (
        0.3,
        0.2,
        0.0,
    )
    assert ctranslate2_export.not_carried(Config(model=model, decode=Decode(**POWER))) == []
    said = ctranslate2_export.not_carried(Config(decode=Decode()))
    assert [note.split(" = ")[0] for note in said] == [
        "decode.length_penalty",
        "decode.early_stopping",
        "decode.max_length_ratio",
    ]


def test_the_command_and_the_readme_say_it(workdir, tmp_path, capsys):
    words = [f"--workdir={workdir}", "--format=huggingface", f"--output={tmp_path / 'm'}"]
    assert (
        main(
            [
                "export",
                *words,
                "--config.decode.strategy=beam",
                "--config.decode.length_penalty=gnmt",
            ]
        )
        == 0
    )
    (note,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    readme = (tmp_path / "m" / "README.md").read_text()
    assert f"- {note.removeprefix('note: ')}\n" in readme
    run = load(workdir)
    assert (
        export(tmp_path / "s", "safetensors", run.config, run.params, run.tokenizers, steps=[2])
        == []
    )
    assert "decode." not in (tmp_path / "s" / "README.md").read_text()


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_the_example_of_ctranslate2_keeps_to_the_positions_of_the_model(workdir, ratio):
    keys = {"model.position": "learned", "model.max_positions": 64, "data.max_length": 64}
    config = load(workdir).config.with_values(
        keys | {"decode.max_length_ratio": ratio, "decode.max_length_offset": 99}
    )
    assert "max_decoding_length=64, max_input_length=64" in export_lib._ctranslate2(
        load(workdir).tokenizers, config
    )


def test_the_card_names_tags_that_are_no_language_codes_as_undetermined():
    head = front_matter(
        Config(), [Direction("en", "de"), Direction("en", "ze_zh")], "safetensors", ""
    )
    assert 'language: ["en", "de", "und"]' in head


def test_the_card_names_all_files_of_several_sources_without_their_folders():
    train = "a=/home/me/a.en,/home/me/a.de; b=/my data/b.en,b.de"
    parts = sections(
        Config().with_values({"data.train": train}), [Direction("en", "de")], [], "float32"
    )
    assert "Trained on a=a.en,a.de; b=b.en,b.de (" in "".join(parts)


@pytest.mark.torch
@pytest.mark.parametrize("keys", [GREEDY, POWER], ids=["greedy", "power"])
def test_generate_without_options_decodes_as_the_run(workdir, tmp_path, keys):
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    pytest.importorskip("torch", reason="PyTorch is not installed")
    run = load(workdir, overrides={f"decode.{key}": str(value) for key, value in keys.items()})
    export(tmp_path / "m", "huggingface", run.config, run.params, run.tokenizers, steps=[2])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "m")
    for line, ours in zip(LINES, run.translate(LINES), strict=True):
        (theirs,) = model.generate(**tokenizer([line], return_tensors="pt")).tolist()
        ids = [i for i in theirs if i > 1]
        assert ids == [i for i in ours.hypotheses[0].tokens if i > 1]


@pytest.mark.parametrize("kind", ["huggingface", "ctranslate2"])
def test_float16_has_every_number(workdir, tmp_path, kind):
    """The bias of padding, too: what is exported is read again."""
    pytest.importorskip(
        {"ctranslate2": "ctranslate2"}.get(kind, "numpy"), reason="needs the extra ctranslate2"
    )
    run = load(workdir, overrides={"decode.strategy": "greedy"})
    model = (
        dataclasses.replace(run.config.model, decoder_start_token="bos")
        if kind == "ctranslate2"
        else run.config.model
    )
    config = dataclasses.replace(run.config, model=model)
    start = (
        {"decoder_start_token": {"bos": np.ones(model.d_model, np.float32)}}
        if kind == "ctranslate2"
        else {}
    )
    options = dict(steps=[2], quantization="float16")
    export(tmp_path / "m", kind, config, run.params | start, run.tokenizers, **options)
    if kind == "huggingface":
        arrays, _ = read_tensors(tmp_path / "m" / "model.safetensors")
        assert all(np.isfinite(x).all() for x in arrays.values())
        assert json.loads((tmp_path / "m" / "generation_config.json").read_text())["num_beams"] == 1
    imported = read_model(tmp_path / "m")
    assert imported.config.model.decoder_start_token == model.decoder_start_token
    for name, x in flatten(imported.params).items():
        assert np.isfinite(x).all(), name


def test_weights_too_large_for_float16_are_refused(workdir, tmp_path):
    run = load(workdir)
    params = flatten(run.params)
    name = "encoder_0/feed_forward/Einsum_0/kernel"
    large = {name: np.asarray(params[name]) * 0 + 7e4}
    for dtype in ("float16", "int8_float16"):
        with refused(f"--quantization={dtype}", name):
            check_representable(large, dtype)
    for dtype in ("float32", "bfloat16", "int8_bfloat16", "int8"):
        check_representable(large, dtype)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["ctranslate2", "huggingface"])
def test_rules_of_this_search_alone_are_said(kind):
    pytest.importorskip("t2t_flax.extensions.constraints")
    plain = Config(decode=Decode(**POWER), model=Model(norm_eps=1e-5))
    assert export_lib._NOT_CARRIED[kind](plain) == []
    keys = {
        "decode.strategy": "constrained_beam",
        "constraints.lines": "json",
        "constraints.no_repeat_ngram": 3,
    }
    notes = export_lib._NOT_CARRIED[kind](plain.with_values(keys))
    said = [note.split(" = ")[0] for note in notes]
    assert {"constraints.no_repeat_ngram", "constraints.lines", "decode.strategy"} <= set(said)
    assert export_lib._NOT_CARRIED["safetensors"](plain.with_values(keys)) == []


def test_sources_without_eos_are_refused():
    config = Config(model=Model(norm_eps=1e-5)).with_values({"data.source_eos": False})
    with refused("config.data.source_eos"):
        marian_export.check_exportable(config)


def test_an_exported_model_has_no_adapters(workdir, tmp_path):
    """They are merged into its parameters."""
    pytest.importorskip("t2t_flax.extensions.finetuning")
    run = load(workdir)
    config = run.config.with_values({"finetuning.lora_rank": 8})
    export(tmp_path / "out", "safetensors", config, run.params, run.tokenizers, steps=[2])
    assert stored_config(tmp_path / "out").value("finetuning.lora_rank") == 0
