"""The updates of a corpus: which window an update belongs to, and the plan of the windows, which is kept beside the store."""

import bisect
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.batching.batch_sampler import BatchSampler, MakeSampler, Size
from t2t_flax.data.batching.streams import Windows, whole_passes
from t2t_flax.data.batching.window_layouts import SAMPLED_WINDOWS, Ahead, Draw, Layouter, WindowLayout
from t2t_flax.data.token_store import TokenStore
from t2t_flax.errors import UserError
from t2t_flax.filesystem import atomic_write
from t2t_flax.json_file import parse_json

_KEPT_EVERY = 16


class Update(NamedTuple):
    """Update `number` of a window, and the epoch that it belongs to."""

    epoch: int
    window: WindowLayout
    number: int


class Stream(Protocol):
    """Updates as a function of their number. sizes: that hold each of them. updates_per_epoch: see `Layouts`."""

    @property
    def sizes(self) -> Sequence[Size]: ...

    @property
    def updates_per_epoch(self) -> int: ...

    def update(self, k: int) -> Update:
        """Update k >= 0; the order of calls does not matter."""

    def use(self, ahead: Ahead) -> None:
        """From now on `ahead` lays out the windows."""


class Layouts:
    """The updates of the windows of a corpus, one window after another; a `Stream`.

    How many updates a window has is known when it has been laid out. The numbers are kept in a file beside the store, so that
    another start goes on from where this one came to. sizes: the closed list. updates_per_epoch: exact for a pass of a few
    windows of pairs that are not drawn, else estimated from the first. Raises UserError for a pair that does not fit into a row.
    """

    def __init__(self, layouter: Layouter):
        store, pack_length = layouter.store, layouter.config.pack_length
        if layouter.packed and layouter.longest > pack_length:
            raise UserError(
                f"the longest side of a training pair has {layouter.longest} tokens, config.data.pack_length = "
                f"{pack_length}: a pair must fit into one packed row. Raise config.data.pack_length, or lower "
                "config.data.max_length."
            )
        name = hashlib.sha256(json.dumps(layouter.key).encode()).hexdigest()[:12]
        self._path = store.origin.with_name(f"{store.origin.name}.plan-{name}.json")
        kept = self._kept()
        sizes, counts = kept or ((layouter.sizes, []) if layouter.sizes else layouter.sample())
        self.layouter = dataclasses.replace(layouter, sizes=sizes)
        self._ends = list(itertools.accumulate(counts))
        """The updates up to the end of each window."""
        self._lock, self._ahead = threading.Lock(), Ahead()
        self.window = functools.lru_cache(maxsize=2)(self._lay_out)
        self._keep_at = len(counts) + _KEPT_EVERY
        if not kept and counts:
            self._keep()

    @property
    def sizes(self) -> Sequence[Size]:
        return self.layouter.sizes

    @functools.cached_property
    def updates_per_epoch(self) -> int:
        a_pass = self.layouter.windows.a_pass
        counts = np.diff(self._ends[:SAMPLED_WINDOWS], prepend=0).tolist()
        sampled = min(self.layouter.sampled_windows(counts), len(counts))
        return max(1, round(self._ends[sampled - 1] * a_pass / sampled))

    def of_windows(self, windows: Windows) -> "Layouts":
        """Other windows in the same sizes."""
        layouts = Layouts(dataclasses.replace(self.layouter, windows=windows))
        layouts.use(self._ahead)
        return layouts

    def use(self, ahead: Ahead) -> None:
        self._ahead = ahead

    def update(self, k: int) -> Update:
        with self._lock:
            window, number = self.locate(k)
            return Update(self.layouter.windows.epoch(window), self.window(window), number)

    def locate(self, k: int) -> tuple[int, int]:
        """(window, which of its updates) of update k. Lays out the windows before, as far as their updates were not counted."""
        while self._end <= k:
            self._ends.append(self._end + self.window(len(self._ends)).updates)
            if len(self._ends) >= self._keep_at:
                self._keep()
        window = bisect.bisect_right(self._ends, k)
        return window, k - (self._ends[window - 1] if window else 0)

    @property
    def _end(self) -> int:
        """The updates of all windows whose updates have been counted."""
        return self._ends[-1] if self._ends else 0

    def _lay_out(self, window: int) -> WindowLayout:
        layout = self._ahead.window(self.layouter, window)
        ends = [0, *self._ends[max(0, window - 1) : window + 1]][-2:]
        if window < len(self._ends) and layout.updates != ends[1] - ends[0]:
            raise UserError(f"{self._path} is not of this data: delete it.")
        return layout

    def _kept(self) -> tuple[tuple[Size, ...], list[int]] | None:
        """The sizes, and the updates of the first windows, that an earlier start has kept; None if there is no such file."""
        with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
            plan = parse_json(self._path.read_text())
            counts = [int(count) for count, windows in plan["updates"] for _ in range(windows)]
            sizes = tuple((int(length), int(rows)) for length, rows in plan["sizes"])
            if sizes and counts and min(counts) > 0:
                return sizes, counts
        return None

    def _keep(self) -> None:
        """Writes them. Each time after more windows than before, so that little is written and little is lost."""
        counts = np.diff(self._ends, prepend=0).tolist()
        runs = [[count, len(list(same))] for count, same in itertools.groupby(counts)]
        self._keep_at = len(counts) + max(_KEPT_EVERY, len(counts) // 16)
        with contextlib.suppress(OSError):  # a folder that another account prepared, without write permission
            atomic_write(self._path, json.dumps({"sizes": self.sizes, "updates": runs}))


MakeWindows = Callable[[TokenStore], Windows]
MakeStream = Callable[[TokenStore, Data, int, MakeWindows | None], Stream]
"""(the store of the training pairs, config.data, seed, the windows of a store if not `whole_passes`) -> stream."""


def plain_stream(
    store: TokenStore,
    config: Data,
    seed: int,
    windows_of: MakeWindows | None = None,
    make_sampler: MakeSampler = BatchSampler,
    make_draw: Callable[[TokenStore], Draw | None] = lambda store: None,
) -> Layouts:
    """The stream of a single store; a `MakeStream`."""
    windows = windows_of(store) if windows_of else whole_passes(store, config, seed)
    return Layouts(Layouter(store, config, seed, windows, make_sampler, make_draw(store)))
