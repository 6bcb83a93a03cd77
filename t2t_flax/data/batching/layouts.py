"""Layouts: how the pairs of each update are arranged in rows."""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.batching.batch_sampler import BatchSampler
from t2t_flax.data.batching.count_cache import UpdateCounts, load_or_count
from t2t_flax.data.batching.mixture import Mixture, mixtures
from t2t_flax.data.batching.packing import first_fit
from t2t_flax.data.batching.padded_sampler import PaddedBatchSampler
from t2t_flax.data.batching.shape_list import Size, closed_list, smallest_fitting
from t2t_flax.data.hashing import key_of
from t2t_flax.data.store.token_store import TokenStore
from t2t_flax.errors import UserError

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


class Layouts:
    """The layouts of every window of a corpus, in which each update fits into one of `counts.sizes`.

    Raises UserError for a pair that does not fit into a row.
    """

    def __init__(self, store: TokenStore, config: Data, seed: int, mixture: Mixture | None = None):
        self._store, self._config = store, config
        self._packed = config.batching == "packed"
        self.sampler = make_sampler(store, config, seed, mixture)
        self._preferred = functools.lru_cache(maxsize=2)(lambda epoch, window: self._cut(epoch, window, 0))
        self.counts = load_or_count(store, config, seed, self.sampler.windows, self._count, mixture)
        self.sampler.counts = self.counts.updates
        self.of = functools.lru_cache(maxsize=2)(self._of)

    def forget(self) -> None:
        """Frees the windows that are laid out; they are laid out again where they are needed."""
        self._preferred.cache_clear()
        self.of.cache_clear()

    def _count(self) -> UpdateCounts:
        """Lays out epoch 0, window by window, and chooses sizes that hold all of it."""
        expected = self._expected()
        cuts, needed = [], Counter()
        for window in range(self.sampler.windows):
            fitting = self._first_fitting(0, window, expected) if expected else None
            number, layouts = fitting or (0, self._preferred(0, window))
            cuts.append(number)
            needed.update(layout.needed for layout in layouts)
            if expected and not fitting:  # the size grows, so that later windows do not fail the same way
                expected = [max(layout.needed for layout in layouts)]
            self._store.release()
        return UpdateCounts(self.sampler.counts, np.array(cuts), closed_list(self._config, needed, expected))

    def _expected(self) -> list[Size]:
        """The size that packed rows of real tokens should not exceed: enough for the first updates. In most corpora a
        window fits after a few attempts to cut it again; in the others a larger size is chosen.
        """
        if not self._packed or self._config.batch_size_counts != "real_tokens":
            return []
        locations = map(self.sampler.locate, range(min(self.sampler.updates_per_epoch, _SAMPLE)))
        return [max(self._preferred(epoch, window)[piece].needed for epoch, window, piece in locations)]

    def _of(self, epoch: int, window: int) -> list[Layout]:
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
        lengths = [x[pairs] for x in self._store.lengths]
        if not self._packed:
            return Layout(pairs, np.arange(len(pairs)), (0, 0), (max(int(x.max()) for x in lengths), len(pairs)))
        row, *starts = (x.astype(np.int32) for x in first_fit(*lengths, self._config.pack_length))
        return Layout(pairs, row, starts, (self._config.pack_length, int(row.max()) + 1))


def phase_layouts(store: TokenStore, config: Data, seed: int) -> dict[int, Layouts]:
    """The layouts of each phase of data.mixture by its first update; a single phase without a mixture."""
    return {
        start: Layouts(store, config, key_of(seed, 7, phase) if phase else seed, mixture)
        for phase, (start, mixture) in enumerate(mixtures(store, config))
    }


def make_sampler(store: TokenStore, config: Data, seed: int, mixture: Mixture | None = None) -> BatchSampler:
    """The sampler of a store's updates. Raises UserError for a pair that does not fit into a row."""
    if config.batching == "packed" and store.longest > config.pack_length:
        raise UserError(
            f"the longest side of a training pair has {store.longest} tokens, config.data.pack_length = "
            f"{config.pack_length}: a pair must fit into one packed row. Raise config.data.pack_length, or lower "
            "config.data.max_length."
        )
    settings = dict(batch_tokens=config.batch_tokens, seed=seed, mean_length=store.mean_length, mixture=mixture)
    if config.batch_size_counts == "padded_tokens":
        return PaddedBatchSampler(*store.lengths, groups=config.batch_groups, **settings)
    return BatchSampler(*store.lengths, by_length=config.batching == "buckets", **settings)
