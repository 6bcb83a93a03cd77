"""Windows: parts of an endless sequence of seeded permutations of a corpus.

A window holds the pairs that are laid out at once.
"""

import dataclasses
from typing import NamedTuple, Protocol

import numpy as np

from t2t_flax.data.hashing import bijection, key_of

WINDOW_PAIRS = 65536
"""Approximate number of pairs in a window."""


class Samples(NamedTuple):
    """Pairs to train on, int64 [P] each.

    Attributes:
        pairs: indices into the store.
        epochs: number of times that each pair was in a window before.
    """

    pairs: np.ndarray
    epochs: np.ndarray

    def at(self, index: np.ndarray | slice) -> "Samples":
        return Samples(self.pairs[index], self.epochs[index])


class Windows(Protocol):
    """Samples of windows 0, 1, 2, ...; instances are pickled.

    Attributes:
        key: further inputs of the samples, as JSON.
        per_epoch: number of windows in an epoch.
    """

    @property
    def key(self) -> object: ...

    @property
    def per_epoch(self) -> int: ...

    def samples(self, window: int) -> Samples:
        """Return the samples of a window, sorted by pair and then by epoch."""

    def epoch(self, window: int) -> int:
        """Return the epoch in which a window begins."""


@dataclasses.dataclass(frozen=True)
class EpochWindows:
    """`Windows` in which each epoch has every pair of a corpus once.

    Args:
        pairs: number of pairs in the corpus.
        per_epoch: number of windows in an epoch.
        seed: seed of the permutations.
    """

    pairs: int
    per_epoch: int
    seed: int

    @property
    def key(self) -> list[int]:
        return [self.pairs, self.per_epoch]

    def samples(self, window: int) -> Samples:
        epoch, part = divmod(window, self.per_epoch)
        begin, end = (self.pairs * at // self.per_epoch for at in (part, part + 1))
        pairs = np.sort(pairs_of_epoch(self.pairs, self.seed, epoch, begin, end))
        return Samples(pairs, np.full(end - begin, epoch))

    def epoch(self, window: int) -> int:
        return window // self.per_epoch


def pairs_of_epoch(count: int, seed: int, epoch: int, begin: int, end: int) -> np.ndarray:
    """Return the pairs at positions `begin` .. `end` - 1 of an epoch's permutation.

    It permutes 0 .. count - 1. The result is int64.
    """
    return bijection(np.arange(begin, end), count, key_of(seed, 2, epoch))


def windows_in(pairs: float) -> int:
    """Return the number of windows that `pairs` pairs fill, at least 1."""
    return max(1, round(pairs / WINDOW_PAIRS))
