"""Updates are counted once per window; the counts are cached beside the store."""

import dataclasses

import numpy as np
import pytest
from helpers.configs import DATA, random_pairs, write_store

from t2t_flax.data.batching import batch_sampler, layouts
from t2t_flax.data.batching.batch_sampler import BatchSampler
from t2t_flax.data.batching.batches import Batches


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(batch_sampler, "WINDOW_PAIRS", 100)
    monkeypatch.setattr(batch_sampler, "WINDOW_UPDATES", 4)
    monkeypatch.setattr(layouts, "MIN_CACHED_PAIRS", 900)
    return write_store(tmp_path / "store", random_pairs(900, longest=22))


def counted(monkeypatch):
    """Records the windows that are counted from now on."""
    counted_windows, real = [], BatchSampler.count
    monkeypatch.setattr(BatchSampler, "count", lambda self, w: counted_windows.append(w) or real(self, w))
    return counted_windows


KEYS = [dict(), dict(batch_tokens=200), dict(batching="buckets")]


def test_later_start_reuses_the_counts(tmp_path, store, monkeypatch):
    counted_windows = counted(monkeypatch)
    first = {}
    for n, keys in enumerate(KEYS):
        for seed in (0, 1):
            first[n, seed] = Batches(store, dataclasses.replace(DATA, **keys), seed=seed)
    assert len(counted_windows) == sum(len(b.stream.sampler.counts) for b in first.values()) >= 4 * len(first)
    assert len(list(tmp_path.glob("store.plan-*.json"))) == len(first), "a file for each set of keys"
    del counted_windows[:]
    for (n, seed), before in first.items():
        cached = Batches(store, dataclasses.replace(DATA, **KEYS[n]), seed=seed)
        assert cached.updates_per_epoch == before.updates_per_epoch and cached.shapes == before.shapes
        for k in (0, 7, before.updates_per_epoch + 3):
            np.testing.assert_array_equal(cached.batch(k).pairs, before.batch(k).pairs)
    assert not counted_windows


OTHER = [
    "",
    "[1, 2",
    "[1, 2]",
    '{"a": 1}',
    '{"updates": [0, 0, 0, 0, 0, 0, 0, 0, 0], "cuts": [0, 0, 0, 0, 0, 0, 0, 0, 0], "sizes": [[24, 7]]}',
    '{"updates": [9, 9, 9, 9, 9, 9, 9, 9, 9], "cuts": [0, 0, 0, 0, 0, 0, 0, 0, 0], "sizes": []}',
    '{"updates": [9], "cuts": [0], "sizes": [[24, 7]]}',
]


@pytest.mark.parametrize("text", OTHER)
def test_malformed_cache_is_counted_again(tmp_path, store, monkeypatch, text):
    right = Batches(store, DATA, seed=0).updates_per_epoch
    (path,) = tmp_path.glob("store.plan-*.json")
    path.write_text(text)
    assert Batches(store, DATA, seed=0).updates_per_epoch == right
    assert path.read_text() != text


def test_read_only_folder_is_no_error(store, monkeypatch):
    def refuse(path, data):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(layouts, "atomic_write", refuse)
    assert Batches(store, DATA, seed=0).updates_per_epoch > 10


def test_only_the_requested_window_is_read(store):
    """With a cached file, startup reads no lengths, and an update only those of its window."""
    Batches(store, DATA, seed=0)
    read = [set(), set()]

    class Noting:
        def __init__(self, x, places):
            self.x, self.places = x, places

        def __len__(self):
            return len(self.x)

        def __getitem__(self, index):
            self.places.update(np.asarray(index).tolist())
            return self.x[index]

    noting = [Noting(x, places) for x, places in zip(store.lengths, read, strict=True)]
    store.source_lengths, store.target_lengths = noting
    batches = Batches(store, DATA, seed=0)
    assert not any(read)
    batches.batch(3)
    assert all(0 < len(places) <= 130 for places in read)
