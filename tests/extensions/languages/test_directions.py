"""languages.directions: the direction of every source, and the target languages that follow."""

from types import SimpleNamespace

import pytest
from helpers.refusals import refused

from t2t_flax.config import Config, Data, resolve
from t2t_flax.data.hooks import control_symbols
from t2t_flax.extensions.languages import parse_directions
from t2t_flax.extensions.shared.directions import (
    Direction,
    codes_of,
    directions_of,
    model_directions,
)
from t2t_flax.tasks import task_of

TRAIN = "en-de=a.tsv; de-en=b.tsv; en-zh_Hans.web=c.tsv; bt=d.tsv"
KEYS = dict(train=TRAIN, valid="en-de=v.tsv; bt=w.tsv", test="zero=t.tsv; de-en=u.tsv")
DIRECTIONS = "by_name, bt=de-en, zero=de-zh_Hans"


def config_of(directions=DIRECTIONS, **data):
    return Config(data=Data(**data)).with_values({"languages.directions": directions})


CONFIG = config_of(**KEYS)


def test_directions_come_from_names_and_entries():
    directions = parse_directions(CONFIG)
    assert {name: str(direction) for name, direction in directions.items()} == {
        "en-de": "en-de",
        "de-en": "de-en",
        "en-zh_Hans.web": "en-zh_Hans",
        "bt": "de-en",
        "zero": "de-zh_Hans",
    }
    trained = [Direction("en", "de"), Direction("de", "en"), Direction("en", "zh_Hans")]
    source = SimpleNamespace(source_languages={}, target_languages={"de": 5, "en": 7, "zh_Hans": 6})
    assert model_directions(CONFIG, source) == (trained, [Direction("de", "zh_Hans")])
    assert str(codes_of(trained)) == "mul-mul" and codes_of(trained[:1]) == ("en", "de")
    control = ["<2de>", "<2en>", "<2zh_Hans>"]
    assert list(control_symbols(CONFIG)) == control
    assert list(control_symbols(CONFIG.with_values({"mixtures.tags": "bt=<bt>"}))) == [
        *control,
        "<bt>",
    ]
    assert directions_of(CONFIG, ["valid.bt", "bt"]) == [("de", "en")]


def test_sources_without_names_are_named_after_their_split():
    config = config_of(
        "x=de-en,y=fr-en,valid=de-en,test=fr-en",
        train="x=a.tsv; y=b.tsv",
        valid="v.tsv",
        test="t.tsv",
    )
    assert directions_of(config, ["test", "valid"]) == [("fr", "en"), ("de", "en")]


def test_without_directions_there_is_one():
    config = Config(data=Data(train="clean=a.tsv; bt=b.tsv")).with_values(
        {"mixtures.tags": "bt=<bt>"}
    )
    assert not parse_directions(config) and control_symbols(config) == {"<bt>": "mixtures.tags"}
    one = SimpleNamespace(source_languages={}, target_languages={})
    assert model_directions(config, one) == ([("en", "de")], [])


def test_an_imported_model_writes_the_languages_of_its_tokenizer():
    source = SimpleNamespace(source_languages={}, target_languages={"deu": 5, "fra": 7})
    assert model_directions(Config(), source) == ([("en", "deu"), ("en", "fra")], [])


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (dict(directions="bt=de-en"), ["config.data.train", "en-de=en-de"]),
        (dict(directions="by_name"), ["config.data.train", "'bt'"]),
        (dict(directions="by_name, bt=de-en"), ["config.data.test", "'zero'"]),
        (dict(directions="by_name, bt=de-en, zero=de-en, x=en-de"), ["data.test", "'x'"]),
        (dict(directions="by_name, bt=de, zero=de-en"), ["'de'"]),
        (dict(directions="by_name, bt=en-zh-Hans, zero=de-en"), ["en-zh-Hans"]),
        (dict(directions="by_name, bt=de-en, bt=en-de"), ["bt twice"]),
        (dict(directions="nonsense"), ["'nonsense'", "NAME=VALUE"]),
        (dict(directions="by_name, bt=de-en, zero=de-fr"), ["into fr", "config.data.train"]),
        (dict(directions="by_name, bt=de-en, zero=EN-de"), ["EN"]),
        (dict(directions="by_name, bt=de-en, zero=eng-de"), ["eng"]),
        (dict(directions="by_name, bt=de-en, zero=english-de"), ["'english'"]),
        (dict(task="parsing"), ["data.task", "parsing"]),
        (dict(valid="en-de=a; bt=b; EN-DE=c"), ["validation sets", "'EN-DE'"]),
        (dict(train="valid.x=a; bt=b", directions="by_name, bt=en-de, valid.x=en-de"), ["config.data.train", "'valid.x'"]),
        (dict(test="valid.bt=t.tsv", directions="by_name, bt=de-en, valid.bt=de-en"), ["'valid.bt'"]),
    ],
)  # fmt: skip
def test_wrong_directions_are_refused_by_key(keys, names):
    directions = keys.get("directions", DIRECTIONS)
    data = KEYS | {k: v for k, v in keys.items() if k != "directions"}
    with refused(*names):
        resolve({"data": data, "languages": {"directions": directions}})


def test_the_metric_of_the_best_checkpoint_exists_in_every_direction():
    """Moses cannot tokenize Chinese: its BLEU would have no mean over these sets."""
    keys = {"train": TRAIN, "valid": "en-de=v.tsv; en-zh_Hans.web=w.tsv", "test": "zero=t.tsv"}
    languages = {"languages": {"directions": DIRECTIONS}}
    config = resolve(
        {"data": keys, **languages, "eval": {"metric": "tokenized_bleu", "decode_every_steps": 1}}
    )
    with refused("config.eval.metric", "tokenized_bleu"):
        task_of(config).validate_config()
    config = resolve(
        {"data": keys, **languages, "eval": {"metric": "chrf", "decode_every_steps": 1}}
    )
    task_of(config).validate_config()
