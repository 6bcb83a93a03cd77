"""How the updates of a window lie in rows, here or in processes that work ahead."""

import dataclasses
import functools
import itertools
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data import workers
from t2t_flax.data.first_fit import first_fit
from t2t_flax.data.padded_plan import PaddedPlan
from t2t_flax.data.plan import Plan
from t2t_flax.data.plan_file import counts_of
from t2t_flax.data.store import TokenStore
from t2t_flax.errors import UserError

Size = tuple[int, int]
"""(length of a row, rows)."""


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
    """The layouts of every window of a plan, such that each finds its size in `sizes`, the ascending closed list."""

    def __init__(self, store: TokenStore, config: Data, plan: Plan, sizes: Sequence[Size] = ()):
        self._store, self._config, self._plan, self.sizes = store, config, plan, sizes
        self._packed = config.batching == "packed"
        self._preferred = functools.lru_cache(maxsize=2)(self._lay_out_preferred)
        self.of = functools.lru_cache(maxsize=2)(self._of)

    def needed(self, k: int) -> Size:
        """The size that update k needs, where its window is cut as the plan prefers."""
        epoch, window, piece = self._plan.place(k)
        return self._preferred(epoch, window)[piece].needed

    def size_of(self, needed: Size) -> int | None:
        """Which entry of the closed list is for an update that needs this; None where there is none."""
        length, rows = needed
        if not self._packed:  # the bucket of their length, or none: a longer one would be mostly padding
            at = next(i for i, (edge, _) in enumerate(self.sizes) if edge >= length)
            return at if self.sizes[at][1] >= rows else None
        return next((i for i, (_, enough) in enumerate(self.sizes) if enough >= rows), None)

    def release(self) -> None:
        """Takes the pages of the store out of this process's memory."""
        self._store.release()

    def _of(self, epoch: int, window: int) -> list[Layout]:
        """The layout of each piece of a window: the first way to cut it whose pieces all fit."""
        for number, pieces in enumerate(self._plan.cuts(epoch, window)):
            found = map(self._lay_out, pieces) if number else self._preferred(epoch, window)
            made = list(itertools.takewhile(lambda layout: self.size_of(layout.needed) is not None, found))
            if len(made) == len(pieces):
                return made
        raise AssertionError("cuts() raises where none is left")

    def _lay_out_preferred(self, epoch: int, window: int) -> list[Layout]:
        return [*map(self._lay_out, next(self._plan.cuts(epoch, window)))]

    def _lay_out(self, pairs: np.ndarray) -> Layout:
        lengths = [x[pairs] for x in self._store.lengths]
        if not self._packed:
            return Layout(pairs, np.arange(len(pairs)), (0, 0), (max(int(x.max()) for x in lengths), len(pairs)))
        row, *starts = (x.astype(np.int32) for x in first_fit(*lengths, self._config.row_length))
        return Layout(pairs, row, starts, (self._config.row_length, int(row.max()) + 1))


class LayoutsAhead:
    """Context that lays out the windows that come next in `config.batch_processes` processes, in the order of the plan."""

    def __init__(self, store: TokenStore, config: Data, plan: Plan, sizes: Sequence[Size], seed: int):
        self._plan, self._processes = plan, config.batch_processes
        self._pool = workers.pool(self._processes, _start_worker, store.folder, config, plan.counts, sizes, seed)
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


def _start_worker(folder: Path, config: Data, counts: np.ndarray, sizes: Sequence[Size], seed: int) -> None:
    global _worker_layouts
    store = TokenStore.open(folder)
    _worker_layouts = Layouts(store, config, plan_of(store, config, seed, counts), sizes)


def _work(epoch: int, window: int) -> list[Layout]:
    made = _worker_layouts.of(epoch, window)
    _worker_layouts.release()
    return made


def plan_of(store: TokenStore, config: Data, seed: int, counts: np.ndarray | None = None) -> Plan:
    """The plan of a store's updates; what takes a reading of all lengths, `counts`, is kept beside the store for the next
    start.

    Raises UserError where a pair does not fit.
    """
    if config.batching == "packed" and store.longest > config.row_length:
        raise UserError(
            f"the longest side of a training pair has {store.longest} tokens, config.data.row_length = "
            f"{config.row_length}: a pair must fit into one packed row. Raise config.data.row_length, or lower "
            "config.data.max_length."
        )
    count = functools.partial(counts_of, store, config, seed)
    given = dict(
        batch_tokens=config.batch_tokens,
        seed=seed,
        mean_length=store.mean_length,
        counts_by=count if counts is None else lambda *_: counts,
    )
    if config.batch_count == "padded_max":
        return PaddedPlan(*store.lengths, groups=config.batch_groups, **given)
    return Plan(*store.lengths, by_length=config.batching == "buckets", **given)
