"""Batch k as a function of (config, k), in shapes from a closed list.

A batch has arrays [A, B, L]: A microbatches of B rows, summed into one update. A is derived from the tokens that a
device may hold at once. Rows are numbered through the microbatches, so that A and the mesh leave them as they are.
"""

import dataclasses
import math

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.plan import Plan
from t2t_flax.data.rows import fill, first_fit
from t2t_flax.data.store import TokenStore

_SAMPLE = 64


@dataclasses.dataclass(frozen=True, order=True)
class Shape:
    """`micro` microbatches of `rows` rows of `length` tokens, on each side."""

    length: int
    rows: int
    micro: int

    def __str__(self) -> str:
        return f"{self.micro} x {self.rows} rows of {self.length}"


@dataclasses.dataclass(frozen=True)
class Batch:
    """`arrays`: source, source_segments, source_positions and the same for target, int32 [A, B, L]."""

    arrays: dict[str, np.ndarray]
    pairs: np.ndarray
    source_tokens: int
    target_tokens: int
    epoch: int = 0

    @property
    def fill(self) -> float:
        """Real target tokens over the target slots that are computed."""
        return self.target_tokens / self.arrays["target"].size


class Batches:
    """The training batches of a store. `shards`: devices along the batch (data * fsdp), which B is a multiple of."""

    def __init__(self, store: TokenStore, config: Data, *, seed: int, shards: int = 1):
        self._store, self._config, self._shards = store, config, shards
        self._packed = config.batching == "packed"
        lengths = store.source_lengths, store.target_lengths
        plan = Plan(*lengths, batch_tokens=config.batch_tokens, by_length=not self._packed, seed=seed)
        self.updates_per_epoch = plan.updates_per_epoch
        self._rows = self._rows_by_length(plan)  # independent of the mesh, as the order of the pairs must be
        self._plan = plan.that_fits(lambda pairs: self._needed(pairs) <= self._rows[self._length(pairs)])
        self.shapes = [self._shape(length, rows) for length, rows in self._rows.items()]

    def batch(self, k: int) -> Batch:
        """Update k >= 0, whatever was asked for before."""
        update = self._plan.update(k)
        shape, row, starts = self._place(update.pairs)
        return make_batch(self._store, update.pairs, row, starts, shape, update.epoch)

    def _lengths(self, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._store.source_lengths[pairs], self._store.target_lengths[pairs]

    def _place(self, pairs: np.ndarray):
        shape = self.shapes[list(self._rows).index(self._length(pairs))]
        if not self._packed:
            return shape, np.arange(len(pairs)), (0, 0)
        row, *starts = first_fit(*self._lengths(pairs), self._config.row_length)
        return shape, row, starts

    def _length(self, pairs: np.ndarray) -> int:
        """The row length that an update of these pairs takes."""
        if self._packed:
            return self._config.row_length
        longest = max(int(x.max()) for x in self._lengths(pairs))
        return next(edge for edge in self._rows if edge >= longest)

    def _needed(self, pairs: np.ndarray) -> int:
        """The rows that an update of these pairs takes."""
        if not self._packed:
            return len(pairs)
        return int(first_fit(*self._lengths(pairs), self._config.row_length)[0].max()) + 1

    def _rows_by_length(self, plan: Plan) -> dict[int, int]:
        """The closed list, before it is divided into microbatches and over a mesh: row length to number of rows."""
        if self._packed:
            sample = range(min(self.updates_per_epoch, _SAMPLE))
            return {self._config.row_length: max(self._needed(plan.update(k).pairs) for k in sample)}
        self._rows = dict.fromkeys(bucket_edges(max(int(x.max()) for x in self._store.lengths)), 0)
        for k in range(min(self.updates_per_epoch, 4 * _SAMPLE)):
            pairs = plan.update(k).pairs
            self._rows[self._length(pairs)] = max(self._rows[self._length(pairs)], len(pairs))
        # Another epoch cuts the pairs elsewhere: some room more, and room for a bucket that the sample left out.
        edges = zip(self._rows, [4, *self._rows], strict=False)
        tokens = self._config.batch_tokens
        return {edge: math.ceil(1.05 * self._rows[edge]) or math.ceil(tokens / before) for edge, before in edges}

    def _shape(self, length: int, rows: int) -> Shape:
        per_device = self._config.microbatch_tokens // length or rows
        micro = math.ceil(rows / max(1, per_device * self._shards))
        return Shape(length, math.ceil(rows / micro / self._shards) * self._shards, micro)


def make_batch(store: TokenStore, pairs, row, starts, shape: Shape, epoch: int = 0) -> Batch:
    """Fills `shape` with `pairs` of the store, pair i in row `row[i]`."""
    arrays, rows = {}, shape.rows * shape.micro
    for side, start in zip(("source", "target"), starts, strict=True):
        tokens, offsets, lengths = store.side(side)
        parts = fill(tokens, offsets, lengths, pairs, row, start, rows, shape.length)
        for name, x in parts.items():
            arrays[side if name == "ids" else f"{side}_{name}"] = x.reshape(shape.micro, shape.rows, shape.length)
    counts = (int(store.source_lengths[pairs].sum()), int(store.target_lengths[pairs].sum()))
    return Batch(arrays, pairs, *counts, epoch)


def bucket_edges(longest: int) -> list[int]:
    """Row lengths from 8 up, each a multiple of 4 and about a quarter longer than the one before."""
    edges = [8]
    while edges[-1] < longest:
        edges.append(max(edges[-1] + 4, 4 * round(edges[-1] * 1.25 / 4)))
    return edges


def validation_batches(store: TokenStore, config: Data, *, shards: int = 1, tokens: int = 8192):
    """All pairs of a store in packed rows of one shape, as (Shape, iterator of Batch with micro 1).

    Nothing is dropped: rows are as long as the longest pair needs, however long that is.
    """
    lengths = store.source_lengths, store.target_lengths
    longest = int(max(x.max() for x in lengths))
    length = max(config.row_length, 8 * math.ceil(longest / 8))
    rows = math.ceil(max(1, min(tokens, config.batch_tokens) // length) / shards) * shards
    shape = Shape(length, rows, 1)

    def batches():
        left, start = np.arange(0), 0
        while start < store.num_pairs or len(left):
            more = np.arange(start, min(store.num_pairs, start + rows * length))
            candidates = np.concatenate([left, more])
            used = np.maximum(*(np.cumsum(x[candidates]) for x in lengths))
            candidates = candidates[: np.searchsorted(used, rows * length, side="right")]
            start += len(candidates) - len(left)
            row, *starts = first_fit(*(x[candidates] for x in lengths), length)
            fits = row < rows
            left = candidates[~fits]  # what found no row opens the next batch
            yield make_batch(store, candidates[fits], row[fits], [x[fits] for x in starts], shape)

    return shape, batches
