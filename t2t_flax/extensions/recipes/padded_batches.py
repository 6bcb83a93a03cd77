"""Updates made of groups of similar sentences, whose size includes padding, as in fairseq and tensor2tensor."""

import functools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from t2t_flax.config import Config, Data
from t2t_flax.data.batching.batch_sampler import BatchSampler, Lengths, MakeSampler, Pieces, Size
from t2t_flax.data.hashing import key_of, permutation
from t2t_flax.data.hooks import DataHook
from t2t_flax.errors import UserError

GROUP_MULTIPLE = 8
"""Sizes of groups are multiples of this (fairseq's required-batch-size-multiple)."""
_ROOM = 1.02
"""Rows relative to the most in the sample for updates of several groups: other windows combine other groups."""
_LEVELS = 4
_TOLERANCE = 0.003


class PaddedBatchSampler(BatchSampler):
    """Each update is `groups` groups; (pairs of a group) * (its longest side) is at most data.batch_tokens / groups.

    A window's pairs are sorted by source, then target length (ties in an order drawn once) and cut into groups, of which
    those that form an update are drawn.
    """

    alike = False
    room = 1.0  # of buckets, one group an update: groups do not change

    def __init__(self, config: Data, seed: int, lengths: Lengths, *, groups: int):
        super().__init__(config, seed, lengths)
        self._groups_per_update, self.key = groups, [groups]

    def count(self) -> int:
        return -(-len(self._groups) // self._groups_per_update)

    def cut(self, key: int, count: int) -> Pieces:
        groups = [self._groups[i] for i in permutation(len(self._groups), key)]
        n = self._groups_per_update
        return [np.concatenate(groups[i : i + n]) for i in range(0, len(groups), n)]

    def sizes(self, needed: Counter[Size], expected: Sequence[Size] = (), longest: int = 0) -> list[Size]:
        """As in `BatchSampler`, but packed rows get a few sizes: real tokens differ from update to update."""
        if self.config.batching == "buckets":
            return super().sizes(needed, longest=longest)
        rows: Counter[int] = Counter()
        for (_, n), updates in needed.items():
            rows[n] += updates
        if self._groups_per_update > 1:
            rows[math.ceil(_ROOM * max(rows))] += 1
        return [(self.config.pack_length, n) for n in levels(rows, _LEVELS)]

    @functools.cached_property
    def _groups(self) -> list[np.ndarray]:
        source, target = self.lengths
        order = permutation(len(source), key_of(self.seed, 6, 0))
        order = order[np.lexsort((target[order], source[order]))]
        starts = group_starts(self.lengths.longer[order], self.config.batch_tokens // self._groups_per_update)
        return np.split(order, starts)


def group_starts(lengths: np.ndarray, cap: int) -> list[int]:
    """Where the groups after the first begin: greedy, (pairs) * (longest) at most `cap`, sizes in multiples of GROUP_MULTIPLE.

    A group that is too small for a multiple keeps its size, and the pairs beyond a multiple open the next group, as in
    fairseq's `batch_by_size`; a longer pair after it can close that group too. Raises UserError if a single
    pair is over the cap.
    """
    if len(lengths) and lengths.max() > cap:
        raise UserError(
            f"a pair of {lengths.max()} tokens is longer than a group of config.data.batch_tokens / "
            f"config.recipes.batch_groups = {cap} tokens: raise config.data.batch_tokens or lower config.data.max_length."
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


class PaddedBatches(DataHook):
    def __init__(self, config: Config):
        self._groups, self._tokens = config.group("recipes").batch_groups, config.data.batch_tokens

    def make_sampler(self) -> MakeSampler:
        return functools.partial(PaddedBatchSampler, groups=self._groups)

    def explain(self):
        return [f"tokens with padding: {self._groups} groups of at most {self._tokens // self._groups:,} in an update"]


def hook(config: Config) -> PaddedBatches:
    return PaddedBatches(config)
