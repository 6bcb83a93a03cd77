"""Updates of a corpus: the blocks and windows that make up update k."""

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
from t2t_flax.files import atomic_write
from t2t_flax.json_file import parse_json

_KEPT_EVERY = 16


class Update(NamedTuple):
    """Pairs of one update and their places in the rows.

    Attributes:
        epoch: epoch in which the update begins.
        size: (row length, number of rows).
        pairs: indices into the store, [P].
        row: row of each pair, [P].
        starts: start of each pair in its row, on the source side and on the target side, [P] each.
        sides: source and target sentences of the pairs.
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
        sizes: closed list of sizes.
        updates_per_epoch: number of updates in the first epoch.
    """

    @property
    def sizes(self) -> Sequence[Size]: ...

    @property
    def updates_per_epoch(self) -> int: ...

    def update(self, k: int) -> Update:
        """Return update k >= 0. Calls may come in any order."""

    def use(self, workers: Workers[Layout] | None, ahead: int) -> None:
        """Let `workers` lay out windows from now on, `ahead` of them in advance."""


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
        self._written, self._keep_at = len(self._ends), len(self._ends) + 1
        self._lock = threading.RLock()
        self._layouts: dict[int, Callable[[], Layout]] = {}
        self.use(None, 0)

    def with_windows(self, windows: Windows) -> "UpdateStream":
        """Return a stream of other windows, with the same sizes."""
        stream = UpdateStream(dataclasses.replace(self.layouter, windows=windows))
        stream.use(self._workers, self._ahead)
        return stream

    @cached_property
    def updates_per_epoch(self) -> int:
        """Number of updates that hold the first epoch.

        If the reader draws pairs, which is slow, the number is computed from the epoch's first
        window.
        """
        windows = self.layouter.windows.per_epoch
        with self._lock:
            blocks = (
                self._end(0) * windows if self.layouter.reader.draws else self._end(windows - 1)
            )
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
            epoch, size = (
                self.layouter.windows.epoch(window),
                self.sizes[self.layout(window).sizes[first]],
            )
            while taken < count:
                layout = self.layout(window)
                last = min(first + count - taken, layout.blocks)
                parts.append(layout.rows(first, last, taken))
                taken += last - first
                window, first = window + 1, 0
        pairs, row, source_start, target_start, source, target = zip(*parts, strict=True)
        starts = np.concatenate(source_start), np.concatenate(target_start)
        return Update(
            epoch,
            size,
            np.concatenate(pairs),
            np.concatenate(row),
            starts,
            (joined(source), joined(target)),
        )

    def locate(self, block: int) -> tuple[int, int]:
        """Return (window, index within the window) of a block of the stream."""
        window = bisect.bisect_right(self._ends, block)
        while self._end(window) <= block:
            window += 1
        return window, block - (self._end(window - 1) if window else 0)

    def _end(self, window: int) -> int:
        """Return the number of blocks up to the end of a window.

        Lays out the windows up to it that were not counted before.
        """
        while len(self._ends) <= window:
            self._ends.append((self._ends or [0])[-1] + self.layout(len(self._ends)).blocks)
            if len(self._ends) >= self._keep_at:
                self._keep()
        return self._ends[window]

    def layout(self, window: int) -> Layout:
        """Return the layout of a window, and start to lay out the next ones."""
        near = range(window, window + 1 + self._ahead)
        self._layouts = {
            number: self._layouts.get(number) or self._start(number) for number in near
        }
        layout = self._layouts[window]()
        if window < len(self._ends) and layout.blocks != self._ends[window] - (
            self._ends[window - 1] if window else 0
        ):
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
        """Write the counts, less often as their number grows."""
        self._written = len(self._ends)
        self._keep_at = self._written + max(_KEPT_EVERY, self._written // 16)
        with contextlib.suppress(OSError):  # not writable: another account prepared it
            atomic_write(
                self._path, json.dumps({"blocks": np.diff(self._ends, prepend=0).tolist()})
            )


MakeStream = Callable[[PairReader, Data, int, Windows | None], Stream]
"""Function (reader of the training pairs, config.data, seed, windows) -> stream.

Windows of None stand for `plain_windows`.
"""


def plain_windows(reader: PairReader, seed: int) -> Windows:
    """Return windows whose epochs hold each pair once."""
    pairs = reader.store.num_pairs
    return EpochWindows(pairs, windows_in(pairs), seed)


def plain_stream(
    reader: PairReader, config: Data, seed: int, windows: Windows | None = None
) -> UpdateStream:
    """Return the stream of a store; the default `MakeStream`."""
    return UpdateStream(Layouter(reader, config, seed, windows or plain_windows(reader, seed)))
