"""Read JSON that others wrote: strictly, and to a limited depth."""

import json
import math
import re
from typing import Any, NoReturn

DEEPEST = 64
"""Maximum nesting of objects and lists, which bounds recursive functions."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises ValueError for other text, NaN, infinities, numbers too large for a float, half of a
    surrogate pair, and more than `DEEPEST` levels.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    try:
        value = json.loads(text, parse_constant=_refuse_number, parse_float=_finite)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(value)
    if _SURROGATE.search(text) and (half := half_character(json.dumps(value, ensure_ascii=False))):
        raise ValueError(half)
    return value


def half_character(text: str) -> str:
    """Describe the first lone surrogate of a text; "" if there is none.

    No UTF-8 file can hold a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return (
            f"\\u{ord(text[error.start]):04x} is half of a character: a surrogate without the other"
            " one of its pair"
        )
    return ""


_TOO_DEEP = f"more than {DEEPEST} levels of objects and lists within each other"


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:40]} is not a finite number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_number(text)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST + 1):
        containers = [
            x.values() if isinstance(x, dict) else x for x in level if isinstance(x, dict | list)
        ]
        if not containers:
            return
        level = [x for container in containers for x in container]
    raise ValueError(_TOO_DEEP)
