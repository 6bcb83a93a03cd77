"""Rows hold whole pairs in shapes from the closed list, and no pair is lost."""

import dataclasses

import numpy as np
import pytest
from helpers.configs import DATA, random_pairs, small_config, write_store
from helpers.refusals import refused

from t2t_flax.data.batching.batches import Batches, validation_batches
from t2t_flax.data.batching.layouts import bucket_edges
from t2t_flax.data.batching.rows import Shape, shape_of

KINDS = ["packed", "buckets"]


@pytest.fixture
def pairs():
    return random_pairs(300, longest=22)


@pytest.fixture
def store(tmp_path, pairs):
    return write_store(tmp_path / "store", pairs)


def pairs_in(arrays) -> list:
    """The pairs that the rows of a batch hold, read back by segment."""
    pairs_of_rows = []
    flat = {k: x.reshape(-1, x.shape[-1]) for k, x in arrays.items()}
    for r in range(len(flat["source"])):
        for segment in range(1, flat["source_segments"][r].max(initial=0) + 1):
            sides = []
            for side in ("source", "target"):
                columns = np.flatnonzero(flat[f"{side}_segments"][r] == segment)
                assert np.array_equal(columns, np.arange(columns[0], columns[-1] + 1))
                np.testing.assert_array_equal(
                    flat[f"{side}_positions"][r, columns], np.arange(len(columns))
                )
                sides.append(flat[side][r, columns].tolist())
            pairs_of_rows.append(tuple(sides))
    for side in ("source", "target"):
        assert not flat[side][flat[f"{side}_segments"] == 0].any()
    return pairs_of_rows


@pytest.mark.parametrize("batching", KINDS)
@pytest.mark.parametrize("microbatch_tokens", [0, 48])
def test_epoch_of_batches_contains_every_pair_whole(store, pairs, batching, microbatch_tokens):
    config = dataclasses.replace(DATA, batching=batching, microbatch_tokens=microbatch_tokens)
    batches = Batches(store, config, seed=0)
    shapes = {(s.micro, s.rows, s.length) for s in batches.shapes}
    collected, seen = [], np.zeros(300, int)
    for k in range(batches.updates_per_epoch):
        batch = batches.batch(k)
        assert batch.arrays["target"].shape in shapes
        assert (
            batch.source_tokens
            == (batch.arrays["source_segments"] > 0).sum()
            <= config.batch_tokens
        )
        assert (
            batch.target_tokens
            == (batch.arrays["target_segments"] > 0).sum()
            <= config.batch_tokens
        )
        collected += pairs_in(batch.arrays)
        np.add.at(seen, batch.pairs, 1)
    assert seen.min() == 1 and batch.epoch == 0, "the last update may go on with the next epoch"
    assert sorted(collected) == sorted(
        (s, t) for pair, n in zip(pairs, seen, strict=True) for s, t in [pair] * n
    )


@pytest.mark.parametrize("batching", KINDS)
def test_rows_do_not_depend_on_shards_and_microbatches(store, batching):
    """Batches are identical on every mesh: the same rows in the same global order."""
    rows = []
    for shards, microbatch_tokens in ((1, 0), (4, 0), (1, 48), (2, 72)):
        config = dataclasses.replace(DATA, batching=batching, microbatch_tokens=microbatch_tokens)
        batches = Batches(store, config, seed=0, shards=shards)
        assert all(s.rows % shards == 0 for s in batches.shapes)
        batch = batches.batch(7)
        full = {k: x.reshape(-1, x.shape[-1]) for k, x in batch.arrays.items()}
        used = full["target_segments"].any(axis=1)
        assert not used[np.argmin(used) :].any() or used.all()
        rows.append({k: x[used] for k, x in full.items()})
    for sharded in rows[1:]:
        for name, x in rows[0].items():
            np.testing.assert_array_equal(x, sharded[name])


def test_microbatch_is_at_least_one_row():
    assert shape_of(256, 33, 255, 1) == shape_of(256, 33, 256, 1) == Shape(256, 1, 33)
    assert shape_of(256, 33, 0, 1) == Shape(256, 33, 1) and shape_of(256, 33, 1, 8) == Shape(
        256, 8, 5
    )


def test_validation_rows_contain_pairs_of_any_length(tmp_path):
    pairs = random_pairs(200, longest=22) + [
        ([5] * 70 + [1], [6] * 3 + [1]),
        ([1], [1]),
        ([5] * 30, [6] * 41),
    ]
    store = write_store(tmp_path / "valid", pairs)
    collected = []
    for shape, batches in validation_batches(store, DATA, tokens=400):
        for batch in batches():
            assert batch.arrays["source"].shape == (1, shape.rows, shape.length)
            collected += pairs_in(batch.arrays)
    assert sorted(collected) == sorted((s, t) for s, t in pairs)


@pytest.mark.parametrize("shards", [1, 4])
def test_long_validation_pair_does_not_lengthen_other_rows(tmp_path, shards):
    """Attention memory, rows * length^2, stays constant until a shard has a single row."""
    usual = random_pairs(50, longest=22)
    before = [
        shape
        for shape, _ in validation_batches(write_store(tmp_path / "a", usual), DATA, shards=shards)
    ]
    assert [shape.length for shape in before] == [24]
    store = write_store(tmp_path / "b", [*usual, ([5] * 30 + [1], [6]), ([5, 1], [6] * 1200 + [1])])
    parts = validation_batches(store, DATA, shards=shards)
    assert [shape.length for shape, _ in parts] == [24, 48, 1208] and parts[0][0] == before[0]
    for shape, batches in parts:
        assert (
            shape.rows == shards
            or shape.rows * shape.length**2 <= before[0].rows * before[0].length ** 2
        )
        assert sum(len(batch.pairs) for batch in batches()) == {24: 50}.get(shape.length, 1)


def test_bucket_edges_grow_to_the_maximum():
    edges = bucket_edges(256)
    assert edges[-1] >= 256 and all(b > a for a, b in zip(edges, edges[1:], strict=False))
    assert all(b / a <= 1.51 for a, b in zip(edges, edges[1:], strict=False))


def test_pair_longer_than_a_packed_row_is_refused(tmp_path):
    store = write_store(tmp_path / "store", [([5] * 30 + [1], [6, 1])])
    with refused("31 tokens,", "config.data.pack_length", "24"):
        Batches(store, small_config().data, seed=0)
