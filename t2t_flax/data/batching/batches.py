"""Batch k as a function of (config, k), in shapes from a closed list.

A batch has arrays [A, B, L]: A microbatches of B rows of L tokens. Their gradients are summed into
one update. A follows from data.microbatch_tokens. Rows are numbered across the microbatches, so
their content does not depend on A or on the mesh.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.batching.layouts import Layout, PairReader, lay_out
from t2t_flax.data.batching.packing import first_fit
from t2t_flax.data.batching.rows import HostBatch, Shape, shape_of
from t2t_flax.data.batching.updates import MakeStream, plain_stream
from t2t_flax.data.token_store import TokenStore
from t2t_flax.data.workers import Workers


class Batches:
    """Training batches of a store.

    Args:
        shards: number of devices along the batch (data * fsdp). Arrays are padded with empty rows
            to a multiple of it.

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
    ):
        self.stream = make_stream(PairReader(store), config, seed, None)
        # Sizes do not depend on the mesh, because the order of the pairs must not.
        self._shapes = {
            Shape(*size): shape_of(*size, config.microbatch_tokens, shards)
            for size in self.stream.sizes
        }
        self.shapes = list(dict.fromkeys(self._shapes.values()))

    @property
    def updates_per_epoch(self) -> int:
        return self.stream.updates_per_epoch

    def batch(self, k: int) -> HostBatch:
        """Return the batch of update k >= 0. Calls may come in any order."""
        update = self.stream.update(k)
        return dataclasses.replace(update, shape=self._shapes[update.shape])

    @contextlib.contextmanager
    def in_processes(self, count: int) -> Iterator[None]:
        """Within the block, lay out windows ahead in `count` processes.

        A count below 2 changes nothing.
        """
        if count < 2:
            yield
            return
        with Workers[Layout](lay_out, count, does="lays out updates") as workers:
            self.stream.use(workers)
            try:
                yield
            finally:
                self.stream.use(None)


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
    edges, longest = [config.pack_length], 8 * math.ceil(store.longest / 8)
    while edges[-1] < store.longest:
        edges.append(min(2 * edges[-1], longest))
    edge_of_pair = np.searchsorted(edges, np.maximum(*store.lengths))
    parts: list[tuple[Shape, Callable[[], Iterator[HostBatch]]]] = []
    for number, edge in enumerate(edges):
        members = np.flatnonzero(edge_of_pair == number)
        rows = max(1, min(tokens, config.batch_tokens) * config.pack_length // edge**2)
        shape = Shape(edge, math.ceil(rows / shards) * shards)
        if len(members):
            parts.append((shape, partial(_packed, store, shape, members)))
    return parts


def _packed(store: TokenStore, shape: Shape, members: np.ndarray) -> Iterator[HostBatch]:
    source, target = store.sentences(members)
    row, *starts = first_fit(source.lengths, target.lengths, shape.length)
    for first in range(0, int(row.max()) + 1, shape.rows):
        here = np.flatnonzero((first <= row) & (row < first + shape.rows))
        yield HostBatch(
            shape,
            members[here],
            row[here] - first,
            (starts[0][here], starts[1][here]),
            (source.at(here), target.at(here)),
        )
