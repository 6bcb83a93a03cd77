"""How the updates of a window lie in rows, here or in processes that work ahead."""

import dataclasses
import functools
import itertools
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data import worker_pool as workers
from t2t_flax.data.batching import count_cache as plan_file
from t2t_flax.data.batching.batch_sampler import Plan
from t2t_flax.data.batching.count_cache import Counted
from t2t_flax.data.batching.first_fit import first_fit
from t2t_flax.data.batching.padded_sampler import PaddedPlan
from t2t_flax.data.batching.shape_list import Size, closed_list, smallest_that_holds
from t2t_flax.data.store.token_store import TokenStore
from t2t_flax.errors import UserError

_SAMPLE = 64
_TRIES = 30


@dataclasses.dataclass(frozen=True)
class Layout:
    """The pairs of an update and where they go.

    `pairs`: indices into the store, [P]; `row` [P] and `starts`, where each pair begins in the row's source and target;
    `needed`: the least size that holds them.
    """

    pairs: np.ndarray
    row: np.ndarray
    starts: Sequence[np.ndarray | int]
    needed: Size


class Layouts:
    """The layouts of every window of a corpus, in which each update fits into one of `counted.sizes`.

    `counted`: of an equal store and config, where it is known. Raises UserError where a pair does not fit.
    """

    def __init__(self, store: TokenStore, config: Data, seed: int, counted: Counted | None = None):
        self._store, self._config = store, config
        self._packed = config.batching == "packed"
        self.plan = plan_of(store, config, seed)
        self._preferred = functools.lru_cache(maxsize=2)(lambda epoch, window: self._cut(epoch, window, 0))
        self.counted = counted or plan_file.counted(store, config, seed, self.plan.windows, self._count)
        self.plan.counts = self.counted.updates
        self.of = functools.lru_cache(maxsize=2)(self._of)

    def size_of(self, needed: Size) -> int:
        """Which of `counted.sizes` is for an update that needs this."""
        return smallest_that_holds(self.counted.sizes, needed)

    def release(self) -> None:
        """Takes the pages of the store out of this process's memory."""
        self._store.release()

    def _count(self) -> Counted:
        """Lays out epoch 0, window by window, and chooses sizes that hold all of it."""
        expected = self._expected()
        cuts, needed = [], Counter()
        for window in range(self.plan.windows):
            found = self._first_that_fits(0, window, expected) if expected else None
            number, made = found or (0, self._preferred(0, window))
            cuts.append(number)
            needed.update(layout.needed for layout in made)
            if expected and not found:  # it grows, so that the windows that follow are not tried in vain
                expected = [max(layout.needed for layout in made)]
            self.release()
        return Counted(self.plan.counts, np.array(cuts), closed_list(self._config, needed, expected))

    def _expected(self) -> list[Size]:
        """The size that packed rows of real tokens should keep to: what suffices for the first updates. Windows that are
        cut again until they fit take a few tries in most corpora, and in the others a larger size than this.
        """
        if not self._packed or self._config.batch_size_counts != "real_tokens":
            return []
        places = map(self.plan.place, range(min(self.plan.updates_per_epoch, _SAMPLE)))
        return [max(self._preferred(epoch, window)[piece].needed for epoch, window, piece in places)]

    def _of(self, epoch: int, window: int) -> list[Layout]:
        """The layout of each piece of a window.

        An epoch that finds no cut of its own which fits takes that of epoch 0, for which the sizes were counted.
        """
        fits = self._first_that_fits(epoch, window, self.counted.sizes) if epoch else None
        return fits[1] if fits else self._cut(0, window, int(self.counted.cuts[window]))

    def _first_that_fits(self, epoch: int, window: int, sizes: Sequence[Size]) -> tuple[int, list[Layout]] | None:
        """The first cut, of a few, whose pieces all fit: its number, and its layouts. None where there is none."""
        for number, pieces in enumerate(itertools.islice(self.plan.cuts(epoch, window), _TRIES)):
            found = map(self._lay_out, pieces) if number else self._preferred(epoch, window)
            fitting = lambda layout: smallest_that_holds(sizes, layout.needed) is not None  # noqa: E731
            made = list(itertools.takewhile(fitting, found))
            if len(made) == len(pieces):
                return number, made
        return None

    def _cut(self, epoch: int, window: int, number: int) -> list[Layout]:
        return [*map(self._lay_out, next(itertools.islice(self.plan.cuts(epoch, window), number, None)))]

    def _lay_out(self, pairs: np.ndarray) -> Layout:
        lengths = [x[pairs] for x in self._store.lengths]
        if not self._packed:
            return Layout(pairs, np.arange(len(pairs)), (0, 0), (max(int(x.max()) for x in lengths), len(pairs)))
        row, *starts = (x.astype(np.int32) for x in first_fit(*lengths, self._config.pack_length))
        return Layout(pairs, row, starts, (self._config.pack_length, int(row.max()) + 1))


class LayoutsAhead:
    """Context that lays out the windows that come next in `config.batch_processes` processes, in the order of the plan."""

    def __init__(self, store: TokenStore, config: Data, layouts: Layouts, seed: int):
        self._plan, self._processes = layouts.plan, config.batch_processes
        self._pool = workers.pool(self._processes, _start_worker, store.folder, config, seed, layouts.counted)
        self._waiting: deque = deque()
        self._place: tuple[int, int] | None = None
        self._made: list[Layout] = []

    def __enter__(self) -> "LayoutsAhead":
        return self

    def __exit__(self, *error) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def of(self, epoch: int, window: int) -> list[Layout]:
        """The layout of each piece of a window. Raises UserError where a process is gone."""
        if self._place != (epoch, window):
            instead = "set config.data.batch_processes = 0 to make batches in this process alone"
            with workers.lost("makes batches", instead):
                if not self._waiting or self._waiting[0][0] != (epoch, window):
                    self._coming = self._plan.windows_from(epoch, window)
                    self._waiting.clear()
                while len(self._waiting) <= self._processes:
                    place = next(self._coming)
                    self._waiting.append((place, self._pool.submit(_work, *place)))
                self._place, future = self._waiting.popleft()
                self._made = future.result()
        return self._made


_worker_layouts: Layouts


def _start_worker(folder: Path, config: Data, seed: int, counted: Counted) -> None:
    global _worker_layouts
    _worker_layouts = Layouts(TokenStore.open(folder), config, seed, counted)


def _work(epoch: int, window: int) -> list[Layout]:
    made = _worker_layouts.of(epoch, window)
    _worker_layouts.release()
    return made


def plan_of(store: TokenStore, config: Data, seed: int) -> Plan:
    """The plan of a store's updates. Raises UserError where a pair does not fit into a row."""
    if config.batching == "packed" and store.longest > config.pack_length:
        raise UserError(
            f"the longest side of a training pair has {store.longest} tokens, config.data.pack_length = "
            f"{config.pack_length}: a pair must fit into one packed row. Raise config.data.pack_length, or lower "
            "config.data.max_length."
        )
    given = dict(batch_tokens=config.batch_tokens, seed=seed, mean_length=store.mean_length)
    if config.batch_size_counts == "padded_tokens":
        return PaddedPlan(*store.lengths, groups=config.batch_groups, **given)
    return Plan(*store.lengths, by_length=config.batching == "buckets", **given)
