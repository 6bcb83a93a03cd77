"""Layouts: how the pairs of each update are arranged in rows."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.batching.batch_sampler import BatchSampler, MakeSampler, Size, Slots, smallest_fitting
from t2t_flax.data.batching.packing import first_fit
from t2t_flax.data.token_store import TokenStore
from t2t_flax.errors import UserError
from t2t_flax.filesystem import atomic_write
from t2t_flax.json_file import parse_json

VERSION = 2
"""Of the algorithms in `data.batching` and `data.hashing`: counts of another version are not used."""
MIN_CACHED_PAIRS = 50_000
"""Pairs below which counting takes less than a second and is not cached."""
_SAMPLE = 64
_TRIES = 30


@dataclasses.dataclass(frozen=True)
class Layout:
    """The pairs of an update and their rows.

    `pairs`: indices into the store, [P]; `row` [P] and `starts`, where each pair begins in the row's source and target;
    `needed`: the smallest size that holds them.
    """

    pairs: np.ndarray
    row: np.ndarray
    starts: Sequence[np.ndarray | int]
    needed: Size


class Update(NamedTuple):
    """The pairs of an update, their store, and the epoch that they belong to."""

    store: TokenStore
    epoch: int
    layout: Layout


class Stream(Protocol):
    """Updates as a function of their number. parts: all layouts that it takes them from. updates_per_epoch: of the first
    epoch.
    """

    @property
    def parts(self) -> Sequence["Layouts"]: ...

    @property
    def updates_per_epoch(self) -> int: ...

    def update(self, k: int) -> Update:
        """Update k >= 0; the order of calls does not matter."""


class Layouts:
    """The layouts of every window of a corpus, in which each update fits into one of `sizes`; a `Stream`.

    sizes: the closed list, ascending. slots: the pairs of an epoch; None = each pair of the store once. Raises UserError for a
    pair that does not fit into a row.
    """

    def __init__(
        self,
        store: TokenStore,
        config: Data,
        seed: int,
        slots: Slots | None = None,
        make_sampler: MakeSampler = BatchSampler,
    ):
        self.store, self._packed, self._pack_length = store, config.batching == "packed", config.pack_length
        if self._packed and store.longest > config.pack_length:
            raise UserError(
                f"the longest side of a training pair has {store.longest} tokens, config.data.pack_length = "
                f"{config.pack_length}: a pair must fit into one packed row. Raise config.data.pack_length, or lower "
                "config.data.max_length."
            )
        self.sampler = make_sampler(store, config, seed, slots)
        self._cut = functools.lru_cache(maxsize=2)(self._lay_out_cut)
        self._window = functools.lru_cache(maxsize=2)(self._lay_out_window)
        keys = [VERSION, store.digest, seed, config.batching, config.batch_tokens, self.sampler.key]
        keys += [config.pack_length if self._packed else 0, slots.key if slots else None]
        counts = self._load_or_count(keys, slots.size if slots else store.num_pairs)
        self.sampler.counts, self._cuts = np.array(counts["updates"], np.int64), counts["cuts"]
        self.sizes: list[Size] = [(length, rows) for length, rows in counts["sizes"]]
        self.parts, self.updates_per_epoch = [self], self.sampler.updates_per_epoch

    def update(self, k: int) -> Update:
        epoch, window, piece = self.sampler.locate(k)
        return Update(self.store, epoch, self._window(epoch, window)[piece])

    def _load_or_count(self, keys: list[Any], pairs: int) -> dict[str, list]:
        """The counts of an earlier run with the same keys, cached beside the store, since counting reads all lengths and lays
        out one epoch. With them a run starts in the time that one window takes.
        """
        if pairs < MIN_CACHED_PAIRS:
            return self._count()
        name = hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:12]
        path = self.store.origin.with_name(f"{self.store.origin.name}.plan-{name}.json")
        with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
            counts = parse_json(path.read_text())
            windows = len(counts["updates"]) == len(counts["cuts"]) == self.sampler.windows
            if windows and min(counts["updates"]) > 0 and counts["sizes"]:
                return counts
        counts = self._count()
        with contextlib.suppress(OSError):  # a folder that another account prepared, without write permission
            atomic_write(path, json.dumps(counts))
        return counts

    def _count(self) -> dict[str, list]:
        """updates: of each window. cuts: which of the sampler's cuts epoch 0 uses for each. sizes: of the closed list. Lays out
        epoch 0, window by window, and chooses sizes that hold all of it.
        """
        expected = self._expected()
        cuts: list[int] = []
        needed: Counter[Size] = Counter()
        for window in range(self.sampler.windows):
            fitting = self._first_fitting(0, window, expected) if expected else None
            number, layouts = fitting or (0, self._cut(0, window, 0))
            cuts.append(number)
            needed.update(layout.needed for layout in layouts)
            if expected and not fitting:  # the size grows, so that later windows do not fail the same way
                expected = [max(layout.needed for layout in layouts)]
            self.store.release()
        return {"updates": self.sampler.counts.tolist(), "cuts": cuts, "sizes": self.sampler.sizes(needed, expected)}

    def _expected(self) -> list[Size]:
        """The size that packed rows should not exceed: enough for the first updates. In most corpora a window fits after a few
        attempts to cut it again; in the others a larger size is chosen.
        """
        if not self._packed or not self.sampler.alike:
            return []
        locations = map(self.sampler.locate, range(min(self.sampler.updates_per_epoch, _SAMPLE)))
        return [max(self._cut(epoch, window, 0)[piece].needed for epoch, window, piece in locations)]

    def _lay_out_window(self, epoch: int, window: int) -> list[Layout]:
        """The layout of each piece of a window.

        If none of the epoch's own cuts fits, the cut of epoch 0 is used, for which the sizes were counted.
        """
        fitting = self._first_fitting(epoch, window, self.sizes) if epoch else None
        return fitting[1] if fitting else self._cut(0, window, self._cuts[window])

    def _first_fitting(self, epoch: int, window: int, sizes: Sequence[Size]) -> tuple[int, list[Layout]] | None:
        """(number, layouts) of the first of a few cuts whose pieces all fit; None if none does."""
        for number, pieces in enumerate(itertools.islice(self.sampler.cuts(epoch, window), _TRIES)):
            layouts = []
            for layout in map(self._lay_out, pieces):
                if smallest_fitting(sizes, layout.needed) is None:
                    break
                layouts.append(layout)
            if len(layouts) == len(pieces):
                return number, layouts
        return None

    def _lay_out_cut(self, epoch: int, window: int, number: int) -> list[Layout]:
        return [*map(self._lay_out, next(itertools.islice(self.sampler.cuts(epoch, window), number, None)))]

    def _lay_out(self, pairs: np.ndarray) -> Layout:
        source, target = (x[pairs] for x in self.store.lengths)
        if not self._packed:
            return Layout(pairs, np.arange(len(pairs)), (0, 0), (max(int(source.max()), int(target.max())), len(pairs)))
        row, *starts = (x.astype(np.int32) for x in first_fit(source, target, self._pack_length))
        return Layout(pairs, row, starts, (self._pack_length, int(row.max()) + 1))


SlotsOf = Callable[[TokenStore], Slots | None]
MakeStream = Callable[[Sequence[TokenStore], Data, int, SlotsOf | None], Stream]
"""(the stores of the training pairs, config.data, seed, the slots of a store's epoch if not each pair once) -> stream."""


def plain_stream(
    stores: Sequence[TokenStore],
    config: Data,
    seed: int,
    slots_of: SlotsOf | None = None,
    make_sampler: MakeSampler = BatchSampler,
) -> Layouts:
    """Epochs of a single store; a `MakeStream`."""
    (store,) = stores
    return Layouts(store, config, seed, slots_of(store) if slots_of else None, make_sampler)
