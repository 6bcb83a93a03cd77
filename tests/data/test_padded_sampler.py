"""Groups sized with padding: fairseq's greedy rule, every pair once per epoch, random access to updates."""

import numpy as np
import pytest
from helpers.configs import pairs_of, random_pairs, small_config, write_store

from t2t_flax.data.batching.batch_sampler import GROUP_MULTIPLE, PaddedBatchSampler, group_starts
from t2t_flax.data.batching.batches import Batches


def naive_groups(lengths, cap):
    """The naive rule: a group is full when one more pair would make (pairs) * (longest) exceed the cap."""
    groups, group = [], []
    for i, length in enumerate(lengths):
        while (len(group) + 1) * max([length] + [lengths[j] for j in group]) > cap:
            size = max(GROUP_MULTIPLE * (len(group) // GROUP_MULTIPLE), len(group) % GROUP_MULTIPLE)
            groups.append(group[:size])
            group = group[size:]
        group.append(i)
    return [*groups, group]


@pytest.mark.parametrize("cap", [40, 64, 200, 1000])
def test_groups_follow_the_greedy_rule(cap):
    lengths = np.sort(np.random.default_rng(cap).integers(1, 30, 500))
    expected = naive_groups(lengths.tolist(), cap)
    assert [g.tolist() for g in np.split(np.arange(500), group_starts(lengths, cap))] == expected


@pytest.fixture
def lengths():
    rng = np.random.default_rng(0)
    return rng.integers(1, 30, 3000), rng.integers(1, 30, 3000)


def test_epoch_contains_every_pair_once_in_fixed_groups(lengths):
    plan = PaddedBatchSampler(*lengths, batch_tokens=800, groups=2, seed=3)
    n = plan.updates_per_epoch
    for epoch in range(2):
        updates = [pairs_of(plan, epoch * n + k) for k in range(n)]
        assert sorted(np.concatenate(updates).tolist()) == list(range(3000))
        assert {plan.locate(epoch * n + k).epoch for k in range(n)} == {epoch}
    first, second = ({tuple(sorted(pairs_of(plan, e * n + k).tolist())) for k in range(n)} for e in range(2))
    assert first != second, "each epoch combines groups differently"
    rebuilt = PaddedBatchSampler(*lengths, batch_tokens=800, groups=2, seed=3)
    np.testing.assert_array_equal(pairs_of(rebuilt, n + 5), pairs_of(plan, n + 5))
    longer = np.maximum(*lengths)
    one = PaddedBatchSampler(*lengths, batch_tokens=400, groups=1, seed=3)
    groups = [
        {frozenset(pairs_of(one, e * one.updates_per_epoch + k).tolist()) for k in range(one.updates_per_epoch)}
        for e in (0, 1)
    ]
    assert groups[0] == groups[1]
    assert all(len(g) * max(longer[i] for i in g) <= 400 for g in groups[0])


def test_batches_of_groups_have_shapes_of_the_closed_list(tmp_path):
    store = write_store(tmp_path / "store", random_pairs(600))
    config = small_config(data=dict(batch_tokens=400, batch_size_counts="padded_tokens", batch_groups=2))
    batches = Batches(store, config.data, seed=0)
    shapes = {(s.micro, s.rows, s.length) for s in batches.shapes}
    assert 1 < len(shapes) <= 4
    visited = []
    for k in range(batches.updates_per_epoch):
        batch = batches.batch(k)
        assert batch.arrays["target"].shape in shapes
        visited += batch.pairs.tolist()
    assert sorted(visited) == list(range(600))
