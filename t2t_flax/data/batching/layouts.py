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
from t2t_flax.data.batching.batch_sampler import (
    BatchSampler,
    PaddedBatchSampler,
    Size,
    Slots,
    closed_list,
    smallest_fitting,
)
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


class UpdateCounts(NamedTuple):
    """`updates` and `cuts`, int64 [windows]: the updates of each window, and which of the sampler's cuts epoch 0 uses;
    `sizes`: the closed list, ascending; every update of epoch 0 fits into one of them.
    """

    updates: np.ndarray
    cuts: np.ndarray
    sizes: list[Size]


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

    def forget(self) -> None:
        """Frees what the next updates will not need; it is computed again where it is."""


class Layouts:
    """The layouts of every window of a corpus, in which each update fits into one of `counts.sizes`; a `Stream`.

    slots: the pairs of an epoch; None = each pair of the store once. Raises UserError for a pair that does not fit into a row.
    """

    def __init__(self, store: TokenStore, config: Data, seed: int, slots: Slots | None = None):
        self.store, self._config = store, config
        self._packed = config.batching == "packed"
        self.sampler = make_sampler(store, config, seed, slots)
        self._preferred = functools.lru_cache(maxsize=2)(lambda epoch, window: self._cut(epoch, window, 0))
        self.counts = self._load_or_count(seed, slots)
        self.sampler.counts = self.counts.updates
        self.parts, self.updates_per_epoch = [self], self.sampler.updates_per_epoch
        self._of = functools.lru_cache(maxsize=2)(self._lay_out_window)

    def update(self, k: int) -> Update:
        epoch, window, piece = self.sampler.locate(k)
        return Update(self.store, epoch, self._of(epoch, window)[piece])

    def forget(self) -> None:
        self._preferred.cache_clear()
        self._of.cache_clear()

    def _load_or_count(self, seed: int, slots: Slots | None) -> UpdateCounts:
        """The counts of an earlier run with the same keys, cached beside the store, since counting reads all lengths and lays
        out one epoch. With them a run starts in the time that one window takes.
        """
        store, c = self.store, self._config
        if (slots.size if slots else store.num_pairs) < MIN_CACHED_PAIRS:
            return self._count()
        keys = [VERSION, store.digest, seed, c.batching, c.batch_tokens, c.batch_size_counts, c.batch_groups]
        keys += [c.pack_length] if self._packed else []
        keys += [slots.key] if slots else []
        name = hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:12]
        path = store.origin.with_name(f"{store.origin.name}.plan-{name}.json")
        try:
            cached = _counts_of(parse_json(path.read_text()))
            if cached.updates.shape == cached.cuts.shape == (self.sampler.windows,) and (cached.updates > 0).all():
                return cached
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            pass
        counts = self._count()
        with contextlib.suppress(OSError):  # a folder that another account prepared, without write permission
            lists = {"updates": counts.updates.tolist(), "cuts": counts.cuts.tolist(), "sizes": counts.sizes}
            atomic_write(path, json.dumps(lists))
        return counts

    def _count(self) -> UpdateCounts:
        """Lays out epoch 0, window by window, and chooses sizes that hold all of it."""
        expected = self._expected()
        cuts: list[int] = []
        needed: Counter[Size] = Counter()
        for window in range(self.sampler.windows):
            fitting = self._first_fitting(0, window, expected) if expected else None
            number, layouts = fitting or (0, self._preferred(0, window))
            cuts.append(number)
            needed.update(layout.needed for layout in layouts)
            if expected and not fitting:  # the size grows, so that later windows do not fail the same way
                expected = [max(layout.needed for layout in layouts)]
            self.store.release()
        return UpdateCounts(self.sampler.counts, np.array(cuts), closed_list(self._config, needed, expected))

    def _expected(self) -> list[Size]:
        """The size that packed rows of real tokens should not exceed: enough for the first updates. In most corpora a
        window fits after a few attempts to cut it again; in the others a larger size is chosen.
        """
        if not self._packed or self._config.batch_size_counts != "real_tokens":
            return []
        locations = map(self.sampler.locate, range(min(self.sampler.updates_per_epoch, _SAMPLE)))
        return [max(self._preferred(epoch, window)[piece].needed for epoch, window, piece in locations)]

    def _lay_out_window(self, epoch: int, window: int) -> list[Layout]:
        """The layout of each piece of a window.

        If none of the epoch's own cuts fits, the cut of epoch 0 is used, for which the sizes were counted.
        """
        fitting = self._first_fitting(epoch, window, self.counts.sizes) if epoch else None
        return fitting[1] if fitting else self._cut(0, window, int(self.counts.cuts[window]))

    def _first_fitting(self, epoch: int, window: int, sizes: Sequence[Size]) -> tuple[int, list[Layout]] | None:
        """(number, layouts) of the first of a few cuts whose pieces all fit; None if none does."""
        for number, pieces in enumerate(itertools.islice(self.sampler.cuts(epoch, window), _TRIES)):
            first = self._preferred(epoch, window) if number == 0 else None
            layouts = []
            for layout in first or map(self._lay_out, pieces):
                if smallest_fitting(sizes, layout.needed) is None:
                    break
                layouts.append(layout)
            if len(layouts) == len(pieces):
                return number, layouts
        return None

    def _cut(self, epoch: int, window: int, number: int) -> list[Layout]:
        return [*map(self._lay_out, next(itertools.islice(self.sampler.cuts(epoch, window), number, None)))]

    def _lay_out(self, pairs: np.ndarray) -> Layout:
        source, target = (x[pairs] for x in self.store.lengths)
        if not self._packed:
            return Layout(pairs, np.arange(len(pairs)), (0, 0), (max(int(source.max()), int(target.max())), len(pairs)))
        row, *starts = (x.astype(np.int32) for x in first_fit(source, target, self._config.pack_length))
        return Layout(pairs, row, starts, (self._config.pack_length, int(row.max()) + 1))


def _counts_of(values: dict) -> UpdateCounts:
    """Of cached JSON values. Raises ValueError for no sizes."""
    sizes = [(int(length), int(rows)) for length, rows in values["sizes"]]
    if not sizes:
        raise ValueError("no sizes")
    return UpdateCounts(np.array(values["updates"], np.int64), np.array(values["cuts"], np.int64), sizes)


SlotsOf = Callable[[TokenStore], Slots | None]
MakeStream = Callable[[Sequence[TokenStore], Data, int, SlotsOf | None], Stream]
"""(the stores of the training pairs, config.data, seed, the slots of a store's epoch if not each pair once) -> stream."""


def plain_stream(stores: Sequence[TokenStore], config: Data, seed: int, slots_of: SlotsOf | None = None) -> Layouts:
    """Epochs of a single store, a `MakeStream`."""
    (store,) = stores
    return Layouts(store, config, seed, slots_of(store) if slots_of else None)


def make_sampler(store: TokenStore, config: Data, seed: int, slots: Slots | None = None) -> BatchSampler:
    """The sampler of a store's updates. Raises UserError for a pair that does not fit into a row."""
    if config.batching == "packed" and store.longest > config.pack_length:
        raise UserError(
            f"the longest side of a training pair has {store.longest} tokens, config.data.pack_length = "
            f"{config.pack_length}: a pair must fit into one packed row. Raise config.data.pack_length, or lower "
            "config.data.max_length."
        )
    settings: dict[str, Any] = dict(
        batch_tokens=config.batch_tokens, seed=seed, mean_length=store.mean_length, slots=slots
    )
    if config.batch_size_counts == "padded_tokens":
        return PaddedBatchSampler(*store.lengths, groups=config.batch_groups, **settings)
    return BatchSampler(*store.lengths, by_length=config.batching == "buckets", **settings)
