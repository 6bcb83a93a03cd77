"""Pairs of each window of updates: an endless stream of seeded permutations, one a pass."""

import dataclasses
import math
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

    def at(self, index: np.ndarray | slice) -> "Visits":
        """Return the visits at `index`."""
        return Visits(self.pairs[index], self.passes[index])


def pairs_of_pass(count: int, seed: int, number: int, begin: int, end: int) -> np.ndarray:
    """The pairs at `begin` .. `end - 1` of pass `number`, which has 0 .. `count - 1` in an order of its own; int64."""
    return bijection(np.arange(begin, end), count, key_of(seed, 2, number))


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
    """A whole number of windows, `count`, in each pass of `pairs` pairs; `Windows`."""

    pairs: int
    count: int
    seed: int

    @property
    def key(self) -> list[int]:
        return [self.pairs, self.count]

    @property
    def a_pass(self) -> Fraction:
        return Fraction(self.count)

    def visits(self, window: int) -> Visits:
        number, part = divmod(window, self.count)
        begin, end = (self.pairs * at // self.count for at in (part, part + 1))
        pairs = np.sort(pairs_of_pass(self.pairs, self.seed, number, begin, end))
        return Visits(pairs, np.full(end - begin, number))

    def epoch(self, window: int) -> int:
        return window // self.count


def whole_passes(store: TokenStore, config: Data, seed: int) -> WholePasses:
    """Return windows whose passes have each pair of a store once."""
    return WholePasses(store.num_pairs, windows_in_pass(store.num_pairs, store, config), seed)


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
