"""Updates made of groups of similar sentences, whose size includes padding.

fairseq and tensor2tensor batch in this way.
"""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from t2t_flax.config import Config, Data
from t2t_flax.data.batching.layouts import Layout, Layouter, PairReader, Size, bucket_edges
from t2t_flax.data.batching.rows import Sides
from t2t_flax.data.batching.updates import MakeStream, UpdateStream
from t2t_flax.data.batching.windows import WINDOW_PAIRS, EpochWindows, Samples, Windows
from t2t_flax.data.hashing import key_of, permutation
from t2t_flax.data.hooks import DataHook
from t2t_flax.errors import UserError

GROUP_MULTIPLE = 8
"""Group sizes are multiples of this (fairseq's required-batch-size-multiple)."""
_WINDOW_UPDATES, _FILLED = 8, 0.99
"""Minimum updates of a window, and the filled share of each update."""
_SAMPLE, _SAMPLED_WINDOWS = 64, 4
"""Updates in a sample, which determines the sizes, and its maximum windows."""
_TRIES = 10
_ROOM = 1.02
"""Rows relative to the sample's maximum for updates of several groups.

Other windows combine other groups.
"""
_LEVELS = 4
_TOLERANCE = 0.003
_SLOTS = 2
"""Slots of the longest bucket rows in multiples of data.batch_tokens.

Applies if the sample has none of these rows.
"""


class _Rows(NamedTuple):
    """Rows of an update, and the smallest size that holds them.

    Args:
        pairs: indices into the window's samples.
    """

    pairs: np.ndarray
    row: np.ndarray
    starts: Sequence[np.ndarray]
    needed: Size


@dataclasses.dataclass(frozen=True)
class PaddedLayouter(Layouter):
    """Layouter whose updates have `groups` groups.

    (pairs of a group) * (its longest side) is at most data.batch_tokens / groups. A window's pairs
    are sorted by source, then target length (ties in an order drawn once) and cut into groups. An
    update is drawn from them, and all updates of a window are drawn again if one fits into no size.

    Args:
        groups: groups in an update.
        closed: sizes of updates, ascending.
    """

    groups: int = 1
    closed: tuple[Size, ...] = ()

    @property
    def sizes(self) -> list[Size]:
        return list(self.closed)

    @property
    def blocks_of_update(self) -> int:
        return 1

    @property
    def key(self) -> list:
        return [*super().key, self.config.batch_tokens, self.groups, self.closed]

    def lay_out(self, window: int) -> Layout:
        samples, sides = self._read(window)
        fitting = (rows for cut in self._cuts(sides, window) if (rows := self._fitting(sides, cut)))
        updates = next(fitting, None) or self._halved(sides, next(self._cuts(sides, window)))
        updates = [updates[i] for i in permutation(len(updates), key_of(self.seed, 5, 0, window))]
        order = np.concatenate([update.pairs for update in updates])
        row = np.concatenate([update.row for update in updates])
        source_start, target_start = map(
            np.concatenate, zip(*(update.starts for update in updates), strict=True)
        )
        ends = np.cumsum([len(update.pairs) for update in updates])
        sizes = np.array([smallest_fitting(self.closed, update.needed) for update in updates])
        return Layout(
            samples.at(order),
            row,
            (source_start, target_start),
            (sides[0].at(order), sides[1].at(order)),
            ends,
            sizes,
        )

    def with_sizes(self) -> "PaddedLayouter":
        """Return the layouter with the sizes of a sample.

        The sample is its first windows, or a whole epoch if it has only a few.
        """
        needed: Counter[Size] = Counter()
        most = min(self.windows.per_epoch, _SAMPLED_WINDOWS)
        whole = self.windows.per_epoch <= _SAMPLED_WINDOWS and not self.reader.draws
        for window in range(most):
            if not whole and needed.total() >= _SAMPLE:
                break
            sides = self._read(window)[1]
            needed.update(
                self._rows(sides, pairs).needed for pairs in next(self._cuts(sides, window))
            )
        return dataclasses.replace(self, closed=tuple(self._closed(needed)))

    def _read(self, window: int) -> tuple[Samples, Sides]:
        samples = self.windows.samples(window)
        return samples, self.reader.read(samples)

    def _cuts(self, sides: Sides, window: int) -> Iterator[list[np.ndarray]]:
        """Yield ways to combine the groups of a window.

        A way has the indices of the pairs of each update.
        """
        source, target = (side.lengths for side in sides)
        order = permutation(len(source), key_of(self.seed, 6, 0))
        order = order[np.lexsort((target[order], source[order]))]
        starts = group_starts(
            np.maximum(source, target)[order], self.config.batch_tokens // self.groups
        )
        groups = np.split(order, starts)
        drawn = (key_of(self.seed, 4, 0, window, attempt) for attempt in range(_TRIES))
        for key in itertools.chain(drawn, [key_of(self.seed, 3, 0, 0)]):
            shuffled = [groups[i] for i in permutation(len(groups), key)]
            yield [
                np.concatenate(shuffled[i : i + self.groups])
                for i in range(0, len(groups), self.groups)
            ]

    def _fitting(self, sides: Sides, cut: list[np.ndarray]) -> list[_Rows] | None:
        """Return the rows of all updates of a cut, or None if one fits into no size."""
        laid_out = (self._rows(sides, pairs) for pairs in cut)
        rows = list(
            itertools.takewhile(
                lambda rows: smallest_fitting(self.closed, rows.needed) is not None, laid_out
            )
        )
        return rows if len(rows) == len(cut) else None

    def _halved(self, sides: Sides, cut: list[np.ndarray]) -> list[_Rows]:
        """Return the rows of a cut of unusual lengths.

        Updates that fit into no size are halved.
        """
        todo, out = cut[::-1], []
        while todo:
            rows = self._rows(sides, pairs := todo.pop())
            if smallest_fitting(self.closed, rows.needed) is None:
                todo += np.array_split(pairs, 2)[::-1]
            else:
                out.append(rows)
        return out

    def _rows(self, sides: Sides, pairs: np.ndarray) -> _Rows:
        source, target = (side.lengths[pairs] for side in sides)
        if self.packed:
            row, *starts = first_fit_in_turn(source, target, self.config.pack_length)
            return _Rows(pairs, row, starts, (self.config.pack_length, int(row.max()) + 1))
        row = np.arange(len(pairs))
        return _Rows(
            pairs, row, [0 * row] * 2, (max(int(source.max()), int(target.max())), len(pairs))
        )

    def _closed(self, needed: Counter[Size]) -> list[Size]:
        """Return sizes for a sample of updates.

        These are a few numbers of packed rows, since real tokens differ from update to update; in
        buckets, one for each length.
        """
        if self.packed:
            rows: Counter[int] = Counter()
            for (_, count), updates in needed.items():
                rows[count] += updates
            if self.groups > 1:
                rows[math.ceil(_ROOM * max(rows))] += 1
            return [(self.config.pack_length, count) for count in levels(rows, _LEVELS)]
        edges = bucket_edges(max(self.reader.longest, *(length for length, _ in needed)))
        most: dict[int, int] = {}
        for length, count in needed:
            edge = next(edge for edge in edges if edge >= length)
            most[edge] = max(most.get(edge, 0), count)
        sizes = {edge: most[edge] for edge in sorted(most)}
        sizes.setdefault(edges[-1], max(1, _SLOTS * self.config.batch_tokens // edges[-1]))
        return list(sizes.items())


def smallest_fitting(sizes: Sequence[Size], needed: Size) -> int | None:
    """Return the index of the size with the fewest token slots that holds `needed`.

    None if none does.
    """
    length, rows = needed
    enough = [i for i, (edge, most) in enumerate(sizes) if edge >= length and most >= rows]
    return min(enough, key=lambda i: sizes[i][0] * sizes[i][1], default=None)


def first_fit_in_turn(
    source: np.ndarray, target: np.ndarray, pack_length: int
) -> tuple[np.ndarray, ...]:
    """Pack the pairs of an update, each into the first row with room.

    The longest pairs come first.

    Returns:
        for each pair its row, and where it starts in the row's source and target, int64 [pairs].
    """
    order = np.argsort(-np.maximum(source, target).astype(np.int64), kind="stable")
    used: list[tuple[int, int]] = []
    places = np.empty((3, len(order)), np.int64)
    for i, tokens in zip(
        order.tolist(),
        zip(source[order].tolist(), target[order].tolist(), strict=True),
        strict=True,
    ):
        rooms = (pack_length - tokens[0], pack_length - tokens[1])
        row = next(
            (n for n, at in enumerate(used) if at[0] <= rooms[0] and at[1] <= rooms[1]), len(used)
        )
        if row == len(used):
            used.append((0, 0))
        places[:, i] = row, *used[row]
        used[row] = used[row][0] + tokens[0], used[row][1] + tokens[1]
    return places[0], places[1], places[2]


def windows_of(reader: PairReader, config: Data, seed: int) -> EpochWindows:
    """Return windows whose last update is nearly full."""
    mean_length = max(float(lengths.mean()) for lengths in reader.store.lengths)
    pairs, update = reader.store.num_pairs, _FILLED * config.batch_tokens / mean_length
    about = pairs / max(WINDOW_PAIRS, _WINDOW_UPDATES * update)
    counts = range(max(1, round(0.8 * about)), max(1, round(1.25 * about)) + 1)

    def preference(count: int) -> tuple[float, float]:
        updates = pairs / count / update
        return updates / math.ceil(updates), -abs(count - about)

    return EpochWindows(pairs, max(counts, key=preference), seed)


def group_starts(lengths: np.ndarray, cap: int) -> list[int]:
    """Return the starts of the groups after the first.

    Greedy, (pairs) * (longest) at most `cap`, sizes in multiples of GROUP_MULTIPLE. A group that is
    too small for a multiple keeps its size, and the pairs beyond a multiple open the next group, as
    in fairseq's `batch_by_size`; a longer pair after it can close that group too. Raises UserError
    if a single pair is over the cap.
    """
    if len(lengths) and lengths.max() > cap:
        raise UserError(
            f"a pair of {lengths.max()} tokens is longer than a group of config.data.batch_tokens /"
            f" config.recipes.batch_groups = {cap} tokens: raise config.data.batch_tokens or lower"
            " config.data.max_length."
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


def levels(rows: Counter[int], at_most: int) -> list[int]:
    """Return the numbers of rows, ascending, to which updates are padded.

    They are the fewest, and at most `at_most`, whose slots are within 0.3 % of the fewest possible.

    Args:
        rows: needed rows, with how many updates need each number.
    """
    # Of many values only every n-th is a candidate, so that the table below stays small.
    grain = math.ceil(max(rows) / 512)
    counts: Counter[int] = Counter()
    for n, updates in rows.items():
        counts[min(max(rows), grain * math.ceil(n / grain))] += updates
    values = np.array(sorted(counts))
    below = np.concatenate([[0], np.cumsum([counts[v] for v in values])])
    # cost[i, j]: rows of the updates i .. j - 1 of `values` when all of them are padded to value j
    # - 1.
    cost = (below[None, 1:] - below[:-1, None]) * values[None].astype(float)
    cost[np.tril_indices(len(values), -1)] = np.inf
    least, cuts = [cost[0]], []
    for _ in range(min(at_most, len(values)) - 1):
        total = least[-1][:-1, None] + cost[1:]
        cuts.append(total.argmin(axis=0))
        least.append(np.minimum(least[-1], total.min(axis=0)))
    count = next(
        n for n, cost_of_n in enumerate(least) if cost_of_n[-1] <= (1 + _TOLERANCE) * least[-1][-1]
    )
    chosen, last = [], len(values) - 1
    for n in reversed(range(count + 1)):
        chosen.append(int(values[last]))
        if n:
            last = int(cuts[n - 1][last])
    return sorted(set(chosen))


class PaddedBatches(DataHook):
    def __init__(self, config: Config):
        self._groups, self._tokens = config.group("recipes").batch_groups, config.data.batch_tokens

    def stream(self, make, tokenizers):
        return padded_stream(self._groups)

    def describe(self, store):
        return [
            f"instead of full rows: {self._groups} groups of at most"
            f" {self._tokens // self._groups:,} tokens with padding"
        ]


def padded_stream(groups: int) -> MakeStream:
    """Return the function that makes a stream of padded groups."""

    def make(
        reader: PairReader, config: Data, seed: int, windows: Windows | None = None
    ) -> UpdateStream:
        windows = windows or windows_of(reader, config, seed)
        return UpdateStream(PaddedLayouter(reader, config, seed, windows, groups).with_sizes())

    return make
