"""The updates of a corpus: which blocks of which windows update k has."""

import bisect
import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import threading
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from typing import NamedTuple, Protocol

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.batching.layouts import Layout, Layouter, PairReader, Sides, Size
from t2t_flax.data.batching.windows import EpochWindows, Windows, windows_in
from t2t_flax.data.stored_ids import joined
from t2t_flax.data.workers import Workers
from t2t_flax.errors import UserError
from t2t_flax.filesystem import atomic_write
from t2t_flax.json_file import parse_json

_KEPT_EVERY = 16


class Update(NamedTuple):
    """The pairs of an update and their rows.

    Attributes:
      epoch: epoch in which the update begins.
      size: (length of a row, rows).
      pairs: indices into the store, [P].
      row: row of each pair, [P].
      starts: where each pair begins in the row's source and target, [P] each.
      sides: sentences of the pairs.
    """

    epoch: int
    size: Size
    pairs: np.ndarray
    row: np.ndarray
    starts: Sequence[np.ndarray]
    sides: Sides


class Stream(Protocol):
    """Updates as a function of their number.

    Attributes:
      sizes: the closed list of sizes.
      updates_per_epoch: updates of the first epoch.
    """

    @property
    def sizes(self) -> Sequence[Size]: ...

    @property
    def updates_per_epoch(self) -> int: ...

    def update(self, k: int) -> Update:
        """Return update k >= 0; the order of calls does not matter."""

    def use(self, workers: Workers[Layout] | None, ahead: int) -> None:
        """From now on `workers` lay out windows, `ahead` of them before they are needed."""


class UpdateStream:
    """Consecutive blocks of the windows of a layouter; a `Stream`.

    The blocks of a window are known when it has been laid out. Their numbers are kept in a file beside the store, so that
    another start goes on from where this one came to. Raises UserError for a pair that does not fit into a row.
    """

    def __init__(self, layouter: Layouter):
        longest, pack_length = layouter.reader.longest, layouter.config.pack_length
        if layouter.packed and longest > pack_length:
            raise UserError(
                f"the longest side of a training pair has {longest} tokens, config.data.pack_length = {pack_length}: a pair "
                "must fit into one packed row. Raise config.data.pack_length, or lower config.data.max_length."
            )
        self.layouter, self.sizes = layouter, layouter.sizes
        origin = layouter.reader.store.origin
        name = hashlib.sha256(json.dumps(layouter.key).encode()).hexdigest()[:12]
        self._path = origin.with_name(f"{origin.name}.plan-{name}.json")
        self._ends = list(itertools.accumulate(self._kept()))
        """Blocks up to the end of each window that was laid out before."""
        self._written, self._keep_at = len(self._ends), len(self._ends) + 1
        self._lock = threading.RLock()
        self._layouts: dict[int, Callable[[], Layout]] = {}
        self.use(None, 0)

    def with_windows(self, windows: Windows) -> "UpdateStream":
        """Return the updates of other windows, in the same sizes."""
        stream = UpdateStream(dataclasses.replace(self.layouter, windows=windows))
        stream.use(self._workers, self._ahead)
        return stream

    @cached_property
    def updates_per_epoch(self) -> int:
        """Updates that hold the first epoch.

        Where pairs are drawn, which takes long, its length follows from its first window.
        """
        windows = self.layouter.windows.per_epoch
        with self._lock:
            blocks = self._end(0) * windows if self.layouter.reader.draws else self._end(windows - 1)
            if len(self._ends) > self._written:
                self._keep()
        return math.ceil(blocks / self.layouter.blocks_of_update)

    def use(self, workers: Workers[Layout] | None, ahead: int) -> None:
        self._workers, self._ahead = workers, ahead
        self._layouts.clear()

    def update(self, k: int) -> Update:
        count, taken, parts = self.layouter.blocks_of_update, 0, []
        with self._lock:
            window, first = self.locate(k * count)
            epoch, size = self.layouter.windows.epoch(window), self.sizes[self.layout(window).sizes[first]]
            while taken < count:
                layout = self.layout(window)
                last = min(first + count - taken, layout.blocks)
                parts.append(layout.rows(first, last, taken))
                taken += last - first
                window, first = window + 1, 0
        pairs, row, source_start, target_start, source, target = zip(*parts, strict=True)
        starts = np.concatenate(source_start), np.concatenate(target_start)
        return Update(epoch, size, np.concatenate(pairs), np.concatenate(row), starts, (joined(source), joined(target)))

    def locate(self, block: int) -> tuple[int, int]:
        """Return (window, number in it) of a block of the stream."""
        window = bisect.bisect_right(self._ends, block)
        while self._end(window) <= block:
            window += 1
        return window, block - (self._end(window - 1) if window else 0)

    def _end(self, window: int) -> int:
        """Return the blocks up to the end of a window. Lays out the windows before that were not counted."""
        while len(self._ends) <= window:
            self._ends.append((self._ends or [0])[-1] + self.layout(len(self._ends)).blocks)
            if len(self._ends) >= self._keep_at:
                self._keep()
        return self._ends[window]

    def layout(self, window: int) -> Layout:
        """Return the layout of a window, and have those that follow laid out."""
        near = range(window, window + 1 + self._ahead)
        self._layouts = {number: self._layouts.get(number) or self._start(number) for number in near}
        layout = self._layouts[window]()
        if window < len(self._ends) and layout.blocks != self._ends[window] - (self._ends[window - 1] if window else 0):
            raise UserError(f"{self._path} was counted on other data: delete it.")
        return layout

    def _start(self, window: int) -> Callable[[], Layout]:
        if self._workers is None:
            return cache(partial(self.layouter.lay_out, window))
        return partial(self._workers.result, self._workers.submit(self.layouter, window))

    def _kept(self) -> list[int]:
        """Return the blocks of the first windows, which an earlier start has counted."""
        with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
            counts = [int(count) for count in parse_json(self._path.read_text())["blocks"]]
            if min(counts) > 0:
                return counts
        return []

    def _keep(self) -> None:
        """Write the counts, each time after more windows than before."""
        self._written = len(self._ends)
        self._keep_at = self._written + max(_KEPT_EVERY, self._written // 16)
        with contextlib.suppress(OSError):  # a folder that another account prepared, without write permission
            atomic_write(self._path, json.dumps({"blocks": np.diff(self._ends, prepend=0).tolist()}))


MakeStream = Callable[[PairReader, Data, int, Windows | None], Stream]
"""(reader of the training pairs, config.data, seed, windows if not those of `plain_windows`) -> stream."""


def plain_windows(reader: PairReader, seed: int) -> Windows:
    """Return windows whose epochs have each pair once."""
    pairs = reader.store.num_pairs
    return EpochWindows(pairs, windows_in(pairs), seed)


def plain_stream(reader: PairReader, config: Data, seed: int, windows: Windows | None = None) -> UpdateStream:
    """Return the stream of a store; a `MakeStream`."""
    return UpdateStream(Layouter(reader, config, seed, windows or plain_windows(reader, seed)))
