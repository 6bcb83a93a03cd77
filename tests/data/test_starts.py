"""Tokens before source sentences: stored beside the tokenizers of a model, and chosen by name."""

import json

import pytest

from t2t_flax.config import Config, Data
from t2t_flax.data.hooks import all_directions
from t2t_flax.data.starts import Direction, Starts, codes_of, read_starts, start_name, start_symbol, write_starts
from t2t_flax.errors import UserError

DATA = Data()
MODEL = Starts(
    (Direction("en", "de"), Direction("de", "en"), Direction("en", "zh_Hans")), {"de": 5, "en": 7, "zh_Hans": 6}
)


@pytest.mark.parametrize("starts", [MODEL, Starts()])
def test_they_come_back_from_their_file(starts, tmp_path):
    write_starts(tmp_path, MODEL)
    write_starts(tmp_path, starts)
    assert read_starts(tmp_path, 8) == starts
    assert (tmp_path / "starts.json").exists() == bool(starts.names)


def test_directions_are_those_of_the_model_whatever_its_config_says():
    assert MODEL.names == ["de", "en", "zh_Hans"]
    assert all_directions(Config(), MODEL) == [*MODEL.directions] and str(codes_of(MODEL.directions)) == "mul-mul"
    to_english = Starts((Direction("de", "en"), Direction("fr", "en")), {"en": 9})
    assert codes_of(to_english.directions) == ("mul", "en") and to_english.chosen(DATA, None) == "en"


@pytest.mark.parametrize("language", ["de", "zh_Hans", "cmn_Hans"])
def test_a_token_has_a_name(language):
    assert start_name(start_symbol(language)) == start_name(f">>{language}<<") == language
    for other in (language, f"<2{language}", f"\u2581<2{language}>", f">>{language}<< x", ">><<", "<2>", "<2 de>"):
        assert start_name(other) is None


def test_a_model_of_one_direction_has_no_choice():
    one = Starts()
    assert all_directions(Config(), one) == [("en", "de")]
    assert one.chosen(DATA, None) is None and one.chosen(DATA, "de") is None
    with pytest.raises(UserError, match="translates from en into de, not into 'fr'"):
        one.chosen(DATA, "fr")


def test_the_target_language_is_chosen_where_there_are_several():
    assert MODEL.chosen(DATA, "zh_Hans") == "zh_Hans"
    with pytest.raises(UserError, match="into de, en, zh_Hans: choose one.*--target-language=de"):
        MODEL.chosen(DATA, None)
    with pytest.raises(UserError, match="does not translate into 'fr', but into de, en, zh_Hans"):
        MODEL.chosen(DATA, "fr")
    many = Starts((), {f"l{i:03}": 3 + i for i in range(300)})
    with pytest.raises(UserError, match="l019 and 280 more: choose one"):
        many.chosen(DATA, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": {"de": 5, "en": 8, "zh_Hans": 6}}, "en = 8; expected the id of a token, below 8"),
        ({"ids": {"de": True}}, "de = true; expected the id of a token"),
        ({"ids": {"de": 1}}, "de = 1; expected the id"),
        ({"ids": [5]}, r"ids = \[5\]; expected an object"),
        ({"ids": {"de": 5}}, "the targets of its directions are not the names of its ids"),
        ({"directions": ["en-de"]}, "expected pairs of language codes"),
        ({"directions": [["en", ""]]}, "expected pairs of language codes"),
        ({"directions": "en-de"}, "expected a list"),
    ],
)
def test_a_damaged_file_is_refused(change, message, tmp_path):
    write_starts(tmp_path, MODEL)
    path = tmp_path / "starts.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=message):
        read_starts(tmp_path, 8)
