"""Update k is a pure function of k; every epoch contains every pair once; batches fill batch_tokens and never exceed it."""

import numpy as np
import pytest
from helpers.configs import pairs_of
from helpers.update_checks import Lengths

from t2t_flax.config import Data
from t2t_flax.data.batching import batch_sampler
from t2t_flax.data.batching.batch_sampler import BatchSampler, cut, cut_evenly
from t2t_flax.data.hashing import bijection, permutation
from t2t_flax.errors import UserError


def lengths(count, seed=0):
    rng = np.random.default_rng(seed)
    source = np.clip(rng.gamma(8, 1.75, count), 1, 60).astype(np.int32) + 1
    target = np.clip(source * rng.normal(1.0, 0.2, count), 2, 70).astype(np.int32)
    return source, target


def sampler_of(source, target, batching, seed=3):
    return BatchSampler(Lengths(source, target), Data(batch_tokens=1500, batching=batching), seed)


@pytest.fixture(params=["packed", "buckets"])
def sampler_case(request, monkeypatch):
    monkeypatch.setattr(batch_sampler, "WINDOW_PAIRS", 2000)
    monkeypatch.setattr(batch_sampler, "WINDOW_UPDATES", 8)
    source, target = lengths(6007)
    sampler = sampler_of(source, target, request.param)
    assert len(sampler.counts) > 1  # several windows
    return sampler, source, target


def test_epoch_contains_every_pair_once(sampler_case):
    sampler, source, _ = sampler_case
    for epoch in (0, 1, 5):
        updates = range(epoch * sampler.updates_per_epoch, (epoch + 1) * sampler.updates_per_epoch)
        pairs = np.concatenate([pairs_of(sampler, k) for k in updates])
        assert {sampler.locate(k).epoch for k in updates} == {epoch}
        np.testing.assert_array_equal(np.sort(pairs), np.arange(len(source)))


def test_batches_nearly_fill_batch_tokens(sampler_case):
    sampler, source, target = sampler_case
    sums = [
        (source[p].sum(), target[p].sum()) for p in (pairs_of(sampler, k) for k in range(2 * sampler.updates_per_epoch))
    ]
    assert np.max(sums) <= 1500
    assert np.mean([max(s) for s in sums]) >= 0.97 * 1500


def test_batches_do_not_depend_on_access_order(sampler_case):
    sampler, source, target = sampler_case
    in_order = [pairs_of(sampler, k) for k in range(60)]
    rebuilt = sampler_of(source, target, sampler.config.batching)
    for k in (59, 3, 40, 3, 0, 17):
        np.testing.assert_array_equal(pairs_of(rebuilt, k), in_order[k])


def test_epochs_and_seeds_differ(sampler_case):
    sampler, source, target = sampler_case
    other_seed = sampler_of(source, target, sampler.config.batching, seed=4)
    first = pairs_of(sampler, 0)
    assert not np.array_equal(first, pairs_of(sampler, sampler.updates_per_epoch))
    assert not np.array_equal(first, pairs_of(other_seed, 0))


def test_by_length_groups_similar_lengths():
    source, target = lengths(5000)
    spread = {}
    for batching in ("packed", "buckets"):
        sampler = sampler_of(source, target, batching, seed=0)
        pairs = [pairs_of(sampler, k) for k in range(sampler.updates_per_epoch)]
        spread[batching] = np.mean([np.ptp(np.maximum(source[p], target[p])) for p in pairs])
    assert spread["buckets"] < 0.2 * spread["packed"]


def test_even_split_minimizes_the_largest_part():
    """Compared with brute force over all splits of a short list into three parts."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        source, target = rng.integers(1, 9, (2, 7))
        sums = [np.concatenate([[0], np.cumsum(x)]) for x in (source, target)]
        best = min(max(max(np.diff(s[[0, i, j, 7]])) for s in sums) for i in range(1, 6) for j in range(i + 1, 7))
        starts = cut_evenly(*sums, count=3, cap=100)
        assert len(starts) == 4 and starts[0] == 0 and starts[-1] == 7
        assert max(max(np.diff(s[starts])) for s in sums) == best
        assert cut_evenly(*sums, count=3, cap=best - 1) is None


def test_pair_longer_than_the_batch_is_reported():
    sums = np.array([0, 5, 30])
    with pytest.raises(UserError, match="config.data.batch_tokens = 20"):
        cut(sums, sums, cap=20)


@pytest.mark.parametrize("size", [1, 2, 3, 64, 1000, 4097])
def test_bijection_hits_every_index_once(size):
    out = bijection(np.arange(size), size, key=11)
    np.testing.assert_array_equal(np.sort(out), np.arange(size))
    np.testing.assert_array_equal(bijection(np.arange(size)[::-1], size, key=11), out[::-1])


def test_orders_match_recorded_ones():
    """A run must resume with the same order under another NumPy or Python version."""
    np.testing.assert_array_equal(permutation(8, 5), [6, 0, 2, 1, 4, 7, 3, 5])
    np.testing.assert_array_equal(bijection(np.arange(8), 8, 5), [0, 5, 6, 7, 2, 3, 4, 1])
