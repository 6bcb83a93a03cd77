"""JSON from others: what is not JSON, too deep, or of another type is refused in a sentence."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.errors import UserError
from t2t_flax.json_file import DEEPEST, check_types, parse_json, read_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@given(VALUES)
def test_every_value_comes_back(value):
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize("levels", [1, DEEPEST, DEEPEST + 1, 900, 200_000])
@pytest.mark.parametrize("pair", [("[", "]"), ('{"a":', "}")])
def test_depth_is_limited(levels, pair):
    text = pair[0] * levels + ("" if pair[0] == "[" else "1") + pair[1] * levels
    if levels <= DEEPEST:
        parse_json(text)
    else:
        with pytest.raises(ValueError, match="levels of objects and lists"):
            parse_json(text)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}', "1e999", "{", b"\xff", "1" * 5000])
def test_what_is_no_json_number_or_text_is_refused(text):
    with pytest.raises(ValueError):
        parse_json(text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"flag": "false"}', 'flag = "false"; expected true or false'),
        ('{"flag": 0}', "flag = 0; expected true or false"),
        ('{"rate": true}', "rate = true; expected a number"),
        ('{"rate": "0.1"}', 'rate = "0.1"; expected a number'),
        ('{"size": 1.0}', "size = 1.0; expected a whole number"),
        ('{"size": true}', "size = true; expected a whole number"),
        ('{"name": 3}', "name = 3; expected text or an object"),
        ("[1]", "is not a JSON object"),
        ("{" * 5, "cannot be read as JSON"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "levels of objects"),
    ],
)
def test_the_error_names_file_field_and_type(content, message, tmp_path):
    path, types = tmp_path / "a.json", {"flag": bool, "rate": float, "size": int, "name": (str, dict)}
    path.write_text(content)
    with pytest.raises(UserError) as error:
        read_json(path, types)
    assert str(error.value).startswith(str(path)) and message in str(error.value)
    with pytest.raises(UserError, match="there is no .*none.json"):
        read_json(tmp_path / "none.json")


def test_fields_of_their_types_are_returned():
    content = {"flag": False, "rate": 1, "size": None, "more": "text"}
    assert check_types(content, {"flag": bool, "rate": float, "size": int, "absent": str}, "x") is content
    assert not math.isnan(parse_json("[0.5]")[0])
