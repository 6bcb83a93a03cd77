"""Candidates of each source line.

They come from a flat file with N lines a source, or from n-best lists as `translate --n-best`
writes them.
"""

import contextlib
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from t2t_flax.cli.lines import iterate_lines
from t2t_flax.errors import UserError

_BESIDE = re.compile(r"\S+=.*|(\d+-\d+( |$))*")
"""Features and word alignments between a translation and its score.

Marian and Moses write them.
"""


class Candidate(NamedTuple):
    """A translation and its score in the n-best list."""

    text: str
    score: float | None = None


def read_candidates(name: str, count: int | None) -> Iterator[list[Candidate]]:
    """Yield the candidates of each source. Raises UserError with the line.

    Args:
        count: lines per source in a flat file; None = lines `N ||| text`, `N ||| text ||| score` or
            `N ||| text ||| features ||| score`, where N is the number of the source from 0, in
            order.
    """
    lines = iterate_lines(name)
    return _n_best(name, lines) if count is None else _flat(name, lines, count)


def _flat(name: str, lines: Iterator[str], count: int) -> Iterator[list[Candidate]]:
    for number in itertools.count():
        group = list(map(Candidate, itertools.islice(lines, count)))
        if not group:
            return
        if len(group) < count:
            raise UserError(
                f"{name} has {number * count + len(group)} lines, which is no multiple of {count}:"
                " expected the number of candidates of each source, empty ones included."
            )
        yield group


def _n_best(name: str, lines: Iterator[str]) -> Iterator[list[Candidate]]:
    group: list[Candidate] = []
    current = 0
    for at, line in enumerate(lines, 1):
        number, separator, rest = line.partition(" ||| ")
        if not separator or not number.isdecimal():
            raise UserError(
                f"{name} line {at}: expected `N ||| translation`, as `translate --n-best` writes"
                " it; for a file with the same number of lines for each source give that number."
            )
        if int(number) != current:
            if int(number) != current + 1 or not group:
                raise UserError(
                    f"{name} line {at}: a translation of line {number} after those of {current}."
                )
            yield group
            group, current = [], int(number)
        group.append(_candidate(name, at, rest))
    if group:
        yield group


def _candidate(name: str, at: int, rest: str) -> Candidate:
    """Return the candidate from the fields after the number.

    The fields are its text, then features and alignments, last its score. Raises UserError for
    other fields.
    """
    text, *others = rest.split(" ||| ")
    if not others:
        return Candidate(text)
    with contextlib.suppress(ValueError):
        score = float(others[-1])
        if all(map(_BESIDE.fullmatch, others[:-1])):
            return Candidate(text, score)
    raise UserError(
        f"{name} line {at}: expected `N ||| translation ||| score`, or with features as in `N |||"
        " translation ||| F0= -4.2 ||| score`; found"
        f" {' and '.join(repr(field[:40]) for field in others)} after the translation."
    )
