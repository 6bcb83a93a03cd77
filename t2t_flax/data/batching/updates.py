"""Updates of a corpus: the blocks and windows that make up update k."""

import bisect
import contextlib
import hashlib
import itertools
import json
import math
import threading
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from typing import Protocol

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.batching.layouts import Layout, Layouter, PairReader, Size
from t2t_flax.data.batching.rows import HostBatch, Shape
from t2t_flax.data.batching.windows import EpochWindows, Windows, windows_in
from t2t_flax.data.stored_ids import joined
from t2t_flax.data.workers import Workers
from t2t_flax.errors import UserError
from t2t_flax.files import atomic_write
from t2t_flax.json_file import parse_json

_KEPT_EVERY = 16
"""Number of windows that are counted between two writes of their counts."""


class Stream(Protocol):
    """Updates as a function of their number.

    Attributes:
        sizes: closed list of sizes.
        updates_per_epoch: number of updates in the first epoch.
    """

    @property
    def sizes(self) -> Sequence[Size]: ...

    @property
    def updates_per_epoch(self) -> int: ...

    def update(self, k: int) -> HostBatch:
        """Return update k >= 0, of one microbatch. Calls may come in any order."""

    def use(self, workers: Workers[Layout] | None) -> None:
        """Let `workers` lay out windows from now on, as many in advance as there are workers."""


class UpdateStream:
    """`Stream` of consecutive blocks from the windows of a layouter.

    The number of blocks in a window is known once the window is laid out. The numbers are cached in
    a file beside the store, so that a later start continues from them. Raises UserError for a pair
    that does not fit into a row.
    """

    def __init__(self, layouter: Layouter):
        longest, pack_length = layouter.reader.longest, layouter.config.pack_length
        if layouter.packed and longest > pack_length:
            raise UserError(
                f"the longest side of a training pair has {longest} tokens, config.data.pack_length"
                f" = {pack_length}: a pair must fit into one packed row. Raise"
                " config.data.pack_length, or lower config.data.max_length."
            )
        self.layouter, self.sizes = layouter, layouter.sizes
        origin = layouter.reader.store.origin
        name = hashlib.sha256(json.dumps(layouter.key).encode()).hexdigest()[:12]
        self._path = origin.with_name(f"{origin.name}.plan-{name}.json")
        self._ends = list(itertools.accumulate(self._kept()))
        """Total number of blocks up to the end of each window that was laid out before."""
        self._lock = threading.RLock()
        self._workers: Workers[Layout] | None = None
        self._layouts: dict[int, Callable[[], Layout]] = {}

    @cached_property
    def updates_per_epoch(self) -> int:
        """Number of updates that hold the first epoch.

        If the reader draws pairs, which is slow, the number is computed from the epoch's first
        window.
        """
        windows = self.layouter.windows.per_epoch
        measured = 1 if self.layouter.reader.draws else windows
        with self._lock:
            known = len(self._ends)
            blocks = self._end(measured - 1) * windows // measured
            if len(self._ends) > known:
                self._keep()
        return math.ceil(blocks / self.layouter.blocks_of_update)

    def use(self, workers: Workers[Layout] | None) -> None:
        self._workers = workers
        self._layouts.clear()

    def update(self, k: int) -> HostBatch:
        count, taken, parts = self.layouter.blocks_of_update, 0, []
        with self._lock:
            window, first = self.locate(k * count)
            epoch = self.layouter.windows.epoch(window)
            size = self.sizes[self.layout(window).sizes[first]]
            while taken < count:
                layout = self.layout(window)
                last = min(first + count - taken, layout.blocks)
                parts.append(layout.rows(first, last, taken))
                taken += last - first
                window, first = window + 1, 0
        *arrays, source, target = zip(*parts, strict=True)
        pairs, row, source_start, target_start = map(np.concatenate, arrays)
        sides = joined(source), joined(target)
        return HostBatch(Shape(*size), pairs, row, (source_start, target_start), sides, epoch)

    def locate(self, block: int) -> tuple[int, int]:
        """Return (window, index within the window) of a block of the stream."""
        window = bisect.bisect_right(self._ends, block)
        while self._end(window) <= block:
            window += 1
        return window, block - self._begin(window)

    def _begin(self, window: int) -> int:
        return self._ends[window - 1] if window else 0

    def _end(self, window: int) -> int:
        """Return the number of blocks up to the end of a window.

        Lays out the windows up to it that were not counted before.
        """
        while (count := len(self._ends)) <= window:
            self._ends.append(self._begin(count) + self.layout(count).blocks)
            if len(self._ends) % _KEPT_EVERY == 0:
                self._keep()
        return self._ends[window]

    def layout(self, window: int) -> Layout:
        """Return the layout of a window, and start to lay out the next ones."""
        ahead = self._workers.count if self._workers else 0
        near = range(window, window + 1 + ahead)
        self._layouts = {
            number: self._layouts.get(number) or self._start(number) for number in near
        }
        layout = self._layouts[window]()
        counted = window < len(self._ends)
        if counted and layout.blocks != self._ends[window] - self._begin(window):
            raise UserError(f"{self._path} was counted on other data: delete it.")
        return layout

    def _start(self, window: int) -> Callable[[], Layout]:
        if self._workers is None:
            return cache(partial(self.layouter.lay_out, window))
        return partial(self._workers.result, self._workers.submit(self.layouter, window))

    def _kept(self) -> list[int]:
        """Return the number of blocks in each window that an earlier start counted."""
        with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
            counts = [int(count) for count in parse_json(self._path.read_text())["blocks"]]
            if min(counts) > 0:
                return counts
        return []

    def _keep(self) -> None:
        counts = np.diff(self._ends, prepend=0).tolist()
        with contextlib.suppress(OSError):  # not writable: another account prepared it
            atomic_write(self._path, json.dumps({"blocks": counts}))


MakeStream = Callable[[PairReader, Data, int, Windows | None], Stream]
"""Function (reader of the training pairs, config.data, seed, windows) -> stream.

By default, each epoch of the windows has every pair once.
"""


def plain_stream(
    reader: PairReader, config: Data, seed: int, windows: Windows | None = None
) -> UpdateStream:
    """Return the stream of a store; the default `MakeStream`."""
    pairs = reader.store.num_pairs
    windows = windows or EpochWindows(pairs, windows_in(pairs), seed)
    return UpdateStream(Layouter(reader, config, seed, windows))
