"""What a corpus is to the rest: pairs in a fixed order, streamed, of which hosts can share the reading."""

import abc
import dataclasses
import itertools
from collections.abc import Iterator

from t2t_flax.errors import UserError

STRIDE = 10_000
"""Lines between two places of a text file at which a host can begin to read."""


@dataclasses.dataclass(frozen=True)
class Survey:
    """What one reading of a corpus tells: `marks` are (pair, byte offset of its line in each file), ascending."""

    fingerprint: str
    count: int
    marks: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def share(self, index: int, of: int) -> tuple[int, int]:
        """The contiguous pairs (first, last + 1) that host `index` of `of` reads; all hosts together read each once."""
        border = lambda i: self.count if i == of else STRIDE * round(self.count * i / of / STRIDE)  # noqa: E731
        return min(border(index), self.count), min(border(index + 1), self.count)


class Source(abc.ABC):
    """A corpus of (source, target) sentences in a fixed order."""

    reference_count = 1
    """Target sides of a sentence; training and its losses see the first."""

    def __init__(self, spec: str, count: int | None = None):
        self.spec = spec
        self.count = count
        """Number of pairs; None until it is known (a text file is counted by its first full reading)."""

    @abc.abstractmethod
    def read(self) -> Iterator[tuple[str, str]]:
        """The pairs, streamed in order; may be empty."""

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """sha256 (hex) of the content, independent of where it lies."""

    @abc.abstractmethod
    def where(self, i: int) -> str:
        """The place of pair i (from 0), for an error message: 'train.en line 17'."""

    def survey(self) -> Survey:
        """Counts the pairs, for hosts that share the reading. Raises UserError where two files do not match."""
        return Survey(self.fingerprint(), self.count or sum(1 for _ in self.pairs()))

    def read_range(self, first: int, last: int, survey: Survey) -> Iterator[tuple[str, str]]:
        """Pairs `first` .. `last` - 1. Raises UserError with the place, as a reading of the whole would."""
        return itertools.islice(self.read(), first, last)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """The pairs in order, in constant memory; each call starts anew. Raises UserError if there is none."""
        count = 0
        for pair in self.read():
            count += 1
            yield pair
        self.counted(count)

    def references(self) -> Iterator[tuple[str, ...]]:
        """All target sides of each pair, in order."""
        return ((target,) for _, target in self.pairs())

    def counted(self, count: int) -> None:
        """Notes the number of pairs. Raises UserError if there is none."""
        if not count:
            raise UserError(f"{self.spec}: the corpus is empty (0 sentence pairs); give one with at least one pair")
        self.count = count
