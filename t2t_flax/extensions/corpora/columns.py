"""Columns of tables: 'FILE:SOURCE,TARGET:SCORE>=0.7'.

They apply to tab-separated, JSON-lines and Parquet files. The part after the first colon names the
columns of the texts. The part after the second one gives limits on other columns, separated by
commas. A pair beyond a limit is dropped, counted and listed like the pairs that filters drop.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from t2t_flax.data.sources import Context
from t2t_flax.errors import UserError

SCORE = "score"
REASONS = {SCORE: "with a score beyond its limit"}
FORM = "FILE:SOURCE,TARGET or FILE:SOURCE,TARGET:SCORE>=0.7,OTHER<=3"
_SHOWN = 60
"""Maximum characters of a score in a message."""
_SPEC = re.compile(r"(?P<file>(?:\w+://)?[^:]*)(?::(?P<texts>[^:]*)(?::(?P<limits>.*))?)?")
_LIMIT = re.compile(r"\s*(?P<column>[^<>=]+?)\s*(?P<sign>[<>]=)\s*(?P<number>\S+)\s*")


class Limit(NamedTuple):
    """Range of a column from `least` to `most`."""

    column: str
    least: float
    most: float


@dataclass(frozen=True)
class Columns:
    """Columns of a table to read.

    Args:
        texts: columns of source and target.
        limits: limits on other columns; a pair beyond them is dropped.
    """

    texts: tuple[str, str]
    limits: tuple[Limit, ...] = ()

    @property
    def names(self) -> list[str]:
        """All columns to read."""
        return list(dict.fromkeys([*self.texts, *(limit.column for limit in self.limits)]))

    @property
    def reasons(self) -> Mapping[str, str]:
        """See `Source.reasons`."""
        return REASONS if self.limits else {}

    def keeps(self, scores: list[Any], where: Callable[[int], str], i: int) -> bool:
        """Return True if the numbers of pair i are within the limits.

        Texts of numbers count, too. Raises UserError for a value that is no number, with its place.
        """
        numbers = [*map(_number, scores)]
        for limit, number, score in zip(self.limits, numbers, scores, strict=True):
            if math.isnan(number):
                raise UserError(
                    f"{where(i)}: expected a number in column {limit.column}, found {_cut(score)}"
                )
        return all(
            limit.least <= number <= limit.most
            for limit, number in zip(self.limits, numbers, strict=True)
        )


def _number(score: Any) -> float:
    """Return a number; nan for other values and for integers beyond every float."""
    try:
        return math.nan if isinstance(score, bool) else float(score)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _cut(score: Any) -> str:
    shown = repr(score)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."


def parse_columns(spec: str, context: Context) -> tuple[str, Columns | None]:
    """Return (file or pattern, its columns if named) from a spec without a prefix.

    Raises UserError for another form.
    """
    match = _SPEC.fullmatch(spec.strip())
    assert match  # the last part takes anything
    if match["texts"] is None:
        return match["file"].strip(), None
    texts = tuple(map(str.strip, match["texts"].split(",")))
    if len(texts) != 2 or not all(texts):
        raise UserError(
            f"{context.label}: {match['texts']!r} does not name two columns; expected {FORM}"
        )
    limits = (
        [_limit(text, context) for text in (match["limits"] or "").split(",")]
        if match["limits"] is not None
        else []
    )
    return match["file"].strip(), Columns(texts, tuple(limits))


def _limit(text: str, context: Context) -> Limit:
    match = _LIMIT.fullmatch(text)
    try:
        number = float(match["number"]) if match else math.nan
    except ValueError:
        number = math.nan
    if match is None or not math.isfinite(number):
        raise UserError(
            f"{context.label}: {text!r} is not of the form COLUMN>=NUMBER or COLUMN<=NUMBER;"
            f" expected {FORM}, in quotes, since a shell takes > and < for itself"
        )
    least, most = (number, math.inf) if match["sign"] == ">=" else (-math.inf, number)
    return Limit(match["column"], least, most)


def value_at(item: Any, column: str, missing: Any = None) -> Any:
    """Return the value of a column in a row of objects and lists.

    The whole name is a key, or its parts between dots lead to the value; otherwise the result is
    `missing`.
    """
    if isinstance(item, dict) and column in item:
        return item[column]
    first, dot, rest = column.partition(".")
    if isinstance(item, list) and first.isdecimal() and int(first) < len(item):
        found = item[int(first)]
    else:
        found = item.get(first) if isinstance(item, dict) and dot else missing
    return value_at(found, rest, missing) if dot else found
