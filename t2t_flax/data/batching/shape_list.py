"""The closed list of sizes to which all updates of a run are padded, chosen from the sizes of its updates."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from t2t_flax.config import Data

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
