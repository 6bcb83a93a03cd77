"""Updates made of groups of similar sentences, whose size includes padding, as in fairseq and tensor2tensor."""

import functools

import numpy as np

from t2t_flax.data.batching.batch_sampler import BatchSampler
from t2t_flax.data.hashing import key_of, permutation
from t2t_flax.errors import UserError

MULTIPLE = 8
"""Sizes of groups are multiples of this (fairseq's required-batch-size-multiple)."""


class PaddedBatchSampler(BatchSampler):
    """Each update is `groups` groups; (pairs of a group) * (its longest side) is at most batch_tokens / groups.

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
        groups = self._groups(window)
        groups = [groups[i] for i in permutation(len(groups), key)]
        ends = np.cumsum([len(group) for group in groups])
        starts = np.concatenate([[0], ends[self._groups_per_update - 1 :: self._groups_per_update], ends[-1:]])
        return np.concatenate(groups), starts[: count + 1]


def group_starts(lengths: np.ndarray, cap: int) -> list[int]:
    """Where the groups after the first begin: greedy, (pairs) * (longest) at most `cap`, sizes in multiples of MULTIPLE.

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
            start += max(MULTIPLE * (size // MULTIPLE), size % MULTIPLE)
            starts.append(start)
            longest = int(lengths[start : i + 1].max())
    return starts
