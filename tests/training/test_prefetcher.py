"""Batches made ahead: the same ones, errors where they are taken, a message where there are too few cores."""

import threading
import time

import numpy as np
import pytest
from helpers.configs import devices_mesh, random_pairs, write_store
from helpers.runs import start, tiny_run

from t2t_flax.config import Data
from t2t_flax.data.batching import ahead as ahead_module
from t2t_flax.data.batching.batches import Batches
from t2t_flax.errors import UserError
from t2t_flax.training import loop, setup
from t2t_flax.training.run import Run
from t2t_flax.training.setup import Prefetcher

DATA = Data(batch_tokens=300, pack_length=24, microbatch_tokens=0, batching="packed")


@pytest.fixture
def store(tmp_path):
    return write_store(tmp_path / "store", random_pairs(300, longest=22))


def measure(monkeypatch, layout):
    """A batch seems to take so many seconds of a core to lay out, and none to fill, which in truth depends on the machine."""
    for owner, name, seconds in ((ahead_module.Ahead, "seconds", layout), (Prefetcher, "seconds_filling", 0.0)):
        constant = property(lambda self, seconds=seconds: seconds, lambda self, value: None)
        monkeypatch.setattr(owner, name, constant, raising=False)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_prefetched_batches_are_those_of_their_numbers(store, num_workers, monkeypatch):
    monkeypatch.setattr(ahead_module, "INLINE_SECONDS", -1.0)
    expected = Batches(store, DATA, seed=3, shards=2)
    with Prefetcher(Batches(store, DATA, seed=3, shards=2), devices_mesh(2, 1, 1), 5, 60, num_workers) as prefetcher:
        for k in range(5, 60):
            batch = prefetcher.next()
            for name, array in expected.batch(k).arrays.items():
                np.testing.assert_array_equal(batch.arrays[name], array)


def test_an_error_is_raised_where_its_batch_is_taken(store, monkeypatch):
    real = Batches.batch

    def batch(self, k):
        if k == 4:
            raise UserError("the token store is damaged")
        return real(self, k)

    monkeypatch.setattr(Batches, "batch", batch)
    with Prefetcher(Batches(store, DATA, seed=0), devices_mesh(1, 1, 1), 0, 9) as prefetcher:
        for _ in range(4):
            prefetcher.next()
        with pytest.raises(UserError, match="^the token store is damaged$"):
            prefetcher.next()


@pytest.mark.parametrize("megabytes, expected", [(0.0, 3), (0.1, 9), (1e6, 64)])
def test_batches_wait_up_to_a_number_of_bytes(store, monkeypatch, megabytes, expected):
    made = []
    real = Batches.batch
    monkeypatch.setattr(Batches, "batch", lambda self, k: made.append(k) or real(self, k))
    monkeypatch.setattr(setup, "_AHEAD_BYTES", int(megabytes * 1e6))
    batches = Batches(store, DATA, seed=0)
    (shape,) = batches.shapes
    if 3 < expected < 64:
        expected = int(megabytes * 1e6) // (24 * shape.size)
    with Prefetcher(batches, devices_mesh(1, 1, 1), 0, 1000) as prefetcher:
        for _ in range(expected):
            prefetcher.next()
            deadline = time.monotonic() + 60
        while len(made) < 2 * expected and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
    assert made == list(range(2 * expected))


def test_first_batches_are_made_during_the_compilation(tmp_path, cache, monkeypatch):
    made, batch, compile_programs = threading.Event(), Batches.batch, Run.compile
    monkeypatch.setattr(Batches, "batch", lambda self, k: (made.set(), batch(self, k))[1])

    def compile_later(self):
        assert made.wait(60), "compiling may take minutes, and so may the first window"
        compile_programs(self)

    monkeypatch.setattr(Run, "compile", compile_later)
    assert loop.train(start(tiny_run("", steps=1), tmp_path, cache), score=None).step == 1


@pytest.mark.parametrize("seconds", [0.0, 7200.0])
def test_train_says_how_many_cores_would_do(tmp_path, cache, monkeypatch, seconds):
    """`seconds`: those of a core that the layout of an update seems to take. Before the first update by what the devices need at
    least for it, then by what they needed.
    """
    said = []
    measure(monkeypatch, seconds)
    monkeypatch.setattr(setup, "num_cores", lambda: 2)
    monkeypatch.setattr(Run, "least_seconds", lambda self, batch: 2.0 * (batch.target_tokens > 0))
    real = Run.update
    monkeypatch.setattr(Run, "update", lambda *args: said.append("update") or real(*args))
    config = tiny_run("", steps=3, data=dict(num_workers=1))
    loop.train(start(config, tmp_path, cache), score=None, say=said.append)
    lines = [line for line in said if "cores would do" in line]
    assert len(lines) == (2 if seconds else 0)
    if seconds:
        assert "at their peak an update takes them 2.0000 s" in lines[0]
        assert "3601 cores would do; this process may use 2." in lines[0]
        assert said.index(lines[0]) < said.index("update") < said.index(lines[1])


@pytest.mark.parametrize(("seconds", "cores"), [(7.9, 5), (1.9, 0), (0.001, 0)])
def test_cores_follow_from_the_time_of_a_batch(store, monkeypatch, seconds, cores):
    """Enough for the layout and the arrays, and one for the process that trains; nothing is said where there are enough."""
    measure(monkeypatch, seconds)
    monkeypatch.setattr(setup, "num_cores", lambda: 2)
    batches = Batches(store, DATA, seed=0)
    for least, expected in (
        (2.0, f" {cores} cores would do" if cores else ""),
        (0.0, "takes them 0.0050 s" * (seconds > 1)),
    ):
        with Prefetcher(batches, devices_mesh(1, 1, 1), 0, 9) as prefetcher:
            said = prefetcher.expected_shortage(lambda batch, least=least: least)
        assert expected in said and bool(said) == bool(expected)


def test_an_error_of_a_batch_is_no_shortage(store, monkeypatch):
    monkeypatch.setattr(Batches, "batch", lambda self, k: 1 // 0)
    with Prefetcher(Batches(store, DATA, seed=0), devices_mesh(1, 1, 1), 0, 9) as prefetcher:
        assert not prefetcher.expected_shortage(lambda batch: 1e-9)
        with pytest.raises(ZeroDivisionError):
            prefetcher.next()
