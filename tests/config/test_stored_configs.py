"""A stored config, maybe somebody else's, names neither code to run nor files to write."""

import pytest
from helpers.foreign import foreign_config, foreign_model
from helpers.refusals import assert_names, refused, refused_command

from t2t_flax import config as config_lib
from t2t_flax.config import load_config, override
from t2t_flax.config.keys import CODE, NUMBER, OF_USER, PROGRAM, READ, RUN, TEXT, WRITTEN, key
from t2t_flax.config.overrides import _warn, from_elsewhere
from t2t_flax.config.schema import fields, keys_of_kind
from t2t_flax.evaluation.restore import read_config, stored_config
from t2t_flax.extensions.interop.import_model import read_model
from t2t_flax.training.workdir import adopt_config

METRICS = {"learned_metrics.names": "comet,kiwi,metricx"}
FOREIGN = {
    "filters.scorer": ("evil.py:f", {"filters.score": 2.0}),
    "learned_metrics.comet": ("evil/model", METRICS),
    "learned_metrics.kiwi": ("evil/model", METRICS),
    "learned_metrics.metricx": ("evil/model", METRICS),
    "learned_metrics.metricx_tokenizer": ("evil/model", METRICS),
    "learned_metrics.environments": ("evil/environments", METRICS),
    "data.cache": ("/elsewhere", {}),
}
"""Keys that a stored config cannot set: a value, and the keys with which they are read."""
RUN_KEYS = [name for name in FOREIGN if name != "data.cache"]


def keys_of(name):
    value, others = FOREIGN[name]
    return others | {name: value}


@pytest.fixture(autouse=True)
def warn_again():
    _warn.cache_clear()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(
        f"open({str(tmp_path / 'RUN')!r}, 'w')\ndef f(pairs): return [0.0] * len(pairs)\n"
    )
    python = tmp_path / "evil" / "environments" / "comet-2.2.7" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\ntouch {tmp_path / 'RUN'}\n")
    python.chmod(0o755)
    yield tmp_path
    assert not (tmp_path / "RUN").exists()


def test_every_key_says_what_its_value_is():
    kinds = {name: item.metadata["kind"] for name, item in fields().items()}
    assert set(kinds.values()) == {NUMBER, TEXT, READ, WRITTEN, PROGRAM, CODE}
    assert {name for name, kind in kinds.items() if kind in OF_USER} == set(FOREIGN)
    texts = {
        name for name, item in fields().items() if item.type is str and not item.metadata["choices"]
    }
    assert {name for name, kind in kinds.items() if kind != NUMBER and name not in texts} == {
        name for name, item in fields().items() if item.metadata["choices"]
    }
    with pytest.raises(ValueError, match="kind"):
        key("", "a text whose kind is not given")


def test_the_default_of_every_key_stands_where_a_stored_config_cannot_set_it():
    for name, item in fields().items():
        value, others = FOREIGN.get(name, (item.default, {}))
        stored = config_lib.Config().with_values(others | {name: value})
        usable, lost = from_elsewhere(stored)
        assert lost == ({name: value} if name in FOREIGN else {})
        assert usable.value(name) == config_lib.Config().value(name)
        assert from_elsewhere(stored, {name}) == (stored, {})


@pytest.mark.parametrize("name", FOREIGN)
def test_a_model_from_elsewhere_is_used_without_what_would_be_run(name, here, caplog):
    folder, value = foreign_model(here / "model", keys_of(name)), FOREIGN[name][0]
    assert (
        stored_config(folder).value(name)
        == read_config(folder).value(name)
        == fields()[name].default
    )
    if name in RUN_KEYS:
        assert_names(caplog.text, f"config.{name}", f"--config.{name}={value}", str(folder))
    caplog.clear()
    given = f"{value}2"
    assert stored_config(folder, {name: given}).value(name) == given and name not in caplog.text


@pytest.mark.parametrize("name", RUN_KEYS)
def test_a_config_file_of_a_run_is_refused_unless_the_command_line_gives_what_is_run(name, here):
    value = FOREIGN[name][0]
    (here / "c.json").write_text(foreign_config(keys_of(name)))
    names = (f"config.{name}", f"--config.{name}={value}")
    for command in ("explain", "prepare", "train"):
        more = [] if command == "explain" else [f"--workdir={here / 'new'}"]
        refused_command([command, "--config=c.json", *more], "c.json", *names)
    assert not (here / "new").exists()
    given = load_config("c.json", {name: value})
    assert given.value(name) == value
    if name == "filters.scorer":
        assert given.value("filters.score") == 2.0
    assert (
        load_config("c.json", {name: str(fields()[name].default)}).value(name)
        == fields()[name].default
    )


@pytest.mark.parametrize(
    ("name", "train"),
    [("data.cache", "toy:train"), ("data.root", "tfds:wmt14_translate/de-en:train")],
)
def test_a_config_file_of_a_run_names_no_folder_that_is_written(name, train, here, caplog):
    (here / "c.json").write_text(foreign_config({"data.train": train, name: "/elsewhere"}))
    assert load_config("c.json").value(name) == ""
    assert_names(caplog.text, f"config.{name}", f"--config.{name}=/elsewhere")
    assert load_config("c.json", {name: "mine"}).value(name) == "mine"
    (here / "c.json").write_text(foreign_config({"data.root": "/texts", "data.train": "a.en,a.de"}))
    assert load_config("c.json").data.root == "/texts"


def test_import_leaves_out_what_would_be_run(here, caplog):
    keys = keys_of("filters.scorer") | keys_of("learned_metrics.environments")
    config = read_model(foreign_model(here / "model", keys)).config
    assert config.value("filters.scorer") == config.value("learned_metrics.environments") == ""
    assert_names(
        caplog.text,
        *(
            f"--config.{name}={keys[name]}"
            for name in ("filters.scorer", "learned_metrics.environments")
        ),
    )


def test_a_resumed_run_is_given_its_function_again(here, monkeypatch):
    """A run's own stored config is compared with, not used."""
    command = {"filters.scorer": "evil.py:f", "filters.score": "2.0", "data.train": "toy:train:9"}
    config = config_lib.resolve(override(config_lib.default_config(), command))
    adopt_config(here / "run", config)
    monkeypatch.setattr("t2t_flax.training.workdir.checkpoint_steps", lambda workdir: [1])
    adopt_config(here / "run", config)
    without = config_lib.resolve(
        override(config_lib.default_config(), {"data.train": "toy:train:9"})
    )
    with refused("filters.scorer", "'evil.py:f'"):
        adopt_config(here / "run", without)
    assert {fields()[name].metadata["kind"] for name in keys_of_kind(*RUN)} == {PROGRAM, CODE}
