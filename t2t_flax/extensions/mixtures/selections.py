"""Selections of a source's pairs: the first ones, or a random sample."""

import itertools
import zlib
from collections.abc import Iterator

import numpy as np

from t2t_flax.data.hashing import bijection, key_of
from t2t_flax.data.sources import DerivedSource, Row, Source, sha256_of
from t2t_flax.errors import UserError
from t2t_flax.files import file_state

_BLOCK = 1 << 16
_counts: dict[tuple, int] = {}
"""Number of pairs in each source that this process has counted, by `_state`."""


class FirstPairs(DerivedSource):
    """First `limit` pairs of a source, not counting the ones that the source drops."""

    def __init__(self, source: Source, limit: int):
        super().__init__(source)
        self.count = None if source.reasons or source.count is None else min(source.count, limit)
        self._limit = limit

    def read(self):
        left = self._limit
        for row in self.source.read():
            yield row
            left -= not isinstance(row, str)
            if not left:
                return

    def fingerprint(self):
        return sha256_of(self.source.fingerprint(), str(self._limit))


class RandomPairs(DerivedSource):
    """Sample of `size` pairs of a source, in its order.

    Pairs that the source drops are passed on. The sample is a function of the seed, the name and
    the number of the source's pairs. Pair k of n is in it if a pseudo-random permutation of 0 ..
    n-1 takes it to a number below `size`. So the source is read once more where n is not known, and
    memory does not grow. Raises UserError for a source with fewer pairs.
    """

    def __init__(self, source: Source, name: str, size: int, seed: int):
        super().__init__(source)
        self.count = None if source.reasons else size
        self._name, self._size, self._seed = name, size, seed
        self._walk: tuple[int, Iterator[int]] = (0, iter(()))

    def read(self):
        return (row for _, row in self._chosen())

    def _chosen(self) -> Iterator[tuple[int, Row]]:
        """Yield (index in the source, row) of each chosen pair."""
        draws = self._draws()
        for i, row in enumerate(self.source.read()):
            drawn = isinstance(row, str) or next(draws, None)
            if drawn is None:
                raise self._changed()
            if drawn:
                yield i, row
        if next(draws, None) is not None:
            raise self._changed()

    def _changed(self) -> UserError:
        return UserError(
            f"{self.spec} changed after its pairs were counted: wait until it is complete, and"
            " start again"
        )

    def _draws(self) -> Iterator[bool]:
        """Yield for each pair whether the sample has it."""
        count, key = _count(self.source), key_of(self._seed, zlib.crc32(self._name.encode()))
        if count < self._size:
            raise UserError(
                f"config.mixtures.samples: {self._name} has {count:,} pairs, fewer than the"
                f" {self._size:,} of the sample."
            )
        for start in range(0, count, _BLOCK):
            yield from (
                bijection(np.arange(start, min(start + _BLOCK, count)), count, key) < self._size
            ).tolist()

    def fingerprint(self):
        return sha256_of(self.source.fingerprint(), self._name, str(self._size), str(self._seed))

    def where(self, i):
        """Read on from the last call, or anew."""
        at, indices = self._walk
        if i < at or not at:
            at, indices = 0, (index for index, _ in self._chosen())
        index = next(itertools.islice(indices, i - at, None))
        self._walk = i + 1, indices
        return self.source.where(index)


def _count(source: Source) -> int:
    """Return the number of pairs of a source, without the ones that it drops."""
    if source.count is not None and not source.reasons:
        return source.count
    state = (source.spec, *(f"{file} {file_state(file)}" for file in source.files))
    if state not in _counts:
        _counts[state] = sum(not isinstance(row, str) for row in source.read())
    return _counts[state]
