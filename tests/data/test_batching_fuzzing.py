"""Fuzzing of batching: every update exists, respects its bounds, and has a shape from the closed list."""

import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.config import Data
from t2t_flax.data.batching import batch_sampler, layouts
from t2t_flax.data.batching.batch_sampler import GROUP_MULTIPLE, group_starts
from t2t_flax.data.batching.batches import Batches


class Lengths:
    """A token store with lengths only, which is all that computing the rows of an update reads."""

    def __init__(self, source: np.ndarray, target: np.ndarray):
        self.lengths = self.source_lengths, self.target_lengths = source.astype(np.int32), target.astype(np.int32)
        self.num_pairs = len(source)
        self.longest = int(max(x.max() for x in self.lengths))
        self.mean_length = max(float(x.mean()) for x in self.lengths)

    def release(self) -> None:
        pass


def log_normal(rng, count, longest):
    source = rng.lognormal(np.log(0.1 * longest), 0.6, count)
    return source, source * rng.normal(1, 0.15, count)


def bimodal(rng, count, longest):
    middle = np.where(rng.random(count) < 0.5, 0.04, 0.8) * longest
    source = middle * rng.normal(1, 0.1, count)
    return source, source * rng.normal(1, 0.1, count)


def equal_lengths(rng, count, longest):
    length = rng.integers(2, longest + 1)
    return np.full(count, length), np.full(count, length)


def one_very_long(rng, count, longest):
    source = rng.normal(0.08 * longest, 0.02 * longest, count)
    source[rng.integers(count)] = longest
    return source, source[rng.permutation(count)]


def long_sources(rng, count, longest):
    source = rng.lognormal(np.log(0.25 * longest), 0.5, count)
    return source, source / 8


def half_row_lengths(rng, count, longest):
    """Most pairs fill a row, and an update, about half or just over half."""
    return [longest * rng.choice([0.3, 0.49, 0.51, 1.0], count, p=[0.3, 0.3, 0.3, 0.1]) for _ in range(2)]


CORPORA = [log_normal, bimodal, equal_lengths, one_very_long, long_sources, half_row_lengths]


def corpus(kind, count: int, longest: int, seed: int = 0) -> Lengths:
    sides = kind(np.random.default_rng(seed), count, longest)
    return Lengths(*(np.clip(np.round(side), 2, longest) for side in sides))


def check_updates(store: Lengths, config: Data, seed: int, epochs: int = 3) -> Batches:
    """Builds every update of these epochs and checks its invariants."""
    batches = Batches(store, config, seed=seed)
    allowed = set(batches.shapes)
    for epoch in range(epochs):
        visits = np.zeros(store.num_pairs, int)
        for k in range(epoch * batches.updates_per_epoch, (epoch + 1) * batches.updates_per_epoch):
            batch = batches.batch(k)
            shape = batch.shape
            assert batch.epoch == epoch and shape in allowed
            assert 0 < max(batch.source_tokens, batch.target_tokens) <= config.batch_tokens
            assert batch.row.min() >= 0 and batch.row.max() < shape.micro * shape.rows
            for lengths in store.lengths:
                assert np.bincount(batch.row, lengths[batch.pairs]).max() <= shape.length
            if config.batching == "buckets":
                assert len(set(batch.row.tolist())) == len(batch.row), "one pair per row"
            visits[batch.pairs] += 1
        assert (visits == 1).all(), "each pair exactly once per epoch"
    return batches


def same(first, second) -> bool:
    return first.shape == second.shape and all(
        np.array_equal(x, y)
        for x, y in zip(
            (first.pairs, first.row, *first.starts), (second.pairs, second.row, *second.starts), strict=True
        )
    )


@st.composite
def runs(draw):
    """A corpus of several small windows, and a config that batches it."""
    longest = draw(st.sampled_from([8, 24, 60]))
    store = corpus(draw(st.sampled_from(CORPORA)), draw(st.integers(1, 700)), longest, draw(st.integers(0, 99)))
    batching, count = (
        draw(st.sampled_from(["packed", "buckets"])),
        draw(st.sampled_from(["real_tokens", "padded_tokens"])),
    )
    groups = draw(st.integers(1, 8)) if (batching, count) == ("packed", "padded_tokens") else 1
    config = Data(
        batching=batching,
        batch_size_counts=count,
        batch_groups=groups,
        max_length=longest,
        pack_length=longest + draw(st.integers(0, 20)),
        batch_tokens=groups * longest * draw(st.integers(2, 9)),
        microbatch_tokens=draw(st.sampled_from([0, 1, longest - 1, longest, 5 * longest])),
    )
    return store, config, draw(st.integers(0, 4))


@pytest.fixture(autouse=True, scope="module")
def no_count_cache():
    """These stores have no folder, so update counts cannot be cached."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layouts, "MIN_CACHED_PAIRS", 10**9)
        yield


@pytest.fixture(autouse=True, scope="module")
def small_windows():
    """Small windows, so that a small corpus has several; slow tests use the real size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_sampler, "WINDOW_PAIRS", 200)
        patch.setattr(batch_sampler, "WINDOW_UPDATES", 4)
        yield patch


@hypothesis.settings(max_examples=60)
@given(run=runs())
def test_three_epochs_of_random_corpora_and_settings(run):
    check_updates(*run)


@pytest.mark.parametrize(
    "keys",
    [
        dict(),
        dict(batching="buckets"),
        dict(batch_size_counts="padded_tokens"),
        dict(batch_size_counts="padded_tokens", batch_groups=3),
    ],
    ids=lambda keys: "-".join(map(str, keys.values())) or "packed",
)
def test_later_updates_with_other_lengths_keep_their_bounds(keys):
    """Among hundreds of updates some need more rows than any of the first ones."""
    tokens = 240 * keys.get("batch_groups", 1)
    check_updates(
        corpus(bimodal, 6000, 60), Data(max_length=60, pack_length=60, batch_tokens=tokens, **keys), 0, epochs=2
    )


@hypothesis.settings(max_examples=15)
@given(run=runs(), order=st.lists(st.integers(0, 200), min_size=1, max_size=4))
def test_updates_do_not_depend_on_access_order(run, order):
    store, config, seed = run
    fresh, accessed = (Batches(store, config, seed=seed) for _ in range(2))
    for k in order:
        accessed.batch(k)
    for k in (order[-1], order[0], 0):
        assert same(accessed.batch(k), fresh.batch(k))


@hypothesis.settings(max_examples=15)
@given(run=runs(), shards=st.integers(1, 8))
def test_rows_do_not_depend_on_mesh_and_microbatches(run, shards):
    store, config, seed = run
    reference = Batches(store, config, seed=seed)
    sharded = Batches(store, dataclasses.replace(config, microbatch_tokens=0), seed=seed, shards=shards)
    assert reference.updates_per_epoch == sharded.updates_per_epoch
    for k in range(0, 2 * reference.updates_per_epoch, 7):
        np.testing.assert_array_equal(reference.batch(k).pairs, sharded.batch(k).pairs)
        np.testing.assert_array_equal(reference.batch(k).row, sharded.batch(k).row)


@hypothesis.settings(max_examples=15)
@given(run=runs(), shards=st.integers(1, 8))
def test_fewer_microbatch_tokens_never_need_larger_microbatches(run, shards):
    store, config, seed = run
    before = None
    for tokens in (0, 4000, 700, 100, 60, 24, 9, 1):
        shapes = Batches(store, dataclasses.replace(config, microbatch_tokens=tokens), seed=seed, shards=shards).shapes
        assert len(set(shapes)) == len(shapes), "no program is compiled twice"
        most_rows = {shape.length: max(s.rows for s in shapes if s.length == shape.length) for shape in shapes}
        assert before is None or all(most_rows[length] <= before[length] for length in before)
        before = most_rows
        if tokens:
            assert all(s.rows // shards <= max(1, tokens // s.length) for s in shapes)


@hypothesis.settings(max_examples=200)
@hypothesis.example([10] * 15 + [100] + [11] * 30, 200)
@given(st.lists(st.integers(1, 40), max_size=300), st.integers(40, 400))
def test_groups_keep_their_bound_for_any_length_order(lengths, cap):
    lengths = np.array(lengths, int)
    groups = np.split(lengths, group_starts(lengths, cap))
    assert np.concatenate(groups).tolist() == lengths.tolist()
    assert all(len(group) * group.max(initial=0) <= cap for group in groups)
    assert all(len(group) % GROUP_MULTIPLE == 0 or len(group) < GROUP_MULTIPLE for group in groups[:-1])


BATCHINGS = [
    dict(batching="packed"),
    dict(batching="packed", microbatch_tokens=255),
    dict(batching="buckets"),
    dict(batching="buckets", microbatch_tokens=1000),
    dict(batch_size_counts="padded_tokens"),
    dict(batch_size_counts="padded_tokens", batch_groups=2),
    dict(batch_size_counts="padded_tokens", batch_groups=8),
    dict(batch_size_counts="padded_tokens", batching="buckets"),
]


def some_corpora() -> list:
    """Every corpus and every way of batching at least once; all other pairs are drills."""
    cases = []
    for i, keys in enumerate(BATCHINGS):
        for j, kind in enumerate(CORPORA):
            marks = [] if j == i % len(CORPORA) else [pytest.mark.drill]
            cases.append(pytest.param(keys, kind, marks=marks, id="-".join(map(str, [*keys.values(), kind.__name__]))))
    return cases


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "kind"), some_corpora())
def test_three_epochs_of_large_corpora(keys, kind, small_windows):
    small_windows.undo()
    groups = keys.get("batch_groups", 1)
    for pairs, tokens, seeds in ((1000, 25_000, 5), (29_000, max(4096, 512 * groups), 1), (200_000, 25_000, 1)):
        store = corpus(kind, pairs, 256)
        for seed in range(seeds):
            check_updates(store, Data(batch_tokens=tokens, **keys), seed)


@pytest.mark.drill
@pytest.mark.parametrize("keys", BATCHINGS, ids=lambda keys: "-".join(map(str, keys.values())))
@pytest.mark.parametrize("kind", [log_normal, long_sources])
def test_three_epochs_of_a_million_pairs(keys, kind, small_windows):
    small_windows.undo()
    check_updates(corpus(kind, 1_000_000, 256), Data(**keys), seed=0)
