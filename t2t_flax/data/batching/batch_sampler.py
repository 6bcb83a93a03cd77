"""Assigns pairs to updates: a pure function of (lengths, config, seed, k).

The corpus is divided, by a seeded bijection of its indices, into windows of fixed membership. Every epoch visits all
windows in a new order and cuts each window, in a new order of its pairs, into a number of updates that is known before
training starts. So update k is computed in O(window), nothing is stored, and there is no iterator state to save.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.hashing import bijection, hashes, key_of, permutation
from t2t_flax.data.token_store import TokenStore
from t2t_flax.errors import UserError

WINDOW_PAIRS = 65536
WINDOW_UPDATES = 64
_REFERENCE_ORDERS = 2
_ATTEMPTS = 100
_SLOTS = 2
"""An update of pairs of similar length takes at most this many times batch_tokens slots, padding included."""

Size = tuple[int, int]
"""(length of a row, rows)."""
Pieces = list[np.ndarray]
"""The pairs (indices into the store) of each update of a window, in the order in which they are laid out."""


class Location(NamedTuple):
    """An update: piece `piece` of window `window`, as cut in `epoch`."""

    epoch: int
    window: int
    piece: int


class Slots(Protocol):
    """The pairs of an epoch, some of them perhaps several times, others not at all. key: what they depend on, as JSON."""

    size: int
    key: Any

    def pairs_at(self, slots: np.ndarray) -> np.ndarray:
        """The pairs (int64 indices into the store) of slots from 0 to size - 1."""


class BatchSampler:
    """Update k of a store as a function of k.

    Each update holds at most data.batch_tokens real tokens of each side. With data.batching = buckets it holds pairs of similar
    length (5.1), so that with one pair in a row it has at most twice as many slots as data.batch_tokens. slots: the pairs of an
    epoch; without them, each pair once.
    """

    key: tuple = ()
    """What the updates depend on beside the arguments, as JSON."""
    alike = True
    """Whether packed updates need about the same number of rows, so that all get one size."""
    room = 1.05
    """Rows of a bucket relative to the maximum of epoch 0: later epochs break ties differently and cut the pairs elsewhere."""

    def __init__(self, store: TokenStore, config: Data, seed: int, slots: Slots | None = None):
        self.source_lengths, self.target_lengths = store.lengths
        self.config, self.seed, self._slots = config, seed, slots
        self._by_length = config.batching == "buckets"
        self._size = slots.size if slots else store.num_pairs
        pairs = int(WINDOW_UPDATES * config.batch_tokens / store.mean_length)
        self.windows = max(1, round(self._size / max(WINDOW_PAIRS, pairs)))
        self._bounds = np.linspace(0, self._size, self.windows + 1).astype(np.int64)

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """Updates of each window, int64 [windows]. Counting reads all lengths; cached counts are assigned instead."""
        return np.array([self.count(window) for window in range(self.windows)])

    @functools.cached_property
    def updates_per_epoch(self) -> int:
        return int(self.counts.sum())

    def locate(self, k: int) -> Location:
        """The location of update k >= 0."""
        epoch, offset = divmod(k, self.updates_per_epoch)
        order = permutation(self.windows, key_of(self.seed, 1, epoch))
        ends = np.cumsum(self.counts[order])
        at = int(np.searchsorted(ends, offset, side="right"))
        window = int(order[at])
        number = offset - int(ends[at] - self.counts[window])
        drawn = permutation(int(self.counts[window]), key_of(self.seed, 5, window, epoch))
        return Location(epoch, window, int(drawn[number]))

    def cuts(self, epoch: int, window: int) -> Iterator[Pieces]:
        """The ways in which an epoch may cut a window into its number of updates, the preferred one first.

        There is at least one: the last is the order in which the updates of the window were counted.
        """
        drawn = (key_of(self.seed, 4, window, epoch, attempt) for attempt in range(_ATTEMPTS))
        for key in itertools.chain(drawn, [key_of(self.seed, 3, window, 0)]):
            pieces = self.cut(window, key, int(self.counts[window]))
            if pieces:
                yield pieces

    def sizes(self, needed: Counter[Size], expected: Sequence[Size] = ()) -> list[Size]:
        """The closed list: sizes, ascending, such that each of `needed` (with the number of updates that need it) fits into one
        of them. Packed rows have one size, at least `expected`; buckets have one for each length that occurs.
        """
        if not self._by_length:
            return [(self.config.pack_length, max(rows for _, rows in (*needed, *expected)))]
        edges = bucket_edges(max(length for length, _ in needed))
        most: dict[int, int] = {}
        for length, rows in needed:
            edge = next(edge for edge in edges if edge >= length)
            most[edge] = max(most.get(edge, 0), rows)
        return [(edge, math.ceil(self.room * most[edge])) for edge in sorted(most)]

    def count(self, window: int) -> int:
        """The number of updates of a window."""
        orders = (self._order(window, key_of(self.seed, 3, window, i)) for i in range(_REFERENCE_ORDERS))
        return max(len(cut(*self._limits(order), cap=self.config.batch_tokens)) - 1 for order in orders)

    def cut(self, window: int, key: int, count: int) -> Pieces | None:
        """A window in the order drawn by `key`, cut into `count` updates; None if that is impossible."""
        order = self._order(window, key)
        starts = cut_evenly(*self._limits(order), count=count, cap=self.config.batch_tokens)
        return None if starts is None else np.split(order, starts[1:-1])

    def members(self, window: int) -> np.ndarray:
        """The pairs of a window, int64 indices into the store."""
        index = np.arange(self._bounds[window], self._bounds[window + 1])
        index = bijection(index, self._size, key_of(self.seed, 2)) if self.windows > 1 else index
        return self._slots.pairs_at(index) if self._slots else index

    def longer_side(self, pairs: np.ndarray) -> np.ndarray:
        """The tokens of the longer side of each pair."""
        return np.maximum(self.source_lengths[pairs], self.target_lengths[pairs])

    def _order(self, window: int, key: int) -> np.ndarray:
        members = self.members(window)
        if not self._by_length:
            return members[permutation(len(members), key)]
        jitter = hashes(len(members), key) / 2.0**64
        return members[np.argsort(self.longer_side(members) + jitter, kind="stable")]

    def _limits(self, order: np.ndarray) -> tuple[np.ndarray, np.ndarray, Callable[[int], int] | None]:
        """The limits of the pieces of an order, as arguments of `cut`."""
        sides = (self.source_lengths, self.target_lengths)
        source, target = (np.concatenate([[0], np.cumsum(x[order], dtype=np.int64)]) for x in sides)
        if not self._by_length:
            return source, target, None
        longer = self.longer_side(order)
        edges = np.array(bucket_edges(int(longer[-1])))
        ends = np.searchsorted(longer, edges, side="right")
        begins = np.concatenate([[0], ends[:-1]])

        def furthest(start: int) -> int:
            reach = np.minimum(ends, start + _SLOTS * self.config.batch_tokens // edges)
            return int(reach[reach > np.maximum(begins, start)].max(initial=start + 1))

        return source, target, furthest


MakeSampler = Callable[[TokenStore, Data, int, Slots | None], BatchSampler]
"""(store, config.data, seed, the pairs of an epoch if not each once) -> sampler; `BatchSampler` is one."""


def cut(
    source_sums: np.ndarray, target_sums: np.ndarray, furthest: Callable[[int], int] | None = None, *, cap: int
) -> np.ndarray:
    """Starts (and the end) of consecutive pieces, each as long as possible with at most `cap` tokens a side.

    The sums are cumulative and begin with 0. A piece that begins at i ends at `furthest(i)` or before. Raises UserError
    if a single pair is over the cap.
    """
    starts = [0]
    last = len(source_sums) - 1
    while starts[-1] < last:
        at = starts[-1]
        end = -1 + min(
            np.searchsorted(source_sums, source_sums[at] + cap, side="right"),
            np.searchsorted(target_sums, target_sums[at] + cap, side="right"),
        )
        if end == at:
            raise UserError(f"a pair is longer than config.data.batch_tokens = {cap}: raise it or lower max_length.")
        starts.append(int(min(end, furthest(at)) if furthest else end))
    return np.array(starts)


def cut_evenly(
    source_sums: np.ndarray,
    target_sums: np.ndarray,
    furthest: Callable[[int], int] | None = None,
    *,
    count: int,
    cap: int,
) -> np.ndarray | None:
    """Starts (and the end) of exactly `count` consecutive pieces, the largest as small as possible; None if it is over `cap`.

    `furthest`: see `cut`.
    """

    def pieces(limit: int) -> np.ndarray:
        return cut(source_sums, target_sums, furthest, cap=limit)

    longest = max(int(np.diff(source_sums).max()), int(np.diff(target_sums).max()))
    low = max(longest, -(-int(max(source_sums[-1], target_sums[-1])) // count))
    if low > cap or len(pieces(cap)) - 1 > count:
        return None
    high = cap
    while low < high:
        middle = (low + high) // 2
        if len(pieces(middle)) - 1 <= count:
            high = middle
        else:
            low = middle + 1
    starts = list(pieces(high))
    while len(starts) - 1 < count:  # one cap can skip a count: halve the piece with the most pairs
        widest = int(np.argmax(np.diff(starts)))
        starts.insert(widest + 1, (starts[widest] + starts[widest + 1]) // 2)
    return np.array(starts)


def smallest_fitting(sizes: Sequence[Size], needed: Size) -> int | None:
    """The index of the size with the fewest token slots that holds `needed`; None if none does."""
    length, rows = needed
    enough = [i for i, (edge, most) in enumerate(sizes) if edge >= length and most >= rows]
    return min(enough, key=lambda i: sizes[i][0] * sizes[i][1], default=None)


def bucket_edges(longest: int) -> list[int]:
    """Row lengths from 8 up, each a multiple of 4 and about 25 % longer than the previous one."""
    edges = [8]
    while edges[-1] < longest:
        edges.append(max(edges[-1] + 4, 4 * round(edges[-1] * 1.25 / 4)))
    return edges
