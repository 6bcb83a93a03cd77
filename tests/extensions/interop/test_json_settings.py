"""Settings of others: what is no JSON object, or has a field of another type, is refused in a sentence."""

import pytest

from t2t_flax.errors import UserError
from t2t_flax.extensions.interop.json_settings import check_types, read_json


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
