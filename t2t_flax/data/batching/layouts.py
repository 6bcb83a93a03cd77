"""Layouts: the pairs of a window, placed in rows in training order.

A layout is a function of a `Layouter` and the window's number, so any process can compute it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.batching.packing import first_fit, order_of
from t2t_flax.data.batching.rows import Sides
from t2t_flax.data.batching.windows import Samples, Windows
from t2t_flax.data.hashing import hashes, key_of, permutation
from t2t_flax.data.token_store import TokenStore

VERSION = 8
"""Version of `data.batching` and `data.hashing`.

Cached counts of another version are not used.
"""

Size = tuple[int, int]
"""(row length, number of rows) of an update."""


@dataclass(frozen=True)
class PairReader:
    """Reader of the sentences of a store; a subclass may draw them anew in each epoch.

    It is pickled and sent to processes without JAX.
    """

    store: TokenStore

    @property
    def draws(self) -> bool:
        """True if lengths change from epoch to epoch."""
        return False

    @property
    def key(self) -> object:
        """Inputs of the sentences other than the store, as JSON."""
        return None

    @property
    def longest(self) -> int:
        """Tokens of the longest side that `read` may return."""
        return self.store.longest

    def read(self, samples: Samples) -> Sides:
        """Return the sentences of samples, in order.

        A sentence depends only on its pair and its epoch.
        """
        return self.store.sentences(samples.pairs)


class Layout(NamedTuple):
    """Blocks of a window in training order.

    A block is the smallest part of an update: one packed row, or all rows of a bucketed update.

    Attributes:
        samples: pairs of the window, sorted by block, [P].
        row: row of each pair within its block, int64 [P].
        starts: start of each pair in its row, on the source side and on the target side, int64 [P]
            each.
        sides: source and target sentences of the pairs.
        ends: index in these arrays at which each block ends, int64 [blocks].
        sizes: index into `Layouter.sizes` for the update of each block, int64 [blocks].
    """

    samples: Samples
    row: np.ndarray
    starts: tuple[np.ndarray, np.ndarray]
    sides: Sides
    ends: np.ndarray
    sizes: np.ndarray

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
        return self.samples.pairs[here], rows, *starts, *(side.at(here) for side in self.sides)


@dataclass(frozen=True)
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
    def key(self) -> list[object]:
        """Inputs of the layouts, as JSON.

        Packed rows do not depend on the number of rows in an update.
        """
        c, reader = self.config, self.reader
        rows = c.pack_length if self.packed else c.batch_tokens
        inputs = [reader.store.digest, self.seed, c.batching, rows, self.windows.key, reader.key]
        return [VERSION, *inputs]

    def lay_out(self, window: int) -> Layout:
        """Return the layout of a window.

        Blocks are shuffled with a seed, because first fit leaves the last rows emptier.
        """
        samples = self.windows.samples(window)
        sides = self.reader.read(samples)
        place = self._packed_rows if self.packed else self._buckets
        block, row, starts, sizes = place(sides[0].lengths, sides[1].lengths, window)
        shuffled = permutation(len(sizes), key_of(self.seed, 5, 0, window))
        order = order_of(_inverse(shuffled)[block])
        return Layout(
            samples.at(order),
            row[order],
            (starts[0][order], starts[1][order]),
            (sides[0].at(order), sides[1].at(order)),
            np.cumsum(np.bincount(block, minlength=len(sizes))[shuffled]),
            sizes[shuffled],
        )

    def _packed_rows(self, source: np.ndarray, target: np.ndarray, window: int) -> tuple:
        """Place pairs in packed rows; each row is a block.

        Equal windows get other rows, since the pairs are shuffled before.

        Returns:
            Block of each pair, its row within the block, its two starts; index into `sizes` for
            each block.
        """
        drawn = permutation(len(source), key_of(self.seed, 4, 0, window))
        places = first_fit(source[drawn], target[drawn], self.config.pack_length)
        block, *starts = (place[_inverse(drawn)] for place in places)
        return block, np.zeros_like(block), starts, np.zeros(int(block.max()) + 1, np.int64)

    def _buckets(self, source: np.ndarray, target: np.ndarray, window: int) -> tuple:
        """Place pairs of about the same length in blocks, one pair a row; the longest come first.

        Returns: as `_packed_rows`.
        """
        longer = np.maximum(source, target)
        ties = hashes(len(longer), key_of(self.seed, 5, 0, window)) / 2.0**64
        order = np.argsort(-(longer + ties), kind="stable")
        edges = np.array([length for length, _ in self.sizes])
        block, row = np.empty((2, len(longer)), np.int64)
        sizes: list[int] = []
        while len(order):
            size = int(np.searchsorted(edges, longer[order[0]]))
            members, order = np.split(order, [self.sizes[size][1]])
            block[members], row[members] = len(sizes), np.arange(len(members))
            sizes.append(size)
        return block, row, [np.zeros_like(row)] * 2, np.array(sizes)


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
