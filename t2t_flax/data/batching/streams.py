"""Which pairs a window of updates has: an endless stream of seeded permutations of the corpus, one for each pass."""

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.hashing import bijection, key_of
from t2t_flax.data.token_store import TokenStore

WINDOW_PAIRS = 65536
WINDOW_UPDATES = 8
"""A window has about this many pairs, but at least those of this many updates."""
_FILLED = 0.99
"""The part of data.batch_tokens that an update of pairs in random order holds at least."""


class Visits(NamedTuple):
    """pairs: indices into the store, int64 [P]; passes: how many times the stream had each of them before, int64 [P]."""

    pairs: np.ndarray
    passes: np.ndarray

    def at(self, index: np.ndarray) -> "Visits":
        """Those at `index`."""
        return Visits(self.pairs[index], self.passes[index])


def join(parts: Sequence[Visits]) -> Visits:
    """All visits, by pair and pass ascending, so that reading their lengths goes through the store once."""
    passes = np.concatenate([part.passes for part in parts])
    pairs = np.concatenate([part.pairs for part in parts])
    return Visits(pairs, passes).at(np.lexsort((passes, pairs)))


@dataclasses.dataclass(frozen=True)
class PairStream:
    """The pairs `first` .. `first + count - 1` of a store without end: in each pass all of them, in another order."""

    first: int
    count: int
    seed: int

    def visits(self, begin: int, end: int) -> list[Visits]:
        """The positions `begin` .. `end - 1` of the stream; of whole passes in any order."""
        (first, offset), (last, rest) = divmod(begin, self.count), divmod(end, self.count)
        if first == last:
            return [self._of_pass(first, offset, rest)]
        whole = np.arange(first + 1, last)
        return [
            self._of_pass(first, offset, self.count),
            Visits(np.tile(self._all(), len(whole)), np.repeat(whole, self.count)),
            self._of_pass(last, 0, rest),
        ]

    def _of_pass(self, number: int, begin: int, end: int) -> Visits:
        if (begin, end) == (0, self.count):
            pairs = self._all()
        else:
            pairs = self.first + bijection(np.arange(begin, end), self.count, key_of(self.seed, 2, number))
        return Visits(pairs, np.full(end - begin, number))

    def _all(self) -> np.ndarray:
        return np.arange(self.first, self.first + self.count)


class Windows(Protocol):
    """The pairs of each window 0, 1, 2 ... of a stream. key: what they depend on beside the store, as JSON. a_pass: windows in
    a pass of the corpus, or of the source by which epochs are counted. It is pickled.
    """

    @property
    def key(self) -> Any: ...

    @property
    def a_pass(self) -> Fraction: ...

    def visits(self, window: int) -> Visits:
        """By pair and pass ascending."""

    def epoch(self, window: int) -> int:
        """The pass in which the window begins."""


@dataclasses.dataclass(frozen=True)
class WholePasses:
    """A whole number of windows, `count`, in each pass of a stream; `Windows`."""

    stream: PairStream
    count: int

    @property
    def key(self) -> list[int]:
        return [self.stream.count, self.count]

    @property
    def a_pass(self) -> Fraction:
        return Fraction(self.count)

    def visits(self, window: int) -> Visits:
        begin, end = (self.stream.count * at // self.count for at in (window, window + 1))
        return join(self.stream.visits(begin, end))

    def epoch(self, window: int) -> int:
        return window // self.count


def whole_passes(store: TokenStore, config: Data, seed: int) -> WholePasses:
    """Windows of a store, of which every pass has each pair once."""
    return WholePasses(PairStream(0, store.num_pairs, seed), windows_in_pass(store.num_pairs, store, config))


def windows_in_pass(pairs: float, store: TokenStore, config: Data) -> int:
    """Into how many windows a pass of so many pairs is divided: such that the last update of a window is nearly full."""
    update = pairs_of_update(store, config)
    about = pairs / max(WINDOW_PAIRS, WINDOW_UPDATES * update)
    counts = range(max(1, round(0.8 * about)), max(1, round(1.25 * about)) + 1)
    return max(counts, key=lambda count: (fill(pairs / count / update), -abs(count - about)))


def pairs_of_update(store: TokenStore, config: Data) -> float:
    """The pairs of an update in random order, at least."""
    return _FILLED * config.batch_tokens / store.mean_length


def fill(updates: float) -> float:
    """How full the last of so many updates is, if the others are full."""
    return updates / math.ceil(updates)
