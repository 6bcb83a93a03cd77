"""languages.directions: the direction of every source of text, and the target languages that follow."""

from types import SimpleNamespace

import pytest

from t2t_flax.config import Config, Data, resolve
from t2t_flax.data.hooks import control_symbols
from t2t_flax.errors import UserError
from t2t_flax.extensions.languages import parse_directions
from t2t_flax.extensions.shared.directions import Direction, codes_of, directions_of, model_directions
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
    source = SimpleNamespace(target_languages={"de": 5, "en": 7, "zh_Hans": 6})
    assert model_directions(CONFIG, source) == (trained, [Direction("de", "zh_Hans")])
    assert str(codes_of(trained)) == "mul-mul" and codes_of(trained[:1]) == ("en", "de")
    control = ["<2de>", "<2en>", "<2zh_Hans>"]
    assert control_symbols(CONFIG) == control
    assert control_symbols(CONFIG.with_values({"mixtures.tags": "bt=<bt>"})) == [*control, "<bt>"]
    assert directions_of(CONFIG, ["valid.bt", "bt"]) == [("de", "en")]


def test_sources_without_names_are_named_after_their_split():
    config = config_of("x=de-en,y=fr-en,valid=de-en,test=fr-en", train="x=a.tsv; y=b.tsv", valid="v.tsv", test="t.tsv")
    assert directions_of(config, ["test", "valid"]) == [("fr", "en"), ("de", "en")]


def test_without_directions_there_is_one():
    config = Config(data=Data(train="clean=a.tsv; bt=b.tsv")).with_values({"mixtures.tags": "bt=<bt>"})
    assert not parse_directions(config) and control_symbols(config) == ["<bt>"]
    one = SimpleNamespace(target_languages={})
    assert model_directions(config, one) == ([("en", "de")], [])


def test_an_imported_model_writes_the_languages_of_its_tokenizer():
    source = SimpleNamespace(target_languages={"deu": 5, "fra": 7})
    assert model_directions(Config(), source) == ([("en", "deu"), ("en", "fra")], [])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (dict(directions="bt=de-en"), "the source 'en-de' of config.data.train has no direction: add en-de=en-de"),
        (dict(directions="by_name"), "the source 'bt' of config.data.train is not named after its direction: add bt="),
        (dict(directions="by_name, bt=de-en"), "the source 'zero' of config.data.test is not named after its direction"),
        (dict(directions="by_name, bt=de-en, zero=de-en, x=en-de"), "data.test have no source 'x'; the sources are en-de, de-en"),
        (dict(directions="by_name, bt=de, zero=de-en"), "'de' is not a direction. Write two language codes as en-de"),
        (dict(directions="by_name, bt=en-zh-Hans, zero=de-en"), "a region or script follows an underscore"),
        (dict(directions="by_name, bt=de-en, bt=en-de"), "names bt twice"),
        (dict(directions="nonsense"), "'nonsense' is not of the form NAME=VALUE"),
        (dict(directions="by_name, bt=de-en, zero=de-fr"), "translated into fr, but no source of config.data.train is.*It knows de, en"),
        (dict(directions="by_name, bt=de-en, zero=EN-de"), "en and EN would be two languages"),
        (dict(task="parsing"), "is for data.task = translation, not parsing"),
        (dict(valid="en-de=a; bt=b; EN-DE=c"), "two validation sets are named 'EN-DE'"),
        (dict(train="valid.x=a; bt=b", directions="by_name, bt=en-de, valid.x=en-de"), "the name 'valid.x' in config.data.train begins with 'valid.'"),
        (dict(test="valid.bt=t.tsv", directions="by_name, bt=de-en, valid.bt=de-en"), "'valid.bt' is the name of a validation set"),
    ],
)  # fmt: skip
def test_wrong_directions_are_refused_by_key(keys, message):
    directions = keys.get("directions", DIRECTIONS)
    with pytest.raises(UserError, match=message):
        resolve(
            {
                "data": KEYS | {k: v for k, v in keys.items() if k != "directions"},
                "languages": {"directions": directions},
            }
        )


def test_the_metric_of_the_best_checkpoint_exists_in_every_direction():
    """Moses cannot tokenize Chinese: its BLEU would have no mean over these sets."""
    keys = {"train": TRAIN, "valid": "en-de=v.tsv; en-zh_Hans.web=w.tsv", "test": "zero=t.tsv"}
    languages = {"languages": {"directions": DIRECTIONS}}
    config = resolve({"data": keys, **languages, "eval": {"metric": "tokenized_bleu", "decode_every_steps": 1}})
    with pytest.raises(UserError, match="config.eval.metric = 'tokenized_bleu' is not a metric"):
        task_of(config).validate_config()
    config = resolve({"data": keys, **languages, "eval": {"metric": "chrf", "decode_every_steps": 1}})
    task_of(config).validate_config()
