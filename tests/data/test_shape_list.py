"""The closed list covers all counted sizes with few shapes and little padding."""

import itertools
from collections import Counter

import numpy as np
import pytest

from t2t_flax.config import Data
from t2t_flax.data.batching.batch_sampler import closed_list, levels, smallest_fitting


def slots(rows: Counter, chosen) -> int:
    return sum(updates * min(level for level in chosen if level >= n) for n, updates in rows.items())


@pytest.mark.parametrize("seed", range(8))
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
    assert len(chosen) == 4 and chosen[-1] == 3_999 and slots(wide, chosen) < 1.3 * slots(wide, wide)


@pytest.mark.parametrize("count", ["real_tokens", "padded_tokens"])
@pytest.mark.parametrize("batching", ["packed", "buckets"])
def test_every_counted_update_gets_the_cheapest_size(batching, count):
    rng = np.random.default_rng(0)
    config = Data(batching=batching, batch_size_counts=count, pack_length=64)
    lengths = rng.integers(2, 65, 300).tolist() if batching == "buckets" else [64] * 300
    needed = Counter(zip(lengths, rng.integers(1, 90, 300).tolist(), strict=True))
    sizes = closed_list(config, needed)
    assert sizes == sorted(set(sizes)) and len(sizes) <= 10
    for length, rows in needed:
        fitting = sizes[smallest_fitting(sizes, (length, rows))]
        assert fitting[0] >= length and fitting[1] >= rows
        assert all(a * b >= fitting[0] * fitting[1] for a, b in sizes if a >= length and b >= rows)
    assert smallest_fitting(sizes, (64, 10_000)) is None
