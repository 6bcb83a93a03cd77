"""Every update exists, respects its bounds, and has a shape from the closed list."""

import dataclasses

import hypothesis
import numpy as np
import pytest
from helpers.update_checks import CORPORA, bimodal, check_updates, corpus
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.config import Data
from t2t_flax.data.batching import windows
from t2t_flax.data.batching.batches import Batches


def same(first, second) -> bool:
    return first.shape == second.shape and all(
        np.array_equal(x, y)
        for x, y in zip(
            (first.pairs, first.row, *first.starts),
            (second.pairs, second.row, *second.starts),
            strict=True,
        )
    )


@st.composite
def runs(draw):
    """A corpus of several small windows, and a config that batches it."""
    longest = draw(st.sampled_from([8, 24, 60]))
    store = corpus(
        draw(st.sampled_from(CORPORA)), draw(st.integers(1, 700)), longest, draw(st.integers(0, 99))
    )
    config = Data(
        batching=draw(st.sampled_from(["packed", "buckets"])),
        max_length=longest,
        pack_length=longest + draw(st.integers(0, 20)),
        batch_tokens=(longest + 20) * draw(st.integers(2, 9)),
        microbatch_tokens=draw(st.sampled_from([0, 1, longest - 1, longest, 5 * longest])),
    )
    return store, config, draw(st.integers(0, 4))


@pytest.fixture(autouse=True, scope="module")
def small_windows():
    """Small windows, so that a small corpus has several; slow tests use the real size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "WINDOW_PAIRS", 200)
        yield patch


@hypothesis.settings(max_examples=60)
@given(run=runs())
def test_three_epochs_of_random_corpora_and_settings(run):
    check_updates(*run)


@pytest.mark.parametrize("batching", ["packed", "buckets"])
def test_later_updates_with_other_lengths_keep_their_bounds(batching):
    """Among hundreds of updates some need more rows than any of the first ones."""
    config = Data(max_length=60, pack_length=60, batch_tokens=240, batching=batching)
    check_updates(corpus(bimodal, 6000, 60), config, 0, epochs=2)


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
    sharded = Batches(
        store, dataclasses.replace(config, microbatch_tokens=0), seed=seed, shards=shards
    )
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
        shapes = Batches(
            store, dataclasses.replace(config, microbatch_tokens=tokens), seed=seed, shards=shards
        ).shapes
        assert len(set(shapes)) == len(shapes), "no program is compiled twice"
        most_rows = {
            shape.length: max(s.rows for s in shapes if s.length == shape.length)
            for shape in shapes
        }
        assert before is None or all(most_rows[length] <= before[length] for length in before)
        before = most_rows
        if tokens:
            assert all(s.rows // shards <= max(1, tokens // s.length) for s in shapes)


BATCHINGS = [
    dict(batching="packed"),
    dict(batching="packed", microbatch_tokens=255),
    dict(batching="buckets"),
    dict(batching="buckets", microbatch_tokens=1000),
]


def some_corpora() -> list:
    """Every corpus and every way of batching at least once; all other pairs are drills."""
    cases = []
    for i, keys in enumerate(BATCHINGS):
        for j, kind in enumerate(CORPORA):
            marks = [] if j == i % len(CORPORA) else [pytest.mark.drill]
            cases.append(
                pytest.param(
                    keys, kind, marks=marks, id="-".join(map(str, [*keys.values(), kind.__name__]))
                )
            )
    return cases


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "kind"), some_corpora())
def test_three_epochs_of_large_corpora(keys, kind, small_windows):
    small_windows.undo()
    for pairs, tokens, seeds in ((1000, 25_000, 5), (29_000, 4096, 1), (200_000, 25_000, 1)):
        store = corpus(kind, pairs, 256)
        for seed in range(seeds):
            check_updates(store, Data(batch_tokens=tokens, **keys), seed)
