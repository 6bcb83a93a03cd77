"""Layouts made ahead by other processes: the same batches, and what happens to the processes."""

import dataclasses
import multiprocessing
import os
import signal
import time

import numpy as np
import psutil
import pytest
from helpers.configs import DATA

from t2t_flax.data.batching.batch_sampler import WINDOW_PAIRS
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.store.token_store import TokenStore
from t2t_flax.data.store.writer import StoreWriter
from t2t_flax.errors import UserError


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two windows."""
    folder, rng = tmp_path_factory.mktemp("ahead") / "store", np.random.default_rng(0)
    with StoreWriter(folder, vocab_sizes=(50, 50)) as writer:
        lengths = [rng.integers(2, 22, 2 * WINDOW_PAIRS).astype(np.int32) for _ in range(2)]
        writer.write(*((rng.integers(4, 50, x.sum()), x) for x in lengths))
        writer.meta.update(digest="two windows")
    return TokenStore.open(folder)


def make(store, **keys):
    config = dataclasses.replace(DATA, batch_tokens=40000, **keys)
    return Batches(store, config, seed=2)


def children(before=()) -> list:
    """The workers that were not there before."""
    return [child for child in multiprocessing.active_children() if child not in before]


def same(one, other) -> None:
    assert one.shape == other.shape and one.epoch == other.epoch
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other.arrays[name])


@pytest.mark.parametrize(
    "keys",
    [dict(), dict(batching="buckets"), dict(batch_size_counts="padded_tokens", batch_groups=2)],
    ids=["packed", "buckets", "padded"],
)
def test_batches_are_those_of_the_training_process(store, keys):
    before = children()
    here, there = make(store, **keys), make(store, batch_processes=2, **keys)
    with there.ahead() as layouts:
        for k in [
            *range(here.updates_per_epoch - 3, here.updates_per_epoch + 4),
            1,
            0,
        ]:  # over an epoch's end, and back
            same(there.batch(k, layouts), here.batch(k))
        own = children(before)
        assert len(own) == 2
    assert not psutil.wait_procs([psutil.Process(c.pid) for c in own if psutil.pid_exists(c.pid)], 10)[1]


def test_a_process_that_is_killed_is_told(store):
    before, batches = children(), make(store, batch_processes=1)
    with batches.ahead() as layouts:
        batches.batch(0, layouts)
        (child,) = children(before)
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(UserError, match="makes batches was killed .* config.data.batch_processes = 0"):
            for k in range(0, 3 * batches.updates_per_epoch, 10):
                batches.batch(k, layouts)


def test_a_signal_to_all_processes_of_a_host_is_left_to_the_parent(store):
    """As a scheduler sends it: the run saves and stops, and needs batches until then."""
    before, batches = children(), make(store, batch_processes=1)
    with batches.ahead() as layouts:
        batches.batch(0, layouts)
        (child,) = children(before)
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(child.pid, number)
        time.sleep(0.2)
        for k in range(0, 3 * batches.updates_per_epoch, 10):
            batches.batch(k, layouts)
        assert child.is_alive()
