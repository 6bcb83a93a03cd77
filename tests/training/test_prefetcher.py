"""Batches made ahead: the same ones, errors where they are taken."""

import threading
import time

import numpy as np
import pytest
from helpers.configs import devices_mesh, random_pairs, write_store
from helpers.refusals import refused
from helpers.runs import start, tiny_run

from t2t_flax.config import Data
from t2t_flax.data.batching.batches import Batches
from t2t_flax.errors import UserError
from t2t_flax.training import loop
from t2t_flax.training.prefetcher import Prefetcher

DATA = Data(batch_tokens=300, pack_length=24, microbatch_tokens=0, batching="packed")


@pytest.fixture
def store(tmp_path):
    return write_store(tmp_path / "store", random_pairs(300, longest=22))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_prefetched_batches_are_those_of_their_numbers(store, num_workers):
    expected = Batches(store, DATA, seed=3, shards=2)
    with Prefetcher(
        Batches(store, DATA, seed=3, shards=2), devices_mesh(2, 1, 1), 5, 60, num_workers
    ) as prefetcher:
        for k in range(5, 60):
            batch = prefetcher.next()
            for name, array in expected.batch(k).arrays.items():
                np.testing.assert_array_equal(batch.arrays[name], array)


def test_an_error_is_raised_where_its_batch_is_taken(store, monkeypatch):
    real = Batches.batch

    def batch(self, k):
        if k == 4:
            raise UserError("damaged store")
        return real(self, k)

    monkeypatch.setattr(Batches, "batch", batch)
    with Prefetcher(Batches(store, DATA, seed=0), devices_mesh(1, 1, 1), 0, 9) as prefetcher:
        for _ in range(4):
            prefetcher.next()
        with refused("damaged store"):
            prefetcher.next()


@pytest.mark.parametrize("megabytes, expected", [(0.0, 3), (0.1, 9), (1e6, 64)])
def test_batches_wait_up_to_a_number_of_bytes(store, monkeypatch, megabytes, expected):
    made = []
    real = Batches.batch
    monkeypatch.setattr(Batches, "batch", lambda self, k: made.append(k) or real(self, k))
    monkeypatch.setattr("t2t_flax.training.prefetcher._AHEAD_BYTES", int(megabytes * 1e6))
    batches = Batches(store, DATA, seed=0)
    (shape,) = batches.shapes
    if 3 < expected < 64:
        expected = int(megabytes * 1e6) // (24 * shape.slots)
    with Prefetcher(batches, devices_mesh(1, 1, 1), 0, 1000) as prefetcher:
        for _ in range(expected):
            prefetcher.next()
            deadline = time.monotonic() + 60
        while len(made) < 2 * expected and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
    assert made == list(range(2 * expected))


def test_first_batches_are_made_during_the_compilation(tmp_path, cache, monkeypatch):
    made, batch, compile_programs = threading.Event(), Batches.batch, loop.compile_programs
    monkeypatch.setattr(Batches, "batch", lambda self, k: (made.set(), batch(self, k))[1])

    def compile_later(*arguments):
        assert made.wait(60), "compiling may take minutes, and so may the first window"
        return compile_programs(*arguments)

    monkeypatch.setattr(loop, "compile_programs", compile_later)
    assert loop.train(start(tiny_run("", steps=1), tmp_path, cache), score=None).step == 1
