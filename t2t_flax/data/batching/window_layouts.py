"""Layouts: how the pairs of each update of a window are arranged in rows; computed by any process."""

import contextlib
import dataclasses
import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.batching.batch_sampler import BatchSampler, Lengths, MakeSampler, Pieces, Size, smallest_fitting
from t2t_flax.data.batching.packing import first_fit
from t2t_flax.data.batching.streams import Visits, Windows
from t2t_flax.data.hashing import key_of, permutation
from t2t_flax.data.stored_ids import Sentences
from t2t_flax.data.token_store import TokenStore

VERSION = 6
"""Version of `data.batching` and `data.hashing`; plans of another version are not used."""
SAMPLE, SAMPLED_WINDOWS = 64, 4
"""Updates that are enough for a sample, from which sizes are chosen, and the most windows in it: a pass of no more is sampled
whole, unless pairs are drawn, which takes long and gives each pass other lengths.
"""
_TRIES, _MORE_UPDATES = 10, 3
_LESS_FULL = 0.001
"""Part of the rows by which an update may need more of them than another with as many tokens."""


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


class WindowLayout(NamedTuple):
    """The rows of all updates of a window, in the order of training.

    Of each pair, int64 [P]: order, its index among the window's visits; pairs, in the store; its row; source_start and
    target_start, where it begins in the row's source and target. Of each update: ends [U], where it ends in these arrays;
    needed [U, 2], the smallest size that holds it. sides: the sentences of the visits.
    """

    order: np.ndarray
    pairs: np.ndarray
    row: np.ndarray
    source_start: np.ndarray
    target_start: np.ndarray
    ends: np.ndarray
    needed: np.ndarray
    sides: tuple[Sentences, Sentences]

    @property
    def updates(self) -> int:
        return len(self.ends)

    def visits_from(self, update: int) -> np.ndarray:
        """Return the window's visits from this update on, int64."""
        return self.order[int(self.ends[update - 1]) if update else 0 :]

    def size(self, update: int) -> Size:
        """The smallest size that holds an update."""
        length, rows = map(int, self.needed[update])
        return length, rows

    def rows(self, update: int) -> tuple[np.ndarray, ...]:
        """(index, pairs, row, source_start, target_start) of an update, see `batches.Batch`."""
        here = slice(int(self.ends[update - 1]) if update else 0, int(self.ends[update]))
        return tuple(x[here] for x in (self.order, self.pairs, self.row, self.source_start, self.target_start))


class _Rows(NamedTuple):
    """Rows of a piece of a window, see `WindowLayout`. pairs: indices into the window's visits."""

    pairs: np.ndarray
    row: np.ndarray
    source_start: np.ndarray
    target_start: np.ndarray
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
        """Inputs of the layouts, as JSON; `sizes` follow from them."""
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

    def sampled_windows(self, counts: Sequence[int]) -> int:
        """How many windows are in the sample, by the updates of the first windows."""
        a_pass = self.windows.a_pass
        most = math.ceil(a_pass) if a_pass <= SAMPLED_WINDOWS else SAMPLED_WINDOWS
        if a_pass <= SAMPLED_WINDOWS and not self.draw:
            return most
        enough = (number for number, updates in enumerate(itertools.accumulate(counts), 1) if updates >= SAMPLE)
        return min(next(enough, most), most)

    def lay_out(self, window: int) -> WindowLayout:
        """A window in the fewest updates of which each fits into one of the sizes, after a few attempts to cut it."""
        visits, sides, sampler = self._read(window)
        *arrays, needed = zip(*self._in_order(self._fitting(sampler, window), window), strict=True)
        ends = np.cumsum([len(piece) for piece in arrays[0]])
        order, row, source_start, target_start = map(np.concatenate, arrays)
        pairs = visits.pairs[order]
        return WindowLayout(order, pairs, row, source_start, target_start, ends, np.array(needed), sides)

    def sample(self) -> tuple[tuple[Size, ...], list[int]]:
        """(the closed list of sizes, the updates of each of the first windows, from which they were chosen). These are a whole
        pass if it has only a few.
        """
        needed: Counter[Size] = Counter()
        expected: list[Size] = []
        counts: list[int] = []
        while len(counts) < self.sampled_windows(counts):
            window = len(counts)
            _, _, sampler = self._read(window)
            cuts = sampler.cuts(window, sampler.count(), _TRIES)  # those that `lay_out` tries
            parts = self._in_order([self._rows(sampler, piece) for piece in next(cuts)], window)
            if not counts:
                room = self._room(sampler.lengths)
                if self.packed and sampler.alike:
                    # Enough for the first updates. In most corpora a window fits after a few attempts to cut it again; in the
                    # others a larger size is chosen.
                    expected = [max(part.needed for part in parts[:SAMPLE])]
            if expected:
                if not all(self._fits(part, expected) for part in parts):
                    parts = self._first_fitting(sampler, cuts, expected) or parts
                # It grows, so that later windows do not fail the same way.
                expected = [max(*expected, *(part.needed for part in parts))]
            counts.append(len(parts))
            needed.update(part.needed for part in parts)
        expected = [(length, int(room * rows)) for length, rows in expected]
        return tuple(self.rules.sizes(needed, expected, self.longest)), counts

    def _read(self, window: int) -> tuple[Visits, tuple[Sentences, Sentences], BatchSampler]:
        visits = self.windows.visits(window)
        sides = self.draw(visits) if self.draw else self.store.sentences(visits.pairs)
        lengths = Lengths(*(side.lengths for side in sides))
        return visits, sides, self.make_sampler(self.config, self.seed, lengths)

    def _room(self, lengths: Lengths) -> float:
        """Rows of packed updates relative to the most in the sample. The updates of a window of large ones are equally full, so
        that a window with more tokens than those of the sample does not fit, however it is cut: there is room for one standard
        deviation of the tokens of a window. Windows of whole passes all have the same.
        """
        varies = math.sqrt(max(0.0, 1 - float(1 / self.windows.a_pass)) / len(lengths.source))
        return 1 + _LESS_FULL + varies * max(float(x.std()) / float(x.mean()) for x in lengths)

    def _fitting(self, sampler: BatchSampler, window: int) -> list[_Rows]:
        count = sampler.count()
        for more in range(_MORE_UPDATES):
            cuts = sampler.cuts(window, count + more, _TRIES)
            if parts := self._first_fitting(sampler, cuts, self.sizes):
                return parts
        todo, parts = next(sampler.cuts(window, count + _MORE_UPDATES, 100))[::-1], []
        while todo:  # of unusual lengths: updates that do not fit are halved
            piece = todo.pop()
            rows = self._rows(sampler, piece)
            if self._fits(rows, self.sizes):
                parts.append(rows)
            else:
                todo += np.array_split(piece, 2)[::-1]
        return parts

    def _first_fitting(
        self, sampler: BatchSampler, cuts: Iterable[Pieces], sizes: Sequence[Size]
    ) -> list[_Rows] | None:
        """The first cut whose pieces all fit; None if none does."""
        for pieces in cuts:
            laid_out = (self._rows(sampler, piece) for piece in pieces)
            parts = list(itertools.takewhile(lambda rows: self._fits(rows, sizes), laid_out))
            if len(parts) == len(pieces):
                return parts
        return None

    def _fits(self, rows: _Rows, sizes: Sequence[Size]) -> bool:
        return smallest_fitting(sizes, rows.needed) is not None

    def _in_order(self, parts: list[_Rows], window: int) -> list[_Rows]:
        """In the order of training."""
        return [parts[i] for i in permutation(len(parts), key_of(self.seed, 5, 0, window))]

    def _rows(self, sampler: BatchSampler, pairs: np.ndarray) -> _Rows:
        source, target = (x[pairs] for x in sampler.lengths)
        if not self.packed:
            longest = max(int(source.max()), int(target.max()))
            row = np.arange(len(pairs))
            return _Rows(pairs, row, 0 * row, 0 * row, (longest, len(pairs)))
        row, source_start, target_start = first_fit(source, target, self.config.pack_length)
        return _Rows(pairs, row, source_start, target_start, (self.config.pack_length, int(row.max()) + 1))


class Ahead:
    """Lays out windows when they are needed; an extension lays them out ahead, see `registry.AHEAD`. seconds: CPU seconds
    for each update that the layout of the last window took.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def in_processes(self, most: int) -> Iterator[None]:
        """Within the block, windows that follow may be laid out in up to `most` processes while one is used."""
        yield

    def window(self, layouter: Layouter, number: int) -> WindowLayout:
        """A window of `layouter`. Called in one thread at a time."""
        window, seconds = timed(layouter, number)
        self.seconds = seconds / window.updates
        return window


def timed(layouter: Layouter, number: int) -> tuple[WindowLayout, float]:
    """A window, and the CPU seconds that its layout took."""
    began = time.thread_time()
    return layouter.lay_out(number), time.thread_time() - began
