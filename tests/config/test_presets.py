"""Presets, and the config files that name them."""

from pathlib import Path

import pytest
from helpers.refusals import refused

from t2t_flax import config as config_lib
from t2t_flax.config.presets import PRESETS, Preset, find, preset, presets

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("name", presets())
def test_every_preset_resolves_and_has_a_source(name):
    config_lib.resolve(preset(name))
    assert find(name).source


def test_preset_with_keys_of_an_absent_extension(monkeypatch):
    monkeypatch.setitem(PRESETS, "odd", Preset("nowhere", {"absent.key": 1}))
    with refused("odd", "config.absent.key"):
        preset("odd")


def test_english_french_has_less_dropout_and_fewer_pieces():
    big, enfr = (config_lib.resolve(preset(name)) for name in ("aiayn_big", "aiayn_big_enfr"))
    assert (enfr.model.dropout, enfr.data.vocab_size, enfr.data.target_language) == (
        0.1,
        32_000,
        "fr",
    )
    assert not [
        key
        for key in config_lib.differences(big, enfr)
        if not key.startswith(("data.", "model.dropout"))
    ]


def test_config_files_are_presets():
    for file, name in (("wmt14_ende.py:base", "aiayn_base"), ("wmt14_ende.py:big", "aiayn_big"),
                       ("wmt14_enfr.py:base", "aiayn_base_enfr"), ("wmt14_enfr.py:big", "aiayn_big_enfr"), ("text.py:29000", "text")):  # fmt: skip
        assert config_lib.load_config(str(CONFIGS / file)) == config_lib.resolve(preset(name))
    differ = config_lib.differences(
        config_lib.resolve(preset("wu2021_tiny")),
        config_lib.load_config(str(CONFIGS / "multi30k.py")),
    )
    assert set(differ) == {"log.every_steps", "mesh.cpu_devices"}


def test_french_multi30k_is_the_german_recipe_on_other_text():
    german, french = (
        config_lib.load_config(f"{CONFIGS / 'multi30k.py'}:{language}") for language in ("de", "fr")
    )
    texts = {
        "data.train",
        "data.valid",
        "data.test",
        "data.target_language",
        "data.tokenizer_model",
        "data.vocab_size",
    }
    assert set(config_lib.differences(german, french)) == texts
    with refused("'cs'", "de", "fr"):
        config_lib.load_config(f"{CONFIGS / 'multi30k.py'}:cs")


def test_presets_load_by_name_with_overrides():
    config = config_lib.load_config("t2t_v3", {"model.dropout": "0.2"})
    assert (config.model.norm_placement, config.model.dropout) == ("pre", 0.2)
    with refused("'t2t_v4'", "'t2t_v"):
        config_lib.load_config("t2t_v4")
