"""Progress of a preparation."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_PAIRS = 10_000
"""Number of pairs between two reports."""
Item = TypeVar("Item")

Report = Callable[[str, int, int | None, str], None]
"""Function that receives progress: (stage, amount done, total amount, unit).

A total of None is unknown. Example: ("hash the files", 3, 17, "files").
"""


def silent(stage: str, done: int, total: int | None, unit: str) -> None:
    """Report nothing."""


def reported(
    pairs: Iterable[Item],
    numbers: Iterator[int],
    stage: str,
    report: Report,
    total: Callable[[], int | None],
) -> Iterator[Item]:
    """Yield the pairs, and report a stage that consists in reading them.

    Args:
        numbers: counter of the pairs, from 0, shared by several parts of a source.
    """
    for pair, number in zip(pairs, numbers, strict=False):
        if number % _PAIRS == 0:
            report(stage, number, total(), "pairs")
        yield pair
