"""Layouts: how the pairs of each update are arranged in rows, and which window of the corpus an update belongs to."""

import bisect
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.batching.ahead import Ahead
from t2t_flax.data.batching.batch_sampler import BatchSampler, Lengths, MakeSampler, Size, smallest_fitting
from t2t_flax.data.batching.packing import first_fit
from t2t_flax.data.batching.streams import Visits, Windows, whole_passes
from t2t_flax.data.hashing import key_of, permutation
from t2t_flax.data.token_store import Sentences, TokenStore
from t2t_flax.errors import UserError
from t2t_flax.filesystem import atomic_write
from t2t_flax.json_file import parse_json

VERSION = 3
"""Of the algorithms in `data.batching` and `data.hashing`: plans of another version are not used."""
_SAMPLE = 64
_SHORT_PASS = 4
_TRIES, _MORE_UPDATES = 10, 3
_KEPT_EVERY = 16


class Draw(Protocol):
    """Draws the ids of pairs anew in each pass, in place of those of the store. Pickled, to processes without JAX. key: what
    the ids depend on beside the store, as JSON. longest: tokens of the longest side that it may return.
    """

    @property
    def key(self) -> Any: ...

    @property
    def longest(self) -> int: ...

    def __call__(self, visits: Visits) -> tuple[Sentences, Sentences]:
        """The source and the target sentences of these visits, in their order: a function of each pair and its pass."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """The pairs of an update and their rows.

    `pairs`: indices into the store, [P]; `row` [P] and `starts`, where each pair begins in the row's source and target;
    `needed`: the smallest size that holds them. `sides`: the sentences, at `index` [P]; None = those of the store, at `pairs`.
    """

    pairs: np.ndarray
    row: np.ndarray
    starts: Sequence[np.ndarray | int]
    needed: Size
    sides: tuple[Sentences, Sentences] | None
    index: np.ndarray


class WindowLayout(NamedTuple):
    """The layouts of all updates of a window, in the order of training, as a few arrays of small integers [P].

    order: indices into the window's visits; pairs: into the store. row, source_start, target_start: see `Layout`; the starts are
    empty where each pair has a row. ends [U]: where each update ends in the arrays; needed [U, 2]: its size.
    sides: drawn sentences.
    """

    order: np.ndarray
    pairs: np.ndarray
    row: np.ndarray
    source_start: np.ndarray
    target_start: np.ndarray
    ends: np.ndarray
    needed: np.ndarray
    sides: tuple[Sentences, Sentences] | None

    @property
    def updates(self) -> int:
        return len(self.ends)

    def visits_from(self, update: int) -> np.ndarray:
        """Which of the window's visits are those of this update and the ones after it, int64."""
        return self.order[int(self.ends[update - 1]) if update else 0 :].astype(np.int64)

    def update(self, number: int) -> Layout:
        """The layout of one update."""
        here = slice(int(self.ends[number - 1]) if number else 0, int(self.ends[number]))
        starts = [x[here].astype(np.int64) if len(x) else 0 for x in (self.source_start, self.target_start)]
        length, rows = map(int, self.needed[number])
        order, pairs, row = (x[here].astype(np.int64) for x in (self.order, self.pairs, self.row))
        return Layout(pairs, row, starts, (length, rows), self.sides, order if self.sides else pairs)


class _Rows(NamedTuple):
    """Rows of a piece of a window, see `Layout`. pairs: indices into the window's visits."""

    pairs: np.ndarray
    row: np.ndarray
    starts: tuple[np.ndarray, ...]
    needed: Size


@dataclasses.dataclass(frozen=True)
class Layouter:
    """Lays out windows: a function of these fields and the window's number, in any process. sizes: the closed list, ascending."""

    store: TokenStore
    config: Data
    seed: int
    windows: Windows
    make_sampler: MakeSampler = BatchSampler
    draw: Draw | None = None
    sizes: tuple[Size, ...] = ()

    @property
    def key(self) -> list[Any]:
        """What the layouts depend on, as JSON, but for `sizes`, which follow from the rest."""
        c = self.config
        keys: list[Any] = [VERSION, self.store.digest, self.seed, c.batching, c.batch_tokens, self.rules.key]
        return [*keys, c.pack_length if self.packed else 0, self.windows.key, self.draw and self.draw.key]

    @property
    def packed(self) -> bool:
        return self.config.batching == "packed"

    @property
    def longest(self) -> int:
        """Tokens of the longest side of a pair."""
        return self.draw.longest if self.draw else self.store.longest

    @property
    def rules(self) -> BatchSampler:
        """A sampler of no window."""
        return self.make_sampler(self.config, self.seed, Lengths(*np.zeros((2, 0), np.int32)))

    def lay_out(self, window: int) -> WindowLayout:
        """A window in the fewest updates of which each fits into one of the sizes, after a few attempts to cut it."""
        visits = self.windows.visits(window)
        sides = self.draw(visits) if self.draw else None
        sampler = self._sampler(visits, sides)
        parts = self._in_order(self._fitting(sampler, window), window)
        self.store.release()
        return _window_layout(visits, parts, sides)

    def sample(self) -> tuple[tuple[Size, ...], list[int]]:
        """(the closed list, updates of the first windows), from the first windows: of the whole pass if it has only a few."""
        whole = self.windows.a_pass <= _SHORT_PASS
        needed: Counter[Size] = Counter()
        expected: list[Size] = []
        counts: list[int] = []
        while len(counts) < self.windows.a_pass if whole else sum(counts) < _SAMPLE:
            window = len(counts)
            visits = self.windows.visits(window)
            sampler = self._sampler(visits, self.draw(visits) if self.draw else None)
            if not counts and self.packed and sampler.alike:
                expected = [self._expected(sampler)]
            parts = self._preferred(sampler, window, expected)
            counts.append(len(parts))
            needed.update(part.needed for part in parts)
            if expected:  # it grows, so that later windows do not fail the same way
                expected = [max(*expected, *(part.needed for part in parts))]
            self.store.release()
        return tuple(self.rules.sizes(needed, expected, self.longest)), counts

    def _sampler(self, visits: Visits, sides: tuple[Sentences, Sentences] | None) -> BatchSampler:
        if sides:
            lengths = Lengths(*(np.asarray(side.lengths) for side in sides))
        else:
            lengths = Lengths(*(x[visits.pairs] for x in self.store.lengths))
        return self.make_sampler(self.config, self.seed, lengths)

    def _expected(self, sampler: BatchSampler) -> Size:
        """The size that packed rows should not exceed: enough for the first updates. In most corpora a window fits after a few
        attempts to cut it again; in the others a larger size is chosen.
        """
        parts = [self._rows(sampler, piece) for piece in next(sampler.cuts(0, sampler.count(), 100))]
        return max(part.needed for part in self._in_order(parts, 0)[:_SAMPLE])

    def _preferred(self, sampler: BatchSampler, window: int, sizes: Sequence[Size]) -> list[_Rows]:
        """The first cut of a window that fits, or else the first."""
        fitting = self._first_fitting(sampler, window, sampler.count(), sizes) if sizes else None
        return fitting or [self._rows(sampler, piece) for piece in next(sampler.cuts(window, sampler.count(), 100))]

    def _fitting(self, sampler: BatchSampler, window: int) -> list[_Rows]:
        count = sampler.count()
        for more in range(_MORE_UPDATES):
            if parts := self._first_fitting(sampler, window, count + more, self.sizes):
                return parts
        todo, parts = next(sampler.cuts(window, count + _MORE_UPDATES, 100))[::-1], []
        while todo:  # of unusual lengths: updates that do not fit are halved
            piece = todo.pop()
            rows = self._rows(sampler, piece)
            if smallest_fitting(self.sizes, rows.needed) is not None:
                parts.append(rows)
            else:
                todo += np.array_split(piece, 2)[::-1]
        return parts

    def _first_fitting(
        self, sampler: BatchSampler, window: int, count: int, sizes: Sequence[Size]
    ) -> list[_Rows] | None:
        """The first of a few cuts whose pieces all fit; None if none does."""
        for pieces in sampler.cuts(window, count, _TRIES):
            parts = []
            for rows in (self._rows(sampler, piece) for piece in pieces):
                if smallest_fitting(sizes, rows.needed) is None:
                    break
                parts.append(rows)
            if len(parts) == len(pieces):
                return parts
        return None

    def _in_order(self, parts: list[_Rows], window: int) -> list[_Rows]:
        """In the order of training."""
        return [parts[i] for i in permutation(len(parts), key_of(self.seed, 5, 0, window))]

    def _rows(self, sampler: BatchSampler, pairs: np.ndarray) -> _Rows:
        source, target = (x[pairs] for x in sampler.lengths)
        if not self.packed:
            longest = max(int(source.max()), int(target.max()))
            return _Rows(pairs, np.arange(len(pairs)), (), (longest, len(pairs)))
        row, *starts = first_fit(source, target, self.config.pack_length)
        return _Rows(pairs, row, tuple(starts), (self.config.pack_length, int(row.max()) + 1))


def _window_layout(visits: Visits, parts: Sequence[_Rows], sides: tuple[Sentences, Sentences] | None) -> WindowLayout:
    order = np.concatenate([part.pairs for part in parts])
    row = np.concatenate([part.row for part in parts])
    starts = [np.concatenate(x) for x in zip(*(part.starts for part in parts), strict=True)] or [order[:0]] * 2
    ends = np.cumsum([len(part.pairs) for part in parts])
    needed = np.array([part.needed for part in parts])
    order, pairs, row, source_start, target_start = map(_small, (order, visits.pairs[order], row, *starts))
    return WindowLayout(order, pairs, row, source_start, target_start, ends, needed, sides)


def _small(x: np.ndarray) -> np.ndarray:
    """In the smallest unsigned integers that hold it."""
    return x.astype(np.min_scalar_type(int(x.max(initial=0))))


class Update(NamedTuple):
    """The pairs of an update, their store, and the epoch that they belong to."""

    store: TokenStore
    epoch: int
    layout: Layout


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
    windows, else estimated from the first. Raises UserError for a pair that does not fit into a row.
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
        self._lock, self._ahead = threading.Lock(), Ahead[WindowLayout]()
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
        sampled = math.ceil(a_pass) if a_pass <= _SHORT_PASS else bisect.bisect_left(self._ends, _SAMPLE) + 1
        sampled = min(sampled, len(self._ends))
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
            window, piece = self.locate(k)
            layout = self.window(window).update(piece)
        return Update(self.layouter.store, self.layouter.windows.epoch(window), layout)

    def locate(self, k: int) -> tuple[int, int]:
        """(window, which of its updates) of update k."""
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


def common_sizes(lists: Sequence[Sequence[Size]]) -> list[Size]:
    """One list for several: of rows of a length, as many as any needs, so that no program is compiled for each."""
    if len(lists) == 1:
        return list(lists[0])
    most: dict[int, int] = {}
    for length, rows in itertools.chain(*lists):
        most[length] = max(most.get(length, 0), rows)
    return sorted(most.items())


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
