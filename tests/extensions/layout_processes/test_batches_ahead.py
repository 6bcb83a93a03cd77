"""Batches of windows that are laid out ahead."""

import numpy as np
import pytest
from helpers.configs import devices_mesh, random_pairs, write_store

from t2t_flax.config import Data
from t2t_flax.data.batching.batches import Batches
from t2t_flax.extensions.layout_processes import ahead
from t2t_flax.training.setup import Prefetcher


@pytest.mark.parametrize("num_workers", [1, 2])
def test_batches_of_windows_laid_out_ahead_are_those_of_their_numbers(tmp_path, monkeypatch, num_workers):
    monkeypatch.setattr(ahead, "INLINE_SECONDS", -1.0)
    store = write_store(tmp_path / "store", random_pairs(300, longest=22))
    data = Data(batch_tokens=300, pack_length=24, microbatch_tokens=0, batching="packed")
    expected = Batches(store, data, seed=3, shards=2)
    with Prefetcher(Batches(store, data, seed=3, shards=2), devices_mesh(2, 1, 1), 5, 60, num_workers) as prefetcher:
        for k in range(5, 60):
            batch = prefetcher.next()
            for name, array in expected.batch(k).arrays.items():
                np.testing.assert_array_equal(batch.arrays[name], array)
