"""Update k is a pure function of k; every epoch contains every pair once; batches fill batch_tokens and never exceed it."""

import numpy as np
import pytest
from helpers.refusals import refused
from helpers.update_checks import Lengths, check_sizes, pass_of

from t2t_flax.config import Data
from t2t_flax.data.batching import streams
from t2t_flax.data.batching.batch_sampler import BatchSampler, cut, cut_evenly
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.hashing import bijection, permutation


def lengths(count, seed=0):
    rng = np.random.default_rng(seed)
    source = np.clip(rng.gamma(8, 1.75, count), 1, 60).astype(np.int32) + 1
    target = np.clip(source * rng.normal(1.0, 0.2, count), 2, 70).astype(np.int32)
    return source, target


def batches_of(source, target, batching, seed=3):
    config = Data(batch_tokens=1500, max_length=80, pack_length=80, batching=batching)
    return Batches(Lengths(source, target), config, seed=seed)


@pytest.fixture(params=["packed", "buckets"])
def case(request, monkeypatch):
    monkeypatch.setattr(streams, "WINDOW_PAIRS", 2000)
    source, target = lengths(6007)
    batches = batches_of(source, target, request.param)
    assert batches.stream.layouter.windows.count > 1
    return batches, source, target, request.param


def test_batches_nearly_fill_batch_tokens(case):
    batches, source, target, _ = case
    pairs = [batch.pairs for epoch in (0, 1) for batch in pass_of(batches, epoch)]
    sums = [(source[p].sum(), target[p].sum()) for p in pairs]
    assert np.max(sums) <= 1500
    assert np.mean([max(s) for s in sums]) >= 0.96 * 1500


def test_epochs_and_seeds_differ(case):
    batches, source, target, batching = case
    first, other_seed = batches.batch(0).pairs, batches_of(source, target, batching, seed=4).batch(0).pairs
    assert not np.array_equal(first, next(pass_of(batches, 1)).pairs)
    assert not np.array_equal(first, other_seed)


def test_by_length_groups_similar_lengths():
    source, target = lengths(5000)
    spread = {}
    for batching in ("packed", "buckets"):
        batches = batches_of(source, target, batching, seed=0)
        pairs = [batch.pairs for batch in pass_of(batches, 0)]
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


@pytest.mark.parametrize("batching", ["packed", "buckets"])
def test_every_counted_update_gets_the_cheapest_size(batching):
    check_sizes(BatchSampler, batching)


def test_pair_longer_than_the_batch_is_reported():
    sums = np.array([0, 5, 30])
    with refused("config.data.batch_tokens", "20"):
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
