"""Plans of batches: every sentence once, few shapes, bounded sizes."""

import numpy as np
import pytest

from t2t_flax.config import Decode
from t2t_flax.decoding.batches import SOURCE_LENGTHS, plan_batches


def shapes(lengths, config=None, **more):
    return [batch.shape for batch in plan_batches(lengths, config or Decode(), **more)]


@pytest.mark.parametrize("count, shards", [(1, 8), (31, 1), (500, 8), (5000, 1)])
def test_each_sentence_is_in_one_batch_with_room_for_it(count, shards):
    lengths = np.random.default_rng(count).integers(0, 1500, count).tolist()
    batches = plan_batches(lengths, Decode(), shards)
    planned = [i for batch in batches for i in batch.indices]
    assert sorted(planned) == [i for i, n in enumerate(lengths) if n]
    for batch in batches:
        assert 0 < len(batch.indices) <= batch.rows and batch.rows % shards == 0
        assert max(lengths[i] for i in batch.indices) <= batch.source_length
    longest = [max(lengths[i] for i in batch.indices) for batch in batches]
    shortest = [min(lengths[i] for i in batch.indices) for batch in batches]
    assert all(a <= b for a, b in zip(longest, shortest[1:], strict=False))


def test_the_shards_of_a_full_batch_get_equal_shares_of_long_sentences():
    lengths = np.random.default_rng(1).permutation(np.arange(1, 33)).tolist()
    (batch,) = plan_batches(lengths, Decode(batch_size=8), shards=4)
    for shard in range(4):
        mine = [lengths[i] for i in batch.indices[8 * shard : 8 * shard + 8]]
        assert mine == list(range(1 + shard, 33, 4))


def test_no_sentences_give_no_batches():
    assert plan_batches([], Decode()) == plan_batches([0, 0], Decode()) == []


def test_a_few_sentences_get_a_few_rows():
    assert shapes([5]) == [(1, 32)]
    assert shapes([5] * 3) == [(4, 32)]
    assert shapes([5] * 17) == [(32, 32)]
    assert shapes([5] * 33) == [(32, 32)] * 2
    assert shapes([5], shards=8) == [(8, 32)]
    assert shapes([5] * 40, shards=8) == [(128, 32)]
    assert shapes([5] * 6, Decode(batch_size=5)) == [(5, 32)] * 2


def test_long_sources_and_wide_beams_get_fewer_rows():
    longest = [1000] * 100
    assert set(shapes(longest)) == {(8, 1024)}
    assert set(shapes(longest, Decode(beam_size=32))) == {(1, 1024)}
    assert set(shapes(longest, Decode(strategy="greedy"))) == {(8, 1024)}
    assert set(shapes([5] * 100, Decode(beam_size=128))) == {(8, 32)}
    for length in range(1, 3000, 97):
        for config in (
            Decode(),
            Decode(beam_size=16, batch_size=256),
            Decode(strategy="sample", n_best=64),
        ):
            for rows, padded_length in shapes([length] * 300, config):
                width = {"beam": config.beam_size, "sample": config.n_best}[config.strategy]
                assert rows * padded_length * width <= max(
                    config.batch_size * 1024, padded_length * width
                )


def test_only_large_sets_use_every_source_length():
    rng = np.random.default_rng(0)
    assert {shape[1] for shape in shapes(rng.integers(1, 1025, 200).tolist())} == {
        32,
        128,
        512,
        1024,
    }
    assert {shape[1] for shape in shapes(rng.integers(1, 65, 200).tolist())} == {32, 128}
    assert {shape[1] for shape in shapes(rng.integers(1, 1025, 50_000).tolist())} == set(
        SOURCE_LENGTHS
    )


def test_mixed_set_has_one_shape_for_each_length():
    lengths = np.random.default_rng(3).integers(1, 129, 512).tolist()
    assert len(set(shapes(lengths))) <= 2
