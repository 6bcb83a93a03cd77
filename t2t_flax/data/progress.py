"""Progress of a preparation."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_PAIRS = 10_000
"""Between two reports."""
Item = TypeVar("Item")

Report = Callable[[str, int, int | None, str], None]
"""Called with a stage, how much of it is done, of how much (None = unknown), and the unit: ("hash the files", 3, 17, "files")."""


def silent(stage: str, done: int, total: int | None, unit: str) -> None:
    """A `Report` that says nothing."""


def reported(
    pairs: Iterable[Item], numbers: Iterator[int], stage: str, report: Report, total: Callable[[], int | None]
) -> Iterator[Item]:
    """The pairs, in whose reading a stage consists; they are counted by `numbers`, from 0, in several parts of a source."""
    for pair, number in zip(pairs, numbers, strict=False):
        if number % _PAIRS == 0:
            report(stage, number, total(), "pairs")
        yield pair
