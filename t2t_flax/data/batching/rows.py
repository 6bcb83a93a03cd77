"""Rows of an update as arrays: ids, segments and positions of both sides."""

import functools
import math
from dataclasses import dataclass

import numpy as np

from t2t_flax.data.batching.packing import order_of
from t2t_flax.data.stored_ids import Sentences

Sides = tuple[Sentences, Sentences]
"""(source sentences, target sentences)."""


@dataclass(frozen=True, order=True)
class Shape:
    """`micro` microbatches of `rows` rows of `length` tokens, on each side."""

    length: int
    rows: int
    micro: int = 1

    @property
    def slots(self) -> int:
        """Token slots on each side."""
        return self.micro * self.rows * self.length

    @property
    def array_shape(self) -> tuple[int, int, int]:
        """Shape [A, B, L] of the arrays."""
        return self.micro, self.rows, self.length

    def __str__(self) -> str:
        return f"{self.micro} x {self.rows} rows of {self.length}"


def shape_of(length: int, rows: int, microbatch_tokens: int, shards: int) -> Shape:
    """Return the shape of a batch: `rows` split into microbatches and over devices.

    The number of rows in a microbatch is rounded up to a multiple of `shards`.

    Args:
        microbatch_tokens: maximum token slots of a microbatch on each device, which holds at least
            one row; 0 gives a single microbatch.
        shards: number of devices that divide the rows.
    """
    rows_per_device = max(1, microbatch_tokens // length) if microbatch_tokens else rows
    micro = math.ceil(rows / (rows_per_device * shards))
    return Shape(length, math.ceil(rows / micro / shards) * shards, micro)


@dataclass(frozen=True)
class HostBatch:
    """Pairs of one update and their places in the rows.

    Ids are read and arrays filled only for the requested rows, so that each host builds its own.

    Attributes:
        pairs: indices into the store, [P].
        row: row of each pair, 0 .. A * B - 1, [P].
        starts: start of each pair in its row, on the source side and on the target side, [P] each.
        epoch: epoch in which the update begins.
    """

    shape: Shape
    pairs: np.ndarray
    row: np.ndarray
    starts: tuple[np.ndarray, np.ndarray]
    sides: Sides
    epoch: int = 0

    def rows(self, first: int, last: int) -> dict[str, np.ndarray]:
        """Return rows `first` .. `last` - 1 of every microbatch.

        Returns:
            Arrays int32 [A, last - first, L]: source, source_segments, source_positions, and the
            same for target.
        """
        micro, within = np.divmod(self.row, self.shape.rows)
        mine = np.flatnonzero((first <= within) & (within < last))
        row = micro[mine] * (last - first) + within[mine] - first
        size = self.shape.micro, last - first, self.shape.length
        arrays: dict[str, np.ndarray] = {}
        for side, sentences, start in zip(
            ("source", "target"), self.sides, self.starts, strict=True
        ):
            filled = fill_rows(sentences.at(mine), row, start[mine], (size[0] * size[1], size[2]))
            ids, segments, positions = (x.reshape(size) for x in filled)
            arrays |= {
                side: ids,
                f"{side}_segments": segments,
                f"{side}_positions": positions,
            }
        return arrays

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays of all rows, int32 [A, B, L]."""
        return self.rows(0, self.shape.rows)

    @property
    def source_tokens(self) -> int:
        """Source tokens in all rows of the update, without padding."""
        return int(self.sides[0].lengths.sum())

    @property
    def target_tokens(self) -> int:
        """Target tokens in all rows of the update, without padding."""
        return int(self.sides[1].lengths.sum())

    @property
    def fill(self) -> float:
        """Fraction of the computed target slots that hold a token."""
        return self.target_tokens / self.shape.slots


def fill_rows(
    sentences: Sentences, row: np.ndarray, start: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the arrays of one side of a batch.

    Segments number the sentences of a row in their order, so both sides of a pair get the same
    number.

    Args:
        row: row of each sentence.
        start: start of each sentence in its row.
        shape: (rows, row length).

    Returns:
        Ids, segments (from 1; 0 is padding) and positions, int32 [rows, row length] each.
    """
    rows, length = shape
    segment = _rank_in_row(row, rows)
    order = order_of(start)
    order = order[order_of(row[order])]
    order = order[sentences.lengths[order] > 0]
    sentences, segment = sentences.at(order), segment[order]
    begin = row[order] * length + start[order]
    # Slots form alternating runs: padding, a sentence, padding, ...; padding may be empty.
    edges = np.zeros(2 * len(order) + 2, np.int64)
    edges[1:-1:2], edges[2::2], edges[-1] = begin, begin + sentences.lengths, rows * length
    runs = np.diff(edges)

    def spread(values: np.ndarray, dtype: type) -> np.ndarray:
        """Return the value of each sentence in each of its slots, and 0 in padding."""
        of_runs: np.ndarray = np.zeros(len(runs), dtype)
        of_runs[1::2] = values
        return np.repeat(of_runs, runs)

    slots = np.arange(rows * length, dtype=np.int32)
    segments = spread(segment, np.int32)
    real = segments > 0
    positions = (slots - spread(begin, np.int32)) * real
    index = slots + spread(sentences.offsets - begin, np.int64)
    ids = np.zeros(len(slots), np.int32)
    ids[real] = sentences.ids.take(index[real])
    return ids.reshape(shape), segments.reshape(shape), positions.reshape(shape)


def _rank_in_row(row: np.ndarray, rows: int) -> np.ndarray:
    """Return the number of each pair within its row, from 1, int32."""
    order = order_of(row)
    counts = np.bincount(row, minlength=rows)
    rank = np.empty(len(row), np.int32)
    rank[order] = np.arange(1, len(row) + 1) - (np.cumsum(counts) - counts)[row[order]]
    return rank
