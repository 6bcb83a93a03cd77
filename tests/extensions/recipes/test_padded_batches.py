"""Groups sized with padding.

Fairseq's greedy rule, every pair once per epoch, random access to updates.
"""

import hashlib
import itertools
import json
from collections import Counter

import hypothesis
import numpy as np
import pytest
from helpers.configs import random_pairs, small_config, write_store
from helpers.refusals import refused
from helpers.update_checks import CORPORA, Lengths, bimodal, check_updates, corpus
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.config import Data
from t2t_flax.config.overrides import check_combinations
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.batching.updates import plain_stream
from t2t_flax.data.hooks import training_stream
from t2t_flax.extensions.recipes import padded_batches
from t2t_flax.extensions.recipes.padded_batches import (
    GROUP_MULTIPLE,
    group_starts,
    levels,
    padded_stream,
)


def naive_groups(lengths, cap):
    """The naive rule: a group is full when one more pair would push pairs * longest over a cap."""
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


@hypothesis.settings(max_examples=200)
@hypothesis.example([10] * 15 + [100] + [11] * 30, 200)
@given(st.lists(st.integers(1, 40), max_size=300), st.integers(40, 400))
def test_groups_keep_their_bound_for_any_length_order(lengths, cap):
    lengths = np.array(lengths, int)
    groups = np.split(lengths, group_starts(lengths, cap))
    assert np.concatenate(groups).tolist() == lengths.tolist()
    assert all(len(group) * group.max(initial=0) <= cap for group in groups)
    assert all(
        len(group) % GROUP_MULTIPLE == 0 or len(group) < GROUP_MULTIPLE for group in groups[:-1]
    )


def epoch_of(batches, epoch):
    """The batches of an epoch."""
    several = itertools.dropwhile(
        lambda batch: batch.epoch < epoch, map(batches.batch, itertools.count())
    )
    return itertools.takewhile(lambda batch: batch.epoch == epoch, several)


@pytest.fixture
def lengths():
    rng = np.random.default_rng(0)
    return Lengths(rng.integers(1, 30, 3000), rng.integers(1, 30, 3000))


def test_epoch_contains_every_pair_once_in_fixed_groups(lengths):
    batches = Batches(
        lengths,
        Data(batch_tokens=800, max_length=30, pack_length=30),
        seed=3,
        make_stream=padded_stream(2),
    )
    epochs = [[batch.pairs.tolist() for batch in epoch_of(batches, epoch)] for epoch in (0, 1)]
    assert all(sorted(itertools.chain(*updates)) == list(range(3000)) for updates in epochs)
    first, second = ({tuple(sorted(update)) for update in updates} for updates in epochs)
    assert first != second, "each epoch combines groups differently"
    longer = np.maximum(*lengths.lengths)
    one = Batches(
        lengths,
        Data(batch_tokens=400, max_length=30, pack_length=30),
        seed=3,
        make_stream=padded_stream(1),
    )
    groups = [
        {frozenset(batch.pairs.tolist()) for batch in epoch_of(one, epoch)} for epoch in (0, 1)
    ]
    assert groups[0] == groups[1]
    assert all(len(g) * max(longer[i] for i in g) <= 400 for g in groups[0])


@pytest.mark.smoke
def test_batches_of_groups_have_shapes_of_the_closed_list(tmp_path):
    store = write_store(tmp_path / "store", random_pairs(600))
    config = small_config(data=dict(batch_tokens=400), recipes=dict(batch_groups=2))
    batches = Batches(store, config.data, seed=0, make_stream=training_stream(config, None))
    shapes = {(s.micro, s.rows, s.length) for s in batches.shapes}
    assert 1 < len(shapes) <= 4
    visited = []
    for k in range(batches.updates_per_epoch):
        batch = batches.batch(k)
        assert batch.arrays["target"].shape in shapes
        visited += batch.pairs.tolist()
    assert sorted(visited) == list(range(600))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"data.batching": "buckets", "data.pack_length": 256}, "recipes.batch_groups"),
        ({"data.batch_tokens": 60}, "data.batch_tokens"),
    ],
)
def test_impossible_groups_are_refused(values, named):
    config = small_config(recipes=dict(batch_groups=2)).with_values(values)
    with refused(named):
        check_combinations(config)


RECORDED = ["43ae75c06419", "dd0ee2d50ae7", "48d651eb2911"]


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(padded_batches, "WINDOW_PAIRS", 200)
    monkeypatch.setattr(padded_batches, "_WINDOW_UPDATES", 4)


GROUPS = [(1, "packed", 0), (1, "buckets", 1), (3, "packed", 1), (8, "packed", 0)]


@pytest.mark.parametrize(
    ("case", "kind"), [*zip(itertools.cycle(GROUPS), [*CORPORA, *CORPORA], strict=False)]
)
def test_three_epochs_of_random_corpora(small_windows, case, kind):
    """Each kind of corpus with two of the four ways to make groups."""
    groups, batching, seed = case
    config = Data(
        batching=batching, max_length=24, pack_length=30, batch_tokens=groups * 24 * (2 + 3 * seed)
    )
    check_updates(corpus(kind, 600, 24, seed), config, seed, make_stream=padded_stream(groups))


@pytest.mark.parametrize("groups", [1, 3])
def test_later_updates_with_other_lengths_keep_their_bounds(small_windows, groups):
    """Among hundreds of updates some need more rows than any of the first ones."""
    config = Data(max_length=60, pack_length=60, batch_tokens=240 * groups)
    check_updates(corpus(bimodal, 6000, 60), config, 0, epochs=2, make_stream=padded_stream(groups))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("groups", "batching"),
    [
        (1, "buckets"),
        (8, "packed"),
        *(pytest.param(groups, "packed", marks=pytest.mark.drill) for groups in (1, 2)),
    ],
)
def test_three_epochs_of_large_corpora(monkeypatch, groups, batching):
    kind = CORPORA[groups % len(CORPORA)]
    for pairs, tokens in ((29_000, max(4096, 512 * groups)), (200_000, 25_000)):
        config = Data(batch_tokens=tokens, batching=batching)
        check_updates(corpus(kind, pairs, 256), config, 0, make_stream=padded_stream(groups))


def test_batches_are_the_recorded_ones():
    """Results that were measured with these batches stay comparable."""
    digests = []
    for groups, batching in ((1, "packed"), (3, "packed"), (1, "buckets")):
        rng = np.random.default_rng(1)
        config = Data(batch_tokens=160 * groups, pack_length=24, max_length=24, batching=batching)
        store = Lengths(*rng.integers(2, 23, (2, 900)))
        batches = Batches(store, config, seed=7, make_stream=padded_stream(groups))
        shapes = [str(shape) for shape in batches.shapes]
        digest = hashlib.sha256(json.dumps([batches.updates_per_epoch, shapes]).encode())
        for batch in map(batches.batch, range(250)):
            for array in (batch.pairs, batch.row, *batch.starts):
                digest.update(np.asarray(array, np.int64).tobytes())
        digests.append(digest.hexdigest()[:12])
    assert digests == RECORDED


@pytest.mark.parametrize("make", [plain_stream, padded_stream(2)])
def test_batches_of_windows_laid_out_in_processes_are_those_of_their_numbers(
    tmp_path, small_windows, make
):
    store = write_store(tmp_path / "store", random_pairs(600))
    data = small_config(data=dict(batch_tokens=400)).data
    expected, batches = (Batches(store, data, seed=0, make_stream=make) for _ in range(2))
    with batches.in_processes(2):
        for k in [*range(12), 40, 3]:
            for name, array in expected.batch(k).arrays.items():
                np.testing.assert_array_equal(batches.batch(k).arrays[name], array)


def slots(rows: Counter, chosen) -> int:
    return sum(
        updates * min(level for level in chosen if level >= n) for n, updates in rows.items()
    )


@pytest.mark.parametrize("seed", range(3))
def test_levels_pad_within_tolerance_of_the_best_choice(seed):
    rng = np.random.default_rng(seed)
    rows = Counter(rng.integers(40, 40 + rng.integers(1, 30), 200).tolist())
    chosen, top = levels(rows, 3), max(rows)
    others = (c for n in (0, 1, 2) for c in itertools.combinations(sorted(rows)[:-1], n))
    least = min(slots(rows, (*c, top)) for c in others)
    assert len(chosen) <= 3 and chosen[-1] == top and slots(rows, chosen) <= 1.003 * least


def test_few_levels_suffice():
    assert levels(Counter({7: 5}), 4) == [7]
    assert levels(Counter({1000: 1, 1001: 1, 1002: 1, 1003: 1}), 4) == [1003]
    wide = Counter(range(1, 4_000))
    chosen = levels(wide, 4)
    assert (
        len(chosen) == 4 and chosen[-1] == 3_999 and slots(wide, chosen) < 1.3 * slots(wide, wide)
    )
