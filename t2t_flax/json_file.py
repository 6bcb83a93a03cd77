"""Reads JSON that others wrote, strictly."""

import json
import math
from typing import Any, NoReturn


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for anything else, for NaN, infinities and numbers too large for a float, and
    for more levels than Python can read.
    """
    try:
        return json.loads(text, parse_constant=_refuse_number, parse_float=_finite)
    except RecursionError:
        raise ValueError("too many levels of objects and lists within each other") from None


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:40]} is not a finite number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_number(text)
