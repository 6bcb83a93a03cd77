"""Batch k as a function of (config, k), in shapes from a closed list.

A batch has arrays [A, B, L]: A microbatches of B rows of L tokens. Their gradients are summed into
one update. A follows from data.microbatch_tokens. Rows are numbered across the microbatches, so
their content does not depend on A or on the mesh.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.batching.layouts import Layout, PairReader, Sides, StoredPairs, lay_out
from t2t_flax.data.batching.packing import fill_rows, first_fit
from t2t_flax.data.batching.updates import MakeStream, plain_stream
from t2t_flax.data.token_store import TokenStore
from t2t_flax.data.workers import Workers


@dataclasses.dataclass(frozen=True, order=True)
class Shape:
    """`micro` microbatches of `rows` rows of `length` tokens, on each side."""

    length: int
    rows: int
    micro: int

    @property
    def size(self) -> int:
        """Token slots on each side."""
        return self.micro * self.rows * self.length

    @property
    def array_shape(self) -> tuple[int, int, int]:
        """Shape [A, B, L] of the arrays."""
        return self.micro, self.rows, self.length

    def __str__(self) -> str:
        return f"{self.micro} x {self.rows} rows of {self.length}"


@dataclasses.dataclass(frozen=True)
class HostBatch:
    """Pairs of one update and their places in the rows.

    Ids are read and arrays filled only for the requested rows, so that each host builds its own.

    Attributes:
        shape: shape of the arrays.
        pairs: indices into the store, [P].
        row: row of each pair, 0 .. A * B - 1, [P].
        starts: start of each pair in its row, on the source side and on the target side, [P] each.
        sides: source and target sentences of the pairs.
        epoch: epoch in which the update begins.
    """

    shape: Shape
    pairs: np.ndarray
    row: np.ndarray
    starts: Sequence[np.ndarray]
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
        arrays: dict[str, np.ndarray] = {}
        size = (self.shape.micro, last - first, self.shape.length)
        for side, sentences, start in zip(
            ("source", "target"), self.sides, self.starts, strict=True
        ):
            parts = fill_rows(sentences.at(mine), row, start[mine], (size[0] * size[1], size[2]))
            arrays |= {
                side if name == "ids" else f"{side}_{name}": x.reshape(size)
                for name, x in parts.items()
            }
        return arrays

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays of all rows, int32 [A, B, L]."""
        return self.rows(0, self.shape.rows)

    @functools.cached_property
    def source_tokens(self) -> int:
        """Number of source tokens in all rows of the update, without padding."""
        return int(self.sides[0].lengths.sum())

    @functools.cached_property
    def target_tokens(self) -> int:
        """Number of target tokens in all rows of the update, without padding."""
        return int(self.sides[1].lengths.sum())

    @property
    def fill(self) -> float:
        """Fraction of the computed target slots that hold a token."""
        return self.target_tokens / self.shape.size


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


class Batches:
    """Training batches of a store.

    Args:
        shards: number of devices along the batch (data * fsdp). Arrays are padded with empty rows
            to a multiple of it.
        reader: reader of the pairs; by default it reads the store's ids.

    Attributes:
        shapes: closed list of shapes, ascending.
        updates_per_epoch: number of updates in the first epoch.
    """

    def __init__(
        self,
        store: TokenStore,
        config: Data,
        *,
        seed: int,
        shards: int = 1,
        make_stream: MakeStream = plain_stream,
        reader: PairReader | None = None,
    ):
        self.stream = make_stream(reader or StoredPairs(store), config, seed, None)
        # Sizes do not depend on the mesh, because the order of the pairs must not.
        self._shapes = {
            size: shape_of(*size, config.microbatch_tokens, shards) for size in self.stream.sizes
        }
        self.shapes = list(dict.fromkeys(self._shapes.values()))

    @property
    def updates_per_epoch(self) -> int:
        return self.stream.updates_per_epoch

    def batch(self, k: int) -> HostBatch:
        """Return the batch of update k >= 0. Calls may come in any order."""
        update = self.stream.update(k)
        shape = self._shapes[update.size]
        return HostBatch(shape, update.pairs, update.row, update.starts, update.sides, update.epoch)

    @contextlib.contextmanager
    def in_processes(self, count: int) -> Iterator[None]:
        """Within the block, lay out windows ahead in `count` processes.

        A count below 2 changes nothing.
        """
        if count < 2:
            yield
            return
        with Workers[Layout](lay_out, count, does="lays out updates") as workers:
            self.stream.use(workers, count)
            try:
                yield
            finally:
                self.stream.use(None, 0)


def validation_batches(
    store: TokenStore, config: Data, *, shards: int = 1, tokens: int = 8192
) -> list[tuple[Shape, Callable[[], Iterator[HostBatch]]]]:
    """Return all pairs of a store in packed rows, shortest rows first.

    No pair is dropped: pairs longer than config.pack_length get rows of two, four ... times that
    length, up to the longest pair. Batches of longer rows have fewer rows. So the memory of
    attention, rows * length^2, does not grow with the length until each shard has one row.

    Returns:
        (shape with micro = 1, function that returns its batches) for each row length in use.
    """
    longer = np.maximum(*store.lengths)
    edges, longest = [config.pack_length], 8 * math.ceil(store.longest / 8)
    while edges[-1] < store.longest:
        edges.append(min(2 * edges[-1], longest))
    parts: list[tuple[Shape, Callable[[], Iterator[HostBatch]]]] = []
    shorter = 0
    for edge in edges:
        members = np.flatnonzero((shorter < longer) & (longer <= edge))
        rows = max(1, min(tokens, config.batch_tokens) * config.pack_length // edge**2)
        shape, shorter = Shape(edge, math.ceil(rows / shards) * shards, 1), edge
        if len(members):
            parts.append((shape, functools.partial(_packed, store, shape, members)))
    return parts


def _packed(store: TokenStore, shape: Shape, members: np.ndarray) -> Iterator[HostBatch]:
    sides = store.sentences(members)
    row, *starts = first_fit(sides[0].lengths, sides[1].lengths, shape.length)
    for first in range(0, int(row.max()) + 1, shape.rows):
        here = np.flatnonzero((first <= row) & (row < first + shape.rows))
        source, target = (side.at(here) for side in sides)
        yield HostBatch(
            shape,
            members[here],
            row[here] - first,
            [start[here] for start in starts],
            (source, target),
        )
