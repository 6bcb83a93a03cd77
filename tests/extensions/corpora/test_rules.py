"""Filters that look at one pair."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.config import default_config, override, resolve
from t2t_flax.data.dataset import training_policies
from t2t_flax.data.preprocess import Pair
from t2t_flax.errors import UserError
from t2t_flax.extensions.corpora.rules import Copies, Length, Letters, Numbers, Scripts
from t2t_flax.extensions.corpora.scripts import scripts_of


def accepts(rule, source, target):
    return rule.drops([Pair(source, target, [5], [6], 0)]) == [False]


@pytest.mark.parametrize(
    ("source", "target", "kept"),
    [("Foo", "Foo", False), ("Foo ", " Foo", False), ("Foo", "foo", True), ("Foo", "Fu", True)],
)
def test_copies_are_pairs_with_equal_sides(source, target, kept):
    assert accepts(Copies(), source, target) is kept


@pytest.mark.parametrize(
    ("unit", "least", "most", "kept"),
    [("words", 2, 3, True), ("words", 3, 0, False), ("words", 0, 2, False), ("characters", 6, 9, True),
     ("characters", 0, 8, False), ("characters", 7, 0, False)],
)  # fmt: skip
def test_both_sides_are_within_the_limits(unit, least, most, kept):
    assert accepts(Length(unit, least, most), "two wo", "there w e") is kept
    assert accepts(Length(unit, least, most), "there w e", "two wo") is kept


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("abc", 1.0),
        ("a b 1 2", 0.5),
        ("12:30 !?", 0.0),
        ("Straße", 1.0),
        ("ab... ...", 0.25),
        ("हिन्दी", 1.0),
        ("한국어 😀", 0.75),
    ],
)
def test_letters_are_counted_with_their_marks_and_without_spaces(text, share):
    assert accepts(Letters(share), text, "x") and accepts(Letters(share), "x", text)
    assert share == 1 or not accepts(Letters(share + 0.01), text, "x")


@pytest.mark.parametrize(
    ("language", "text", "kept"),
    [
        ("en", "Hello", True), ("en", "Привет", False), ("ru", "Привет", True), ("ru", "Privet", False), ("uk", "Привіт USB", False),
        ("ja", "カーテンを開ける", True), ("ja", "안녕", False), ("zh-Hant", "你好", True), ("ko", "한국어", True), ("sr", "Zdravo", True),
        ("sr-Cyrl", "Zdravo", False), ("ur-Aran", "سلام", True), ("de-Latf", "Hallo", True), ("ja-Hrkt", "カーテン", True),
        ("ja-Hrkt", "漢字", False), ("hi", "हिन्दी", True), ("de", "12 - 30", True), ("vi", "Tiê\u0301ng", True), ("el", "Γειά", True),
    ],
)  # fmt: skip
def test_letters_are_those_of_the_language(language, text, kept):
    rule = Scripts(0.7, (("en", language),))
    assert accepts(rule, "Hello", text) is kept
    assert accepts(Scripts(0.7, ((language, "en"),)), text, "Hello") is kept


def test_a_language_without_a_known_script_is_refused_unless_its_code_has_one():
    assert scripts_of("xx-Latn") == ("Latn",)
    with pytest.raises(
        UserError, match="does not know the script of the language 'xx': write it into the code, as xx-Latn"
    ):
        Scripts(0.5, (("en", "xx"),)).as_stored()
    with pytest.raises(UserError, match="does not know the script Abcd of the language 'sr-Abcd'"):
        Scripts(0.5, (("en", "sr-Abcd"),)).as_stored()


@pytest.mark.parametrize(
    ("source", "target", "share"),
    [
        ("no digits", "keine", 1.0),
        ("1,000 on 5 May", "1.000 am 05. Mai", 1.0),
        ("1 000 000", "1000000", 1.0),
        ("3 pm", "15 Uhr", 0.0),
        ("1 2 3", "1 2", 2 / 3),
        ("2 2", "2", 0.5),
        ("٣ بيوت", "3 houses", 1.0),
        ("3.14", "3,14", 1.0),
        ("9" * 5000, "9" * 5000, 1.0),
    ],
)
def test_numbers_are_on_both_sides(source, target, share):
    assert accepts(Numbers(share - 1e-9), source, target) and accepts(Numbers(share - 1e-9), target, source)
    assert share == 1 or not accepts(Numbers(share + 0.01), source, target)


def test_digits_that_python_does_not_know_stay_as_they_are(monkeypatch):
    """Those of a Unicode that is newer than `unicodedata`'s: here, all but ASCII's."""
    monkeypatch.setattr(unicodedata, "digit", lambda sign, *default: [*default, int(sign)][0])
    assert accepts(Numbers(1.0), "٣ ٤", "٤ ٣") and not accepts(Numbers(0.1), "٣", "3")
    assert unicodedata.unidata_version in str(Numbers(1.0).as_stored())


TEXT = st.text(min_size=1).filter(str.strip)


@given(source=TEXT, target=TEXT)
def test_any_text_is_judged_and_a_higher_share_keeps_fewer(source, target):
    for rule in (Letters, Numbers, lambda share: Scripts(share, (("en", "ja"),))):
        kept = [accepts(rule(share), source, target) for share in (0.0, 0.3, 1.0)]
        assert kept[0] and kept == sorted(kept, reverse=True)
    assert accepts(Copies(), source, target) == (source.strip() != target.strip())


def test_all_rules_of_a_config_are_set_and_shown():
    keys = {
        "words": "1,100",
        "characters": "0,500",
        "copies": "True",
        "letters": "0.5",
        "script": "0.8",
        "numbers": "0.5",
    }
    keys = {f"filters.{name}": value for name, value in keys.items()}
    config = resolve(override(default_config(), keys | {"data.train": "x=a,b; y=c,d"}))
    filters = training_policies(config).filters
    assert [rule.reason for rule in filters] == ["words", "characters", "copy", "letters", "numbers", "script"]
    assert [rule.rule for rule in filters[:2]] == [
        "pairs with a side of fewer than 1 or more than 100 words", "pairs with a side of more than 500 characters",
    ]  # fmt: skip
    assert len({str(rule.as_stored()) for rule in filters}) == 6


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("words", "5,2", "would drop every pair"),
        ("characters", "-1,2", "at least 0"),
        ("held_out", "all", "expected one of source, target, either, pair"),
        ("held_out", "pair", "data.valid and data.test name no set"),
        ("scorer", "mine.py", "expected FILE.py:FUNCTION"),
        ("score", "0.5", "score"),
    ],
)
def test_impossible_values_are_refused(key, value, message):
    with pytest.raises(UserError, match=message):
        resolve(override(default_config(), {f"filters.{key}": value}))
