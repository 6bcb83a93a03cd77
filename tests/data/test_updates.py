"""Windows are laid out when they are needed, in any process.

What has been counted is kept beside the store.
"""

import dataclasses
import json
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from helpers.configs import DATA, random_pairs, write_store
from helpers.refusals import refused
from helpers.update_checks import Lengths

from t2t_flax.config import Data
from t2t_flax.data.batching import updates, windows
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.batching.layouts import Layouter, PairReader
from t2t_flax.data.batching.updates import plain_stream
from t2t_flax.data.stored_ids import Sentences
from t2t_flax.data.token_store import TokenStore

KEYS = [dict(), dict(batch_tokens=3000), dict(batching="buckets")]


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Of nine windows."""
    monkeypatch.setattr(windows, "WINDOW_PAIRS", 100)
    return write_store(tmp_path / "store", random_pairs(900, longest=22))


@pytest.fixture
def laid_out(monkeypatch):
    """The numbers of the windows that are laid out from now on."""
    numbers, real = [], Layouter.lay_out
    monkeypatch.setattr(
        Layouter, "lay_out", lambda self, window: numbers.append(window) or real(self, window)
    )
    return numbers


@pytest.mark.parametrize("keys", KEYS)
def test_updates_are_consecutive_rows_of_all_windows(store, keys):
    """An update may have rows of several windows, and of two epochs."""
    config = dataclasses.replace(DATA, **keys)
    batches = Batches(store, config, seed=0)
    layouts = [batches.stream.layouter.lay_out(window) for window in range(20)]
    size = batches.stream.layouter.blocks_of_update
    blocks = [
        np.sort(pairs).tolist()
        for layout in layouts
        for pairs in np.split(layout.samples.pairs, layout.ends[:-1])
    ]
    for k in range(len(blocks) // size):
        wanted = sum(blocks[k * size : (k + 1) * size], [])
        assert sorted(batches.batch(k).pairs.tolist()) == sorted(wanted)
    first_epoch = sum(layout.blocks for layout in layouts[:9])
    assert batches.updates_per_epoch == math.ceil(first_epoch / size)


def test_tiny_corpora_fill_an_update_with_several_epochs():
    batches = Batches(
        Lengths(np.array([3, 4]), np.array([4, 2])),
        dataclasses.replace(DATA, batch_tokens=240),
        seed=0,
    )
    assert batches.updates_per_epoch == 1 and np.bincount(batches.batch(3).pairs).tolist() == [
        10,
        10,
    ]


def test_rows_are_full_and_mix_short_and_long_pairs():
    rng = np.random.default_rng(0)
    source = np.clip(rng.lognormal(3.1, 0.6, 30_000), 2, 250)
    target = np.clip(source * rng.normal(1, 0.15, 30_000), 2, 250)
    batches = Batches(Lengths(source, target), Data(microbatch_tokens=0), seed=0)
    found = [batches.batch(k) for k in range(batches.updates_per_epoch)]
    assert np.mean([max(b.source_tokens, b.target_tokens) / b.shape.slots for b in found]) > 0.96
    means = [source[batch.pairs].mean() for batch in found]
    assert np.std(means) < 0.1 * source.mean()


def test_buckets_hold_similar_pairs():
    source, target = np.random.default_rng(0).integers(2, 70, (2, 5000))
    spread = {}
    for batching in ("packed", "buckets"):
        config = Data(batch_tokens=1500, max_length=80, pack_length=80, batching=batching)
        batches = Batches(Lengths(source, target), config, seed=0)
        found = [batches.batch(k) for k in range(batches.updates_per_epoch)]
        spread[batching] = np.mean(
            [np.ptp(np.maximum(source, target)[batch.pairs]) for batch in found]
        )
    assert spread["buckets"] < 0.3 * spread["packed"]
    lengths = [batch.shape.length for batch in found]
    assert sorted(lengths) != lengths and sorted(lengths)[::-1] != lengths, "in a seeded order"


def test_epochs_and_seeds_have_other_orders(store):
    first, other = (Batches(store, DATA, seed=seed) for seed in (0, 1))
    orders = [
        first.batch(0).pairs,
        other.batch(0).pairs,
        first.batch(first.updates_per_epoch + 1).pairs,
    ]
    assert len({str(pairs) for pairs in orders}) == 3


def test_a_start_lays_out_what_it_needs(store, laid_out):
    batches = Batches(store, DATA, seed=0)
    assert not laid_out
    batches.batch(0)
    assert laid_out == [0]
    half = batches.updates_per_epoch // 2
    del laid_out[:]
    batches.batch(half)
    assert len(laid_out) <= 2


@pytest.mark.parametrize("keys", KEYS)
def test_another_start_goes_on_from_what_was_counted(tmp_path, store, laid_out, monkeypatch, keys):
    monkeypatch.setattr(updates, "_KEPT_EVERY", 1)
    config = dataclasses.replace(DATA, **keys)
    first = Batches(store, config, seed=0)
    last = 2 * first.updates_per_epoch
    pairs = first.batch(last).pairs
    assert len(list(tmp_path.glob("store.plan-*.json"))) == 1
    used = set(first.stream._layouts)
    del laid_out[:]
    again = Batches(store, config, seed=0)
    assert (again.updates_per_epoch, again.shapes) == (
        first.updates_per_epoch,
        first.shapes,
    ) and not laid_out
    np.testing.assert_array_equal(again.batch(last).pairs, pairs)
    assert max(laid_out) == max(used) and len(laid_out) <= 3, "the windows of that update"
    Batches(store, config, seed=1).batch(0)
    assert len(list(tmp_path.glob("store.plan-*.json"))) == 2, "a file for each set of keys"


def test_packed_rows_of_any_batch_size_share_a_plan(tmp_path, store):
    for tokens in (160, 400):
        assert Batches(
            store, dataclasses.replace(DATA, batch_tokens=tokens), seed=0
        ).updates_per_epoch
    assert len(list(tmp_path.glob("store.plan-*.json"))) == 1


def test_a_lost_plan_is_counted_again(tmp_path, store):
    first = Batches(store, DATA, seed=0)
    last = 2 * first.updates_per_epoch
    pairs = first.batch(last).pairs
    for path in tmp_path.glob("store.plan-*.json"):
        path.unlink()
    np.testing.assert_array_equal(Batches(store, DATA, seed=0).batch(last).pairs, pairs)


@pytest.mark.parametrize(
    "text",
    ["", "[1, 2", "[1, 2]", '{"a": 1}', '{"blocks": [0, 9]}', '{"blocks": []}', '{"blocks": 7}'],
)
def test_a_malformed_plan_is_made_again(tmp_path, store, text):
    right = Batches(store, DATA, seed=0).updates_per_epoch
    (path,) = tmp_path.glob("store.plan-*.json")
    path.write_text(text)
    assert Batches(store, DATA, seed=0).updates_per_epoch == right
    assert path.read_text() != text


def test_a_plan_of_other_data_is_refused(tmp_path, store):
    assert Batches(store, DATA, seed=0).updates_per_epoch
    (path,) = tmp_path.glob("store.plan-*.json")
    path.write_text(json.dumps({"blocks": [3] * 9}))
    with refused(path.name):
        Batches(store, DATA, seed=0).batch(0)


def test_a_folder_without_write_permission_is_no_error(store, monkeypatch):
    def refuse(path, data):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(updates, "atomic_write", refuse)
    assert Batches(store, DATA, seed=0).updates_per_epoch > 10


def test_only_the_requested_window_is_read(store):
    assert Batches(store, DATA, seed=0).updates_per_epoch
    read = set()

    def sentences(pairs):
        read.update(pairs.tolist())
        return TokenStore.sentences(store, pairs)

    store.sentences = sentences
    batches = Batches(store, DATA, seed=0)
    assert not read
    batches.batch(3)
    assert 0 < len(read) <= 130


@pytest.mark.parametrize("keys", KEYS)
def test_a_window_is_laid_out_alike_in_another_process(store, keys):
    """The layouter is small when pickled, and needs no JAX."""
    layouter = plain_stream(PairReader(store), dataclasses.replace(DATA, **keys), 0).layouter
    pickled = pickle.dumps(layouter)
    assert len(pickled) < 5_000
    program = (
        "import pickle, sys; layouter = pickle.load(sys.stdin.buffer); layout = layouter.lay_out(7);"
        "assert 'jax' not in sys.modules; sys.stdout.buffer.write(pickle.dumps(layout))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], input=pickled, stdout=subprocess.PIPE, check=True
    ).stdout
    here, there = layouter.lay_out(7), pickle.loads(out)
    for name in ("samples", "row", "starts", "ends", "sizes"):
        np.testing.assert_array_equal(getattr(here, name), getattr(there, name))


@dataclasses.dataclass(frozen=True)
class Repeated:
    """`PairReader` that repeats each sentence, before its EOS, once a pass, up to twice."""

    store: TokenStore
    longest: int = 48
    key: str = "repeated"
    draws: bool = True

    def read(self, samples):
        return tuple(self._side(side, samples) for side in (self.store.source, self.store.target))

    def _side(self, sentence, samples):
        drawn = [
            np.append(np.tile(sentence(pair)[:-1], 1 + min(number, 1)), 1)
            for pair, number in zip(*samples, strict=True)
        ]
        lengths = np.array([len(ids) for ids in drawn], np.int32)
        return Sentences(np.concatenate(drawn), np.cumsum(lengths) - lengths, lengths)


def test_one_window_is_drawn_to_estimate_an_epoch(store, monkeypatch):
    """To draw a window takes seconds."""
    drawn, real = [], Repeated.read
    monkeypatch.setattr(
        Repeated,
        "read",
        lambda self, samples: drawn.append(len(samples.pairs)) or real(self, samples),
    )
    config = dataclasses.replace(DATA, batch_tokens=96, max_length=48, pack_length=48)
    stream = plain_stream(Repeated(store), config, 0)
    assert (
        stream.updates_per_epoch == math.ceil(9 * stream.layout(0).blocks / 2) and len(drawn) == 1
    )


@pytest.mark.parametrize("batching", ["packed", "buckets"])
def test_ids_may_be_drawn_anew_in_each_epoch(store, batching):
    """Also in an update with pairs of two windows."""
    config = dataclasses.replace(DATA, batching=batching, max_length=48, pack_length=48)
    batches = Batches(
        store,
        config,
        seed=0,
        make_stream=lambda reader, *arguments: plain_stream(Repeated(reader.store), *arguments),
    )
    seen, k = np.zeros(900, int), 0
    while seen.min() < 2:
        batch = batches.batch(k)
        assert batch.shape in batches.shapes
        arrays = {name: x[0] for name, x in batch.arrays.items()}
        assert (arrays["source_segments"] > 0).sum() == batch.source_tokens
        for pair, row, start in zip(batch.pairs, batch.row, batch.starts[1], strict=True):
            drawn = store.target(pair)[:-1].tolist() * (1 + min(seen[pair], 1)) + [1]
            assert arrays["target"][row, start : start + len(drawn)].tolist() == drawn
        np.add.at(seen, batch.pairs, 1)
        k += 1
