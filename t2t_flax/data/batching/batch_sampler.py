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
from t2t_flax.errors import UserError

Size = tuple[int, int]
"""(length of a row, rows)."""

_ROOM = 1.05
_ROOM_OF_GROUPS = 1.02
"""Rows relative to the maximum of epoch 0, for a bucket and for updates of several groups: later epochs break ties
differently and cut the pairs elsewhere, or combine other groups."""
_LEVELS = 4
_TOLERANCE = 0.003


def closed_list(config: Data, needed: Counter[Size], expected: Sequence[Size] = ()) -> list[Size]:
    """Sizes, ascending, such that each size in `needed` (with the number of updates that need it) fits into one of them.

    Packed rows of real tokens have one size, at least `expected`. Where padding is counted, real tokens differ from
    update to update: a few sizes. Buckets have one size for each length that occurs.
    """
    if config.batching == "buckets":
        # One group an update: groups do not change, so neither do their sizes.
        room = 1.0 if config.batch_size_counts == "padded_tokens" and config.batch_groups == 1 else _ROOM
        edges = bucket_edges(max(length for length, _ in needed))
        most: dict[int, int] = {}
        for length, count in needed:
            edge = next(edge for edge in edges if edge >= length)
            most[edge] = max(most.get(edge, 0), count)
        return [(edge, math.ceil(room * most[edge])) for edge in sorted(most)]
    rows: Counter[int] = Counter()
    for (_, n), updates in needed.items():
        rows[n] += updates
    if config.batch_size_counts == "padded_tokens":
        if config.batch_groups > 1:
            rows[math.ceil(_ROOM_OF_GROUPS * max(rows))] += 1
        return [(config.pack_length, n) for n in levels(rows, _LEVELS)]
    return [(config.pack_length, max([*rows, *(n for _, n in expected)]))]


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


def levels(rows: Counter[int], at_most: int) -> list[int]:
    """Numbers of rows, ascending, to which updates that need `rows` (with how many need each) are padded: the fewest,
    and at most `at_most`, whose slots are within 0.3 % of the fewest possible.
    """
    # Of many values only every n-th is a candidate, so that the table below stays small.
    grain = math.ceil(max(rows) / 512)
    counts: Counter[int] = Counter()
    for n, updates in rows.items():
        counts[min(max(rows), grain * math.ceil(n / grain))] += updates
    values = np.array(sorted(counts))
    below = np.concatenate([[0], np.cumsum([counts[v] for v in values])])
    # cost[i, j]: rows of the updates i .. j - 1 of `values` where all of them are padded to value j - 1.
    cost = (below[None, 1:] - below[:-1, None]) * values[None].astype(float)
    cost[np.tril_indices(len(values), -1)] = np.inf
    least, cuts = [cost[0]], []
    for _ in range(min(at_most, len(values)) - 1):
        total = least[-1][:-1, None] + cost[1:]
        cuts.append(total.argmin(axis=0))
        least.append(np.minimum(least[-1], total.min(axis=0)))
    count = next(n for n, cost_of_n in enumerate(least) if cost_of_n[-1] <= (1 + _TOLERANCE) * least[-1][-1])
    chosen, last = [], len(values) - 1
    for n in reversed(range(count + 1)):
        chosen.append(int(values[last]))
        if n:
            last = int(cuts[n - 1][last])
    return sorted(set(chosen))


WINDOW_PAIRS = 65536
WINDOW_UPDATES = 64
_REFERENCE_ORDERS = 2
_ATTEMPTS = 100
GROUP_MULTIPLE = 8
"""Sizes of groups are multiples of this (fairseq's required-batch-size-multiple)."""
_SLOTS = 2
"""An update of pairs of similar length takes at most this many times batch_tokens slots, padding included."""


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


Pieces = list[np.ndarray]
"""The pairs (indices into the store) of each update of a window, in the order in which they are laid out."""


class BatchSampler:
    """Update k as a function of k.

    `source_lengths`, `target_lengths`: int arrays [N], EOS included. Each update holds at most `batch_tokens` real
    tokens of each side. `by_length` puts pairs of similar length together (5.1), so that an update with one pair in a
    row has at most twice as many slots as `batch_tokens`. `mean_length`: the larger mean of both sides, if
    known. `slots`: the pairs of an epoch; without them, each pair once.
    """

    def __init__(
        self,
        source_lengths,
        target_lengths,
        *,
        batch_tokens: int,
        by_length: bool,
        seed: int,
        mean_length: float | None = None,
        slots: Slots | None = None,
    ):
        self._source, self._target = source_lengths, target_lengths
        self._tokens, self._by_length, self._seed = batch_tokens, by_length, seed
        self._slots, self._size = slots, slots.size if slots else len(source_lengths)
        mean = mean_length or max(float(np.mean(x)) for x in (source_lengths, target_lengths))
        self.windows = max(1, round(self._size / max(WINDOW_PAIRS, int(WINDOW_UPDATES * batch_tokens / mean))))
        self._bounds = np.linspace(0, self._size, self.windows + 1).astype(np.int64)

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """Updates of each window, int64 [windows]. Counting reads all lengths; cached counts are assigned instead."""
        return np.array([self._count(window) for window in range(self.windows)])

    @functools.cached_property
    def updates_per_epoch(self) -> int:
        return int(self.counts.sum())

    def locate(self, k: int) -> Location:
        """The location of update k >= 0."""
        epoch, offset = divmod(k, self.updates_per_epoch)
        order = self._order_of_windows(epoch)
        ends = np.cumsum(self.counts[order])
        at = int(np.searchsorted(ends, offset, side="right"))
        window = int(order[at])
        number = offset - int(ends[at] - self.counts[window])
        drawn = permutation(int(self.counts[window]), key_of(self._seed, 5, window, epoch))
        return Location(epoch, window, int(drawn[number]))

    def cuts(self, epoch: int, window: int) -> Iterator[Pieces]:
        """The ways in which an epoch may cut a window into its number of updates, the preferred one first.

        There is at least one: the last is the order in which the updates of the window were counted.
        """
        count = int(self.counts[window])
        drawn = (key_of(self._seed, 4, window, epoch, attempt) for attempt in range(_ATTEMPTS))
        for key in itertools.chain(drawn, [key_of(self._seed, 3, window, 0)]):
            order, starts = self._attempt(window, key, count)
            if starts is not None:
                yield np.split(order, starts[1:-1])

    def _order_of_windows(self, epoch: int) -> np.ndarray:
        return permutation(len(self.counts), key_of(self._seed, 1, epoch))

    def _members(self, window: int) -> np.ndarray:
        index = np.arange(self._bounds[window], self._bounds[window + 1])
        index = bijection(index, self._size, key_of(self._seed, 2)) if len(self._bounds) > 2 else index
        return self._slots.pairs_at(index) if self._slots else index

    def _order(self, window: int, key: int) -> np.ndarray:
        members = self._members(window)
        if not self._by_length:
            return members[permutation(len(members), key)]
        longer = np.maximum(self._source[members], self._target[members])
        jitter = hashes(len(members), key) / 2.0**64
        return members[np.argsort(longer + jitter, kind="stable")]

    def _limits(self, order: np.ndarray) -> tuple[np.ndarray, np.ndarray, Callable[[int], int] | None]:
        """The limits of the pieces of an order, as arguments of `cut`."""
        source, target = (
            np.concatenate([[0], np.cumsum(x[order], dtype=np.int64)]) for x in (self._source, self._target)
        )
        if not self._by_length:
            return source, target, None
        longer = np.maximum(self._source[order], self._target[order])
        edges = np.array(bucket_edges(int(longer[-1])))
        ends = np.searchsorted(longer, edges, side="right")
        begins = np.concatenate([[0], ends[:-1]])

        def furthest(start: int) -> int:
            reach = np.minimum(ends, start + _SLOTS * self._tokens // edges)
            return int(reach[reach > np.maximum(begins, start)].max(initial=start + 1))

        return source, target, furthest

    def _count(self, window: int) -> int:
        return max(
            len(cut(*self._limits(self._order(window, key_of(self._seed, 3, window, i))), cap=self._tokens)) - 1
            for i in range(_REFERENCE_ORDERS)
        )

    def _attempt(self, window: int, key: int, count: int) -> tuple[np.ndarray, np.ndarray | None]:
        """An order of a window's pairs, and where its `count` updates begin and end; None if it cannot be cut into that many."""
        order = self._order(window, key)
        return order, cut_evenly(*self._limits(order), count=count, cap=self._tokens)


class PaddedBatchSampler(BatchSampler):
    """Updates made of groups of similar sentences, whose size includes padding, as in fairseq and tensor2tensor.

    Each update is `groups` groups; (pairs of a group) * (its longest side) is at most batch_tokens / groups.

    A window's pairs are sorted by source, then target length (ties in an order drawn once) and cut into fixed groups;
    each epoch draws which groups form an update.
    """

    def __init__(self, source_lengths, target_lengths, *, batch_tokens: int, groups: int, seed: int, **options):
        self._groups_per_update = groups
        self._groups = functools.lru_cache(maxsize=2)(self._form_groups)
        super().__init__(
            source_lengths, target_lengths, batch_tokens=batch_tokens, by_length=True, seed=seed, **options
        )

    def _form_groups(self, window: int) -> tuple[np.ndarray, ...]:
        members = self._members(window)
        members = members[permutation(len(members), key_of(self._seed, 6, window))]
        members = members[np.lexsort((self._target[members], self._source[members]))]
        longer = np.maximum(self._source[members], self._target[members])
        return tuple(np.split(members, group_starts(longer, self._tokens // self._groups_per_update)))

    def _count(self, window: int) -> int:
        return -(-len(self._groups(window)) // self._groups_per_update)

    def _attempt(self, window: int, key: int, count: int):
        formed = self._groups(window)
        groups = [formed[i] for i in permutation(len(formed), key)]
        ends = np.cumsum([len(group) for group in groups])
        starts = np.concatenate([[0], ends[self._groups_per_update - 1 :: self._groups_per_update], ends[-1:]])
        return np.concatenate(groups), starts[: count + 1]


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


def group_starts(lengths: np.ndarray, cap: int) -> list[int]:
    """Where the groups after the first begin: greedy, (pairs) * (longest) at most `cap`, sizes in multiples of GROUP_MULTIPLE.

    A group that is too small for a multiple keeps its size, and the pairs beyond a multiple open the next group, as in
    fairseq's `batch_by_size`; a longer pair after it can close that group too. Raises UserError if a single
    pair is over the cap.
    """
    if len(lengths) and lengths.max() > cap:
        raise UserError(
            f"a pair of {lengths.max()} tokens is longer than a group of config.data.batch_tokens / "
            f"config.data.batch_groups = {cap} tokens: raise config.data.batch_tokens or lower config.data.max_length."
        )
    starts, start, longest = [], 0, 0
    for i, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        while (i - start + 1) * longest > cap:
            size = i - start
            start += max(GROUP_MULTIPLE * (size // GROUP_MULTIPLE), size % GROUP_MULTIPLE)
            starts.append(start)
            longest = int(lengths[start : i + 1].max())
    return starts
