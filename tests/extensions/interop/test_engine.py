"""decode.engine: the engine of a restored run, refused values, and records."""

import dataclasses
import sys

import pytest
from helpers.refusals import refused, refused_command

import t2t_flax
from t2t_flax.config import Config, override, resolve, to_config_dict
from t2t_flax.data.sources import toy
from t2t_flax.decoding.translator import check_decoder
from t2t_flax.extensions.interop import ctranslate2_decoder as engine_module

RULES = {
    "decode.length_penalty": "power",
    "decode.early_stopping": "beam_full",
    "decode.max_length_offset": "4",
}
CT2 = RULES | {"decode.engine": "ctranslate2"}
needs_extra = pytest.mark.skipif(
    engine_module.installed_version() is None, reason="needs the extra ctranslate2"
)


def flags(overrides):
    return [f"--config.{key}={value}" for key, value in overrides.items()]


@needs_extra
def test_ctranslate2_translates_as_the_jax_search(workdir):
    lines = [*(source for source, _ in toy.pairs("test", 10)), ""]
    ours, theirs = (t2t_flax.load(workdir, overrides=keys) for keys in (RULES, CT2))
    for a, b in zip(ours.translate(lines), theirs.translate(lines), strict=True):
        assert [h.tokens for h in a.hypotheses] == [h.tokens for h in b.hypotheses]
        assert [h.score for h in b.hypotheses] == pytest.approx(
            [h.score for h in a.hypotheses], abs=1e-4
        )
    assert (ours.decoder.name, theirs.decoder.name) == ("jax", "ctranslate2")
    decode = dataclasses.replace(theirs.config.decode, n_best=2)
    copy = dataclasses.replace(theirs, config=dataclasses.replace(theirs.config, decode=decode))
    copy.translate(lines[:1])
    assert len(engine_module._OPEN) == 1, "copies share the model in memory"
    others = [
        t2t_flax.load(workdir, step=1, overrides=CT2),
        t2t_flax.load(workdir, overrides=CT2 | {"ctranslate2.quantization": "int8"}),
    ]
    assert [len(other.translate(lines[:1])) for other in others] == [1, 1]
    assert len(engine_module._OPEN) == 3, "other parameters and types are other models"


@needs_extra
def test_records_name_the_engine_and_are_not_taken_for_those_of_another(workdir):
    record = t2t_flax.evaluate(workdir, overrides=CT2)["test"]
    assert record["engine"] == {
        "name": "ctranslate2", "version": engine_module.installed_version(), "type": "float32"
    }  # fmt: skip
    by_jax = t2t_flax.evaluate(workdir, overrides=RULES)["test"]
    assert by_jax["engine"]["name"] == "jax" and by_jax["hypotheses"] != record["hypotheses"]
    assert by_jax["digests"]["hypotheses"] == record["digests"]["hypotheses"]


@pytest.mark.parametrize(
    "keys, named",
    [
        ({}, "decode.early_stopping"),
        ({"decode.early_stopping": "beam_full"}, "decode.length_penalty"),
        ({"decode.strategy": "sample"}, "decode.strategy"),
        (
            {"decode.strategy": "greedy", "decode.max_length_offset": "5000"},
            "decode.max_length_offset",
        ),
        ({"decode.strategy": "greedy", "model.position": "rotary"}, "model.position"),
        (
            {"decode.engine": "jax", "ctranslate2.quantization": "int8"},
            "config.ctranslate2.quantization",
        ),
    ],
)
def test_what_is_impossible_is_refused_by_key(keys, named):
    with refused("config.decode.engine", named):
        check_decoder(
            resolve(override(to_config_dict(Config()), {"decode.engine": "ctranslate2"} | keys))
        )


def test_without_the_extra_it_is_refused(workdir, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    for command in ("translate", "evaluate"):
        refused_command(
            [command, f"--workdir={workdir}", *flags(CT2)], "config.decode.engine", ".[ctranslate2]"
        )
    with refused(".[ctranslate2]"):
        t2t_flax.load(workdir, overrides=CT2).translate(["It is late."])
