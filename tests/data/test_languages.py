"""The languages of a model: stored beside its tokenizers, and what follows from them without any text."""

import json

import pytest

from t2t_flax.config import Data
from t2t_flax.config.directions import Direction
from t2t_flax.data.languages import Languages, languages_of_training, read_languages, write_languages
from t2t_flax.errors import UserError

DATA = Data(
    train="en-de=a.tsv; de-en=b.tsv; en-zh_Hans.web=c.tsv; bt=d.tsv",
    test="zero=t.tsv; de-en=u.tsv",
    directions="by_name, bt=de-en, zero=de-zh_Hans",
)
MODEL = languages_of_training(DATA, [5, 7, 6])
ZERO = Data(test="zero=t.tsv; en-de=u.tsv", directions="by_name, zero=de-zh_Hans")


def test_they_are_those_of_the_training_text():
    assert MODEL.directions == (("en", "de"), ("de", "en"), ("en", "zh_Hans"))
    assert MODEL.target_ids == {"de": 5, "en": 7, "zh_Hans": 6} and MODEL.targets == ["de", "en", "zh_Hans"]
    assert languages_of_training(Data(), []) == Languages()


@pytest.mark.parametrize("languages", [MODEL, Languages()])
def test_they_come_back_from_their_file(languages, tmp_path):
    write_languages(tmp_path, MODEL)
    write_languages(tmp_path, languages)
    assert read_languages(tmp_path, 8) == languages
    assert (tmp_path / "languages.json").exists() == bool(languages.targets)


def test_without_training_text_in_the_config_they_are_the_same():
    """An imported model: its config says nothing of what it was trained on."""
    for data in (DATA, ZERO):
        assert MODEL.all_directions(data) == [*MODEL.directions, Direction("de", "zh_Hans")]
        assert MODEL.zero_shot(data) == [("de", "zh_Hans")] and MODEL.pair(data) == ("mul", "mul")
    to_english = Languages((Direction("de", "en"), Direction("fr", "en")), {"en": 9})
    assert to_english.pair(Data()) == ("mul", "en") and to_english.chosen(Data(), None) == "en"


def test_a_model_of_one_direction_has_no_choice():
    one = Languages()
    assert one.all_directions(Data()) == [("en", "de")] and one.pair(Data()) == ("en", "de")
    assert one.chosen(Data(), None) is None and one.chosen(Data(), "de") is None
    with pytest.raises(UserError, match="translates from en into de, not into 'fr'"):
        one.chosen(Data(), "fr")


def test_the_target_language_is_chosen_where_there_are_several():
    assert MODEL.chosen(DATA, "zh_Hans") == "zh_Hans"
    with pytest.raises(UserError, match="into de, en, zh_Hans: choose one by target_language.*--target-language=de"):
        MODEL.chosen(DATA, None)
    with pytest.raises(UserError, match="does not translate into 'fr', but into de, en, zh_Hans"):
        MODEL.chosen(DATA, "fr")
    many = Languages((), {f"l{i:03}": 3 + i for i in range(300)})
    with pytest.raises(UserError, match="l019 and 280 more: choose one"):
        many.chosen(DATA, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_ids": {"de": 5, "en": 8, "zh_Hans": 6}}, "en = 8; expected the id of a token, below 8"),
        ({"target_ids": {"de": True}}, "de = true; expected the id of a token"),
        ({"target_ids": {"de": 1}}, "de = 1; expected the id"),
        ({"target_ids": [5]}, r"target_ids = \[5\]; expected an object"),
        ({"target_ids": {"de": 5}}, "the targets of its directions are not the languages of its target_ids"),
        ({"directions": ["en-de"]}, "expected pairs of language codes"),
        ({"directions": [["en", ""]]}, "expected pairs of language codes"),
        ({"directions": "en-de"}, "expected a list"),
    ],
)
def test_a_damaged_file_is_refused(change, message, tmp_path):
    write_languages(tmp_path, MODEL)
    path = tmp_path / "languages.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=message):
        read_languages(tmp_path, 8)
