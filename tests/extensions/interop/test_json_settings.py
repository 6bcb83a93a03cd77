"""Settings of others: what is no JSON object, or has a field of another type, is refused."""

import pytest
from helpers.refusals import refused

from t2t_flax.extensions.interop.json_settings import check_types, read_json


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ('{"flag": "false"}', ("flag", '"false"', "true")),
        ('{"flag": 0}', ("flag", "0", "true")),
        ('{"rate": true}', ("rate", "true", "number")),
        ('{"rate": "0.1"}', ("rate", '"0.1"', "number")),
        ('{"size": 1.0}', ("size", "1.0", "whole number")),
        ('{"size": true}', ("size", "true", "whole number")),
        ('{"name": 3}', ("name", "3", "text")),
        ("[1]", ("JSON",)),
        ("{" * 5, ("JSON",)),
        ('{"a":' * 5000 + "1" + "}" * 5000, ("levels",)),
    ],
)
def test_the_error_names_file_field_and_type(content, names, tmp_path):
    path, types = (
        tmp_path / "a.json",
        {"flag": bool, "rate": float, "size": int, "name": (str, dict)},
    )
    path.write_text(content)
    with refused(str(path), *names):
        read_json(path, types)
    with refused("none.json"):
        read_json(tmp_path / "none.json")


def test_fields_of_their_types_are_returned():
    content = {"flag": False, "rate": 1, "size": None, "more": "text"}
    assert (
        check_types(content, {"flag": bool, "rate": float, "size": int, "absent": str}, "x")
        is content
    )
