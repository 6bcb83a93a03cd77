"""Layouts: the pairs of a window, placed in rows in training order.

A layout is a function of a `Layouter` and the window's number, so any process can compute it.
"""

import dataclasses
from typing import Any, NamedTuple, Protocol

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.batching.packing import first_fit, order_of
from t2t_flax.data.batching.windows import Samples, Windows
from t2t_flax.data.hashing import hashes, key_of, permutation
from t2t_flax.data.stored_ids import Sentences
from t2t_flax.data.token_store import TokenStore

VERSION = 8
"""Version of `data.batching` and `data.hashing`.

Cached counts of another version are not used.
"""

Size = tuple[int, int]
"""(row length, number of rows) of an update."""
Sides = tuple[Sentences, Sentences]
"""(source sentences, target sentences)."""


class PairReader(Protocol):
    """Reader of the sentences of samples.

    It is pickled and sent to processes without JAX.

    Attributes:
        store: store of the pairs.
        draws: True if lengths change from epoch to epoch.
        key: inputs of the ids other than the store, as JSON.
        longest: length in tokens of the longest side that `read` may return.
    """

    @property
    def store(self) -> TokenStore: ...

    @property
    def draws(self) -> bool: ...

    @property
    def key(self) -> Any: ...

    @property
    def longest(self) -> int: ...

    def read(self, samples: Samples) -> Sides:
        """Return the sentences of samples, in order.

        A sentence depends only on its pair and its epoch.
        """


@dataclasses.dataclass(frozen=True)
class StoredPairs:
    """`PairReader` that returns the sentences of a store unchanged."""

    store: TokenStore
    draws = False
    key = None

    @property
    def longest(self) -> int:
        return self.store.longest

    def read(self, samples: Samples) -> Sides:
        return self.store.sentences(samples.pairs)


class Layout(NamedTuple):
    """Blocks of a window in training order.

    A block is the smallest part of an update: one packed row, or all rows of a bucketed update.

    Attributes:
        order: index of each pair among the window's samples, sorted by block, int64 [P].
        pairs: index of each pair in the store, int64 [P].
        row: row of each pair within its block, int64 [P].
        starts: start of each pair in its row, on the source side and on the target side, int64 [P]
            each.
        ends: index in these arrays at which each block ends, int64 [blocks].
        sizes: index into `Layouter.sizes` for the update of each block, int64 [blocks].
        sides: source and target sentences of the window's samples.
    """

    order: np.ndarray
    pairs: np.ndarray
    row: np.ndarray
    starts: tuple[np.ndarray, np.ndarray]
    ends: np.ndarray
    sizes: np.ndarray
    sides: Sides

    @property
    def blocks(self) -> int:
        return len(self.ends)

    def begin(self, block: int) -> int:
        """Return the index in these arrays at which a block begins."""
        return int(self.ends[block - 1]) if block else 0

    def rows(self, first: int, last: int, row: int) -> tuple:
        """Return blocks `first` .. `last` - 1, with their rows numbered from `row` on.

        Returns:
            Arrays with one element for each pair: (index in the store, row, source start, target
            start, source sentence, target sentence).
        """
        begin = self.begin(first)
        here = slice(begin, self.begin(last))
        rows = self.row[here] + np.repeat(
            np.arange(row, row + last - first), np.diff(self.ends[first:last], prepend=begin)
        )
        starts = (start[here] for start in self.starts)
        return self.pairs[here], rows, *starts, *(side.at(self.order[here]) for side in self.sides)


@dataclasses.dataclass(frozen=True)
class Layouter:
    """Lay out windows, as a function of these fields and the window's number."""

    reader: PairReader
    config: Data
    seed: int
    windows: Windows

    @property
    def packed(self) -> bool:
        return self.config.batching == "packed"

    @property
    def sizes(self) -> list[Size]:
        """Sizes of updates: one for packed rows, or one for each bucket length."""
        c = self.config
        lengths = [c.pack_length] if self.packed else bucket_edges(self.reader.longest)
        return [(length, max(1, c.batch_tokens // length)) for length in lengths]

    @property
    def blocks_of_update(self) -> int:
        return self.sizes[0][1] if self.packed else 1

    @property
    def key(self) -> list[Any]:
        """Inputs of the layouts, as JSON.

        Packed rows do not depend on the number of rows in an update.
        """
        c = self.config
        rows = c.pack_length if self.packed else c.batch_tokens
        return [
            VERSION,
            self.reader.store.digest,
            self.seed,
            c.batching,
            rows,
            self.windows.key,
            self.reader.key,
        ]

    def lay_out(self, window: int) -> Layout:
        """Return the layout of a window.

        Blocks are shuffled with a seed, because first fit leaves the last rows emptier.
        """
        samples = self.windows.samples(window)
        sides = self.reader.read(samples)
        lengths = sides[0].lengths, sides[1].lengths
        key = key_of(self.seed, 5, 0, window)
        if self.packed:
            drawn = permutation(
                len(lengths[0]), key_of(self.seed, 4, 0, window)
            )  # else equal windows have equal rows
            places = first_fit(lengths[0][drawn], lengths[1][drawn], self.config.pack_length)
            block, *starts = (x[_inverse(drawn)] for x in places)
            row, sizes = np.zeros_like(block), np.zeros(int(block.max()) + 1, np.int64)
        else:
            block, row, sizes = self._buckets(np.maximum(*lengths), key)
            starts = [np.zeros_like(block)] * 2
        shuffled = permutation(len(sizes), key)
        order = order_of(_inverse(shuffled)[block])
        ends = np.cumsum(np.bincount(block, minlength=len(sizes))[shuffled])
        source_start, target_start = (start[order] for start in starts)
        at = row[order], (source_start, target_start)
        return Layout(order, samples.pairs[order], *at, ends, sizes[shuffled], sides)

    def _buckets(self, longer: np.ndarray, key: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Divide pairs into updates of similar lengths, longest first, one pair in a row.

        Returns:
            Block of each pair, row of each pair, and index into `sizes` for each block.
        """
        order = np.argsort(-(longer + hashes(len(longer), key) / 2.0**64), kind="stable")
        edges = np.array([length for length, _ in self.sizes])
        block, row = np.empty((2, len(longer)), np.int64)
        sizes: list[int] = []
        begin = 0
        while begin < len(order):
            size = int(np.searchsorted(edges, longer[order[begin]]))
            members = order[begin : begin + self.sizes[size][1]]
            block[members], row[members] = len(sizes), np.arange(len(members))
            sizes.append(size)
            begin += len(members)
        return block, row, np.array(sizes)


def lay_out(layouter: Layouter, window: int) -> Layout:
    """Return the layout of a window. Worker processes call it."""
    return layouter.lay_out(window)


def _inverse(order: np.ndarray) -> np.ndarray:
    """Return the permutation that undoes `order`."""
    out = np.empty_like(order)
    out[order] = np.arange(len(order))
    return out


def bucket_edges(longest: int) -> list[int]:
    """Return row lengths from 8 up, each about 25 % longer than the one before.

    They are multiples of 4.
    """
    edges = [8]
    while edges[-1] < longest:
        edges.append(max(edges[-1] + 4, 4 * round(edges[-1] * 1.25 / 4)))
    return edges
