"""Batch k as a function of (config, k), in shapes from a closed list.

A batch has arrays [A, B, L]: A microbatches of B rows, summed into one update. A is derived from the tokens that a
device may hold at once; unused microbatches at the end are empty and are not computed (`num_micro` says how many are).
"""

import dataclasses
import math

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.plan import Plan
from t2t_flax.data.rows import fill, first_fit
from t2t_flax.data.store import TokenStore


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
    """`arrays`: source, source_segments, source_positions and the same for target, int32 [A, B, L]; `num_micro` int."""

    arrays: dict[str, np.ndarray]
    num_micro: int
    pairs: np.ndarray
    source_tokens: int
    target_tokens: int
    epoch: int = 0

    @property
    def fill(self) -> float:
        """Real target tokens over the target slots that are computed."""
        slots = self.num_micro * self.arrays["target"][0].size
        return self.target_tokens / slots


class Batches:
    """The training batches of a store. `shards`: devices along the batch (data * fsdp), which B is a multiple of."""

    def __init__(self, store: TokenStore, config: Data, *, seed: int, shards: int = 1):
        self._store, self._config, self._shards = store, config, shards
        self._packed = config.batching == "packed"
        lengths = store.source_lengths, store.target_lengths
        self._plan = Plan(*lengths, batch_tokens=config.batch_tokens, by_length=not self._packed, seed=seed)
        self.updates_per_epoch = self._plan.updates_per_epoch
        self.shapes = self._packed_shapes() if self._packed else self._bucket_shapes()

    def batch(self, k: int) -> Batch:
        """Update k >= 0, whatever was asked for before."""
        update = self._plan.update(k)
        shape, row, starts = self._place(update.pairs)
        return make_batch(self._store, update.pairs, row, starts, shape, update.epoch)

    def _lengths(self, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._store.source_lengths[pairs], self._store.target_lengths[pairs]

    def _place(self, pairs: np.ndarray):
        source, target = self._lengths(pairs)
        if self._packed:
            row, *starts = first_fit(source, target, self._config.row_length)
            return self.shapes[0], row, starts
        longest = max(int(source.max()), int(target.max()))
        shape = next(s for s in self.shapes if s.length >= longest)
        return shape, np.arange(len(pairs)), (0, 0)

    def _packed_shapes(self) -> list[Shape]:
        rows = max(
            int(first_fit(*self._lengths(self._plan.update(k).pairs), self._config.row_length)[0].max()) + 1
            for k in range(min(self.updates_per_epoch, 32))
        )
        return [self._shape(self._config.row_length, rows)]

    def _bucket_shapes(self) -> list[Shape]:
        longest = int(max(self._store.source_lengths.max(), self._store.target_lengths.max()))
        edges = bucket_edges(longest)
        rows = {edge: 0 for edge in edges}
        for k in range(min(self.updates_per_epoch, 256)):
            pairs = self._plan.update(k).pairs
            edge = next(e for e in edges if e >= max(int(x.max()) for x in self._lengths(pairs)))
            rows[edge] = max(rows[edge], len(pairs))
        return [self._shape(e, rows[e] or math.ceil(self._config.batch_tokens / (e * 0.75))) for e in edges]

    def _shape(self, length: int, rows: int) -> Shape:
        """B and A for `rows` rows: one spare microbatch, and more with many, take updates that need more rows."""
        per_device = self._config.microbatch_tokens // length or rows
        micro = math.ceil(rows / max(1, per_device * self._shards))
        rows = math.ceil(rows / micro / self._shards) * self._shards
        return Shape(length, rows, micro + 1 + micro // 8)


def make_batch(store: TokenStore, pairs, row, starts, shape: Shape, epoch: int = 0) -> Batch:
    """Fills `shape` with `pairs` of the store, pair i in row `row[i]`."""
    arrays, rows = {}, shape.rows * shape.micro
    if int(row.max()) >= rows:
        raise AssertionError(f"an update needs {int(row.max()) + 1} rows, its shape has {shape}")
    for side, start in zip(("source", "target"), starts, strict=True):
        tokens, offsets, lengths = store.side(side)
        parts = fill(tokens, offsets, lengths, pairs, row, start, rows, shape.length)
        for name, x in parts.items():
            arrays[side if name == "ids" else f"{side}_{name}"] = x.reshape(shape.micro, shape.rows, shape.length)
    num_micro = int(row.max()) // shape.rows + 1
    counts = (int(store.source_lengths[pairs].sum()), int(store.target_lengths[pairs].sum()))
    return Batch(arrays, num_micro, pairs, *counts, epoch)


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
