"""Cuts the pairs of a window into updates: a pure function of (their lengths, config, seed, window)."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.hashing import hashes, key_of, permutation
from t2t_flax.errors import UserError

_REFERENCE_ORDERS = 2
_SLOTS = 2
"""An update of pairs of similar length takes at most this many times batch_tokens slots, padding included."""

Size = tuple[int, int]
"""(length of a row, rows)."""
Pieces = list[np.ndarray]
"""The pairs of each update of a window (indices into its lengths), in the order in which they are laid out."""


class Lengths(NamedTuple):
    """Tokens of the pairs of a window, [P] each."""

    source: np.ndarray
    target: np.ndarray

    @property
    def longer(self) -> np.ndarray:
        """Tokens of the longer side of each pair."""
        return np.maximum(self.source, self.target)


class BatchSampler:
    """The ways to cut a window into updates.

    Each update holds at most data.batch_tokens real tokens of each side. With data.batching = buckets it holds pairs of similar
    length (5.1), so that with one pair in a row it has at most twice as many slots as data.batch_tokens.
    """

    key: Any = ()
    """Further inputs of the updates, as JSON."""
    alike = True
    """True if packed updates need about the same number of rows and share one size."""
    room = 1.05
    """Rows of a bucket relative to the most in the sample: other windows cut their pairs elsewhere."""

    def __init__(self, config: Data, seed: int, lengths: Lengths):
        self.config, self.seed, self.lengths = config, seed, lengths
        self._by_length = config.batching == "buckets"

    def count(self) -> int:
        """The number of updates that the pairs should be cut into."""
        orders = (self._order(key_of(self.seed, 3, 0, i)) for i in range(_REFERENCE_ORDERS))
        return max(len(cut(*self._limits(order), cap=self.config.batch_tokens)) - 1 for order in orders)

    def cuts(self, window: int, count: int, attempts: int) -> Iterator[Pieces]:
        """Ways to cut window number `window` into `count` updates, at most one for each attempt, the preferred one first.
        There is at least one: the last is in the order in which the updates were counted.
        """
        drawn = (key_of(self.seed, 4, 0, window, attempt) for attempt in range(attempts))
        cuts = (self.cut(key, count) for key in itertools.chain(drawn, [key_of(self.seed, 3, 0, 0)]))
        return (pieces for pieces in cuts if pieces)

    def cut(self, key: int, count: int) -> Pieces | None:
        """The pairs in the order drawn by `key`, cut into `count` updates; None if that is impossible."""
        order = self._order(key)
        starts = cut_evenly(*self._limits(order), count=count, cap=self.config.batch_tokens)
        return None if starts is None else np.split(order, starts[1:-1])

    def sizes(self, needed: Counter[Size], expected: Sequence[Size] = (), longest: int = 0) -> list[Size]:
        """The closed list: sizes, ascending, such that each of `needed` (with the number of updates that need it) fits into one
        of them. Packed rows have one size, at least `expected`; buckets have one for each length that occurs, and one for
        pairs of `longest` tokens.
        """
        if not self._by_length:
            return [(self.config.pack_length, max(rows for _, rows in (*needed, *expected)))]
        edges = bucket_edges(max(longest, *(length for length, _ in needed)))
        most: dict[int, int] = {}
        for length, rows in needed:
            edge = next(edge for edge in edges if edge >= length)
            most[edge] = max(most.get(edge, 0), rows)
        sizes = {edge: math.ceil(self.room * most[edge]) for edge in sorted(most)}
        sizes.setdefault(edges[-1], max(1, _SLOTS * self.config.batch_tokens // edges[-1]))
        return list(sizes.items())

    def _order(self, key: int) -> np.ndarray:
        if not self._by_length:
            return permutation(len(self.lengths.source), key)
        jitter = hashes(len(self.lengths.source), key) / 2.0**64
        return np.argsort(self.lengths.longer + jitter, kind="stable")

    def _limits(self, order: np.ndarray) -> tuple[np.ndarray, np.ndarray, Callable[[int], int] | None]:
        """The limits of the pieces of an order, as arguments of `cut`."""
        source, target = (np.concatenate([[0], np.cumsum(x[order], dtype=np.int64)]) for x in self.lengths)
        if not self._by_length:
            return source, target, None
        longer = self.lengths.longer[order]
        edges = np.array(bucket_edges(int(longer[-1])))
        ends = np.searchsorted(longer, edges, side="right")
        begins = np.concatenate([[0], ends[:-1]])

        def furthest(start: int) -> int:
            reach = np.minimum(ends, start + _SLOTS * self.config.batch_tokens // edges)
            return int(reach[reach > np.maximum(begins, start)].max(initial=start + 1))

        return source, target, furthest


MakeSampler = Callable[[Data, int, Lengths], BatchSampler]
"""(config.data, seed, lengths of the pairs of a window) -> sampler; `BatchSampler` is one. It is pickled."""


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
