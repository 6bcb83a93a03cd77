"""JSON from others: what is not JSON, too deep, or of another type is refused in a sentence."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.json_file import DEEPEST, parse_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@given(VALUES)
def test_every_value_comes_back(value):
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize("levels", [DEEPEST, DEEPEST + 1, 200_000])
@pytest.mark.parametrize("pair", [("[", "]"), ('{"a":', "}")])
def test_depth_is_limited(levels, pair):
    text = pair[0] * levels + ("" if pair[0] == "[" else "1") + pair[1] * levels
    if levels <= DEEPEST:
        parse_json(text)
    else:
        with pytest.raises(ValueError):
            parse_json(text)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}', "1e999", "{", b"\xff", "1" * 5000, '"\\ud83d"', rb'["\uDE00"]', '{"\\ud83d": 1}', b'"\xed\xa0\xbd"'])  # fmt: skip
def test_what_is_no_json_number_or_text_is_refused(text):
    with pytest.raises(ValueError):
        parse_json(text)


def test_both_halves_of_a_surrogate_pair_are_a_character():
    assert parse_json(b'"\\ud83d\\ude00 \\\\ud83d"') == "😀 \\ud83d"
