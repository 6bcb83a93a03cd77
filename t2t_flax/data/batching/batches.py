"""Batch k as a function of (config, k), in a fixed set of shapes: each is compiled once.

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
        shapes: all shapes that batches have, ascending.
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
        # From the shape of a whole update to the same rows as microbatches, padded to the devices.
        # The stream knows only whole updates: the order of the pairs must not depend on the mesh.
        self._split = {
            Shape(*size): shape_of(*size, config.microbatch_tokens, shards)
            for size in self.stream.sizes
        }
        self.shapes = list(dict.fromkeys(self._split.values()))

    @property
    def updates_per_epoch(self) -> int:
        return self.stream.updates_per_epoch

    def batch(self, k: int) -> HostBatch:
        """Return batch k >= 0, which update k + 1 uses. Calls may come in any order."""
        update = self.stream.update(k)
        return dataclasses.replace(update, shape=self._split[update.shape])

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
    row_lengths = [config.pack_length]
    longest = 8 * math.ceil(store.longest / 8)
    while row_lengths[-1] < store.longest:
        row_lengths.append(min(2 * row_lengths[-1], longest))
    number_of_pair = np.searchsorted(row_lengths, np.maximum(*store.lengths))
    parts: list[tuple[Shape, Callable[[], Iterator[HostBatch]]]] = []
    for number, length in enumerate(row_lengths):
        members = np.flatnonzero(number_of_pair == number)
        # rows * length^2 is at most its value for rows of config.pack_length.
        rows = max(1, min(tokens, config.batch_tokens) * config.pack_length // length**2)
        shape = Shape(length, math.ceil(rows / shards) * shards)
        if len(members):
            parts.append((shape, partial(_packed, store, shape, members)))
    return parts


def _packed(store: TokenStore, shape: Shape, members: np.ndarray) -> Iterator[HostBatch]:
    source, target = store.sentences(members)
    row, source_start, target_start = first_fit(source.lengths, target.lengths, shape.length)
    for first in range(0, int(row.max()) + 1, shape.rows):
        here = np.flatnonzero((first <= row) & (row < first + shape.rows))
        yield HostBatch(
            shape,
            members[here],
            row[here] - first,
            (source_start[here], target_start[here]),
            (source.at(here), target.at(here)),
        )
