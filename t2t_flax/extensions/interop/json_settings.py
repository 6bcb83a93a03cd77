"""Settings in other programs' JSON files, with fields of known types."""

import json
import os
from collections.abc import Mapping
from typing import Any

from etils import epath

from t2t_flax.errors import UserError
from t2t_flax.json_file import parse_json

_NAMES = {
    bool: "true or false",
    str: "text",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}

Types = Mapping[str, type | tuple[type, ...]]
"""Type of each field, or several."""


def read_json(path: str | os.PathLike, types: Types | None = None) -> dict[str, Any]:
    """Read the JSON object in a file.

    Raises UserError, naming the file, if there is none, and as `check_types`.
    """
    try:
        content = parse_json(epath.Path(path).read_bytes())
    except FileNotFoundError:
        raise UserError(f"there is no {os.fspath(path)}.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{os.fspath(path)} cannot be read as JSON: {error}.") from None
    if not isinstance(content, dict):
        raise UserError(f"{os.fspath(path)} is not a JSON object.")
    return check_types(content, types or {}, str(path))


def check_types(content: dict[str, Any], types: Types, where: str) -> dict[str, Any]:
    """Return the same object if its fields have the given types.

    Raises UserError, naming `where` and the field, for a field of another type. A field that is
    missing or null has any type. true is no number; a whole number is a float, too.
    """
    for key, kinds in types.items():
        kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        value = content.get(key)
        fits = type(value) in kinds or type(value) is int and float in kinds
        if value is not None and not fits:
            expected = " or ".join(_NAMES[kind] for kind in kinds)
            raise UserError(f"{where}: {key} = {json.dumps(value)[:100]}; expected {expected}.")
    return content
