"""Batch k as a function of (config, k), in shapes from a closed list.

A batch has arrays [A, B, L]: A microbatches of B rows, summed into one update. A is derived from the tokens that a
device may hold at once. Rows are numbered through the microbatches, so that A and the mesh leave them as they are.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.first_fit import first_fit
from t2t_flax.data.layouts import Layouts, LayoutsAhead, Size, plan_of
from t2t_flax.data.plan import WINDOW_UPDATES
from t2t_flax.data.rows import fill
from t2t_flax.data.store import TokenStore

_SAMPLE = 64
_PADDED_LEVELS = (
    0.25,
    0.5,
    0.75,
    1.0,
)  # padding is counted, so real tokens differ from update to update: several shapes


@dataclasses.dataclass(frozen=True, order=True)
class Shape:
    """`micro` microbatches of `rows` rows of `length` tokens, on each side."""

    length: int
    rows: int
    micro: int

    @property
    def size(self) -> int:
        """Token slots of a side."""
        return self.micro * self.rows * self.length

    def __str__(self) -> str:
        return f"{self.micro} x {self.rows} rows of {self.length}"


@dataclasses.dataclass(frozen=True)
class Batch:
    """The pairs of an update and where they go. Ids are read and arrays filled for those rows alone that are asked for,
    so that of many hosts each makes its own; the counts are of the whole update.

    `pairs`: indices into the store, [P]; `row` [P], from 0 to A * B - 1, and `starts`, where each pair begins in the
    row's source and target.
    """

    store: TokenStore
    shape: Shape
    pairs: np.ndarray
    row: np.ndarray
    starts: Sequence[np.ndarray | int]
    epoch: int = 0

    def rows(self, first: int, last: int) -> dict[str, np.ndarray]:
        """Rows `first` .. `last` - 1 of every microbatch: source, source_segments, source_positions and the same for
        target, int32 [A, last - first, L].
        """
        micro, within = np.divmod(self.row, self.shape.rows)
        mine = (first <= within) & (within < last)
        row = micro[mine] * (last - first) + within[mine] - first
        arrays, size = {}, (self.shape.micro, last - first, self.shape.length)
        for side, start in zip(("source", "target"), self.starts, strict=True):
            start = start[mine] if isinstance(start, np.ndarray) else start
            parts = fill(*self.store.side(side), self.pairs[mine], row, start, size[0] * size[1], self.shape.length)
            arrays |= {side if name == "ids" else f"{side}_{name}": x.reshape(size) for name, x in parts.items()}
        return arrays

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """All rows: int32 [A, B, L]."""
        return self.rows(0, self.shape.rows)

    @functools.cached_property
    def source_tokens(self) -> int:
        """Real source tokens of the update, in all rows."""
        return int(self.store.source_lengths[self.pairs].sum())

    @functools.cached_property
    def target_tokens(self) -> int:
        """Real target tokens of the update, in all rows."""
        return int(self.store.target_lengths[self.pairs].sum())

    @property
    def fill(self) -> float:
        """Real target tokens over the target slots that are computed."""
        return self.target_tokens / self.shape.size


class Batches:
    """The training batches of a store. `shards`: devices along the batch (data * fsdp), which B is a multiple of."""

    def __init__(self, store: TokenStore, config: Data, *, seed: int, shards: int = 1):
        self._store, self._config, self._seed, self._shards = store, config, seed, shards
        self._plan = plan_of(store, config, seed)
        self.updates_per_epoch = self._plan.updates_per_epoch
        self._layouts = Layouts(store, config, self._plan)
        self._layouts.sizes = self._closed_list()  # independent of the mesh, as the order of the pairs must be
        self.shapes = [self._shape(length, rows) for length, rows in self._layouts.sizes]
        store.release()

    def batch(self, k: int, layouts: Layouts | LayoutsAhead | None = None) -> Batch:
        """Update k >= 0, whatever was asked for before. `layouts`: of `ahead()`, or laid out here."""
        if k % WINDOW_UPDATES == 0:
            self._store.release()
        epoch, window, piece = self._plan.place(k)
        layout = (layouts or self._layouts).of(epoch, window)[piece]
        return Batch(
            self._store,
            self.shapes[self._layouts.size_of(layout.needed)],
            layout.pairs,
            layout.row,
            layout.starts,
            epoch,
        )

    def ahead(self) -> contextlib.AbstractContextManager[Layouts | LayoutsAhead]:
        """Layouts for `batch`, made by `config.data.batch_processes` processes while it is open; 0: by the caller."""
        if not self._config.batch_processes:
            return contextlib.nullcontext(self._layouts)
        return LayoutsAhead(self._store, self._config, self._plan, self._layouts.sizes, self._seed)

    def _closed_list(self) -> list[Size]:
        """(length, rows), ascending, before rows are divided into microbatches and over a mesh."""
        if self._config.batching == "packed":
            sample = range(min(self.updates_per_epoch, _SAMPLE))
            rows = [self._layouts.needed(k)[1] for k in sample]
            levels = _PADDED_LEVELS if self._config.batch_count == "padded_max" else (1.0,)
            return [(self._config.row_length, n) for n in sorted({math.ceil(np.quantile(rows, q)) for q in levels})]
        found = dict.fromkeys(bucket_edges(self._store.longest), 0)
        for k in range(min(self.updates_per_epoch, 4 * _SAMPLE)):
            length, rows = self._layouts.needed(k)
            edge = next(edge for edge in found if edge >= length)
            found[edge] = max(found[edge], rows)
        # Another epoch cuts the pairs elsewhere: some room more, and room for a bucket that the sample left out.
        edges = zip(found, [4, *found], strict=False)
        tokens = self._config.batch_tokens
        return [(edge, math.ceil(1.05 * found[edge]) or math.ceil(tokens / before)) for edge, before in edges]

    def _shape(self, length: int, rows: int) -> Shape:
        per_device = self._config.microbatch_tokens // length or rows
        micro = math.ceil(rows / max(1, per_device * self._shards))
        return Shape(length, math.ceil(rows / micro / self._shards) * self._shards, micro)


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
    length = max(config.row_length, 8 * math.ceil(store.longest / 8))
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
            yield Batch(store, shape, candidates[fits], row[fits], [x[fits] for x in starts])

    return shape, batches
