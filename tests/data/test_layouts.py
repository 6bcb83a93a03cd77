"""Windows are laid out when they are needed, in any process; what has been counted is kept beside the store."""

import dataclasses
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from helpers.configs import DATA, random_pairs, write_store
from helpers.refusals import refused
from helpers.update_checks import bimodal, corpus, pass_of

from t2t_flax.config import Data
from t2t_flax.data.batching import layouts, streams, window_layouts
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.batching.layouts import plain_stream
from t2t_flax.data.batching.window_layouts import Layouter
from t2t_flax.data.stored_ids import Sentences
from t2t_flax.data.token_store import TokenStore

KEYS = [dict(), dict(batch_tokens=200), dict(batching="buckets")]


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Of nine windows."""
    monkeypatch.setattr(streams, "WINDOW_PAIRS", 100)
    monkeypatch.setattr(streams, "WINDOW_UPDATES", 4)
    return write_store(tmp_path / "store", random_pairs(900, longest=22))


@pytest.fixture
def laid_out(monkeypatch):
    """The numbers of the windows that are laid out from now on, and None for each sample."""
    windows, real, sample = [], Layouter.lay_out, Layouter.sample
    monkeypatch.setattr(Layouter, "lay_out", lambda self, window: windows.append(window) or real(self, window))
    monkeypatch.setattr(Layouter, "sample", lambda self: windows.append(None) or sample(self))
    return windows


def test_a_start_lays_out_what_it_needs(store, laid_out):
    batches = Batches(store, DATA, seed=0)
    assert laid_out == [None]
    batches.batch(0)
    assert laid_out == [None, 0]
    batches.batch(batches.updates_per_epoch // 2)
    assert max(laid_out[1:]) < 7


@pytest.mark.parametrize("keys", KEYS)
def test_another_start_goes_on_from_what_was_counted(tmp_path, store, laid_out, monkeypatch, keys):
    monkeypatch.setattr(layouts, "_KEPT_EVERY", 1)
    config = dataclasses.replace(DATA, **keys)
    first = Batches(store, config, seed=0)
    last = 2 * first.updates_per_epoch
    pairs = first.batch(last).pairs
    assert len(list(tmp_path.glob("store.plan-*.json"))) == 1
    del laid_out[:]
    again = Batches(store, config, seed=0)
    assert (again.updates_per_epoch, again.shapes) == (first.updates_per_epoch, first.shapes)
    np.testing.assert_array_equal(again.batch(last).pairs, pairs)
    assert len(laid_out) == 1, "the window of that update"
    Batches(store, config, seed=1)
    assert len(list(tmp_path.glob("store.plan-*.json"))) == 2, "a file for each set of keys"


def test_a_lost_plan_is_counted_again(tmp_path, store):
    first = Batches(store, DATA, seed=0)
    last = 2 * first.updates_per_epoch
    pairs = first.batch(last).pairs
    for path in tmp_path.glob("store.plan-*.json"):
        path.unlink()
    np.testing.assert_array_equal(Batches(store, DATA, seed=0).batch(last).pairs, pairs)


OTHER = ["", "[1, 2", "[1, 2]", '{"a": 1}', '{"updates": [[0, 9]], "sizes": [[24, 7]]}',
         '{"updates": [[9, 9]], "sizes": []}', '{"updates": 7, "sizes": [[24, 7]]}']  # fmt: skip


@pytest.mark.parametrize("text", OTHER)
def test_a_malformed_plan_is_made_again(tmp_path, store, text):
    right = Batches(store, DATA, seed=0).updates_per_epoch
    (path,) = tmp_path.glob("store.plan-*.json")
    path.write_text(text)
    assert Batches(store, DATA, seed=0).updates_per_epoch == right
    assert path.read_text() != text


def test_a_plan_of_other_data_is_refused(tmp_path, store):
    batches = Batches(store, DATA, seed=0)
    (path,) = tmp_path.glob("store.plan-*.json")
    path.write_text(json.dumps({"sizes": batches.stream.sizes, "updates": [[3, 9]]}))
    with refused(path.name):
        Batches(store, DATA, seed=0).batch(0)


def test_a_folder_without_write_permission_is_no_error(store, monkeypatch):
    def refuse(path, data):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(layouts, "atomic_write", refuse)
    assert Batches(store, DATA, seed=0).updates_per_epoch > 10


def test_only_the_requested_window_is_read(store):
    Batches(store, DATA, seed=0)
    read = set()

    def sentences(pairs):
        read.update(pairs.tolist())
        return TokenStore.sentences(store, pairs)

    store.sentences = sentences
    batches = Batches(store, DATA, seed=0)
    assert not read
    batches.batch(3)
    assert 0 < len(read) <= 130


def equal(first, second) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(first[:-1], second[:-1], strict=True))


@pytest.mark.parametrize("keys", KEYS)
def test_a_window_is_laid_out_alike_in_another_process(store, keys):
    """The layouter is small when pickled, and needs no JAX."""
    layouter = plain_stream(store, dataclasses.replace(DATA, **keys), 0).layouter
    pickled = pickle.dumps(layouter)
    assert len(pickled) < 5_000
    program = (
        "import pickle, sys; layouter = pickle.load(sys.stdin.buffer); layout = layouter.lay_out(7);"
        "assert 'jax' not in sys.modules; sys.stdout.buffer.write(pickle.dumps(layout))"
    )
    out = subprocess.run([sys.executable, "-c", program], input=pickled, stdout=subprocess.PIPE, check=True).stdout
    assert equal(pickle.loads(out), layouter.lay_out(7))


def test_windows_of_large_updates_are_laid_out_once_in_the_fewest_updates(monkeypatch):
    """Of many pairs each, all updates of a window are equally full: no other cut helps one that has more tokens than the sample."""
    monkeypatch.setattr(streams, "WINDOW_PAIRS", 200)
    config = Data(batch_tokens=20_000, pack_length=64, max_length=64)
    layouter = plain_stream(corpus(bimodal, 60_000, 64), config, 2).layouter
    packed, real = [], window_layouts.first_fit
    monkeypatch.setattr(window_layouts, "first_fit", lambda *args: packed.append(None) or real(*args))
    counts = [layouter.lay_out(window).updates for window in range(20)]
    assert layouter.windows.a_pass == 12 and set(counts) == {7}
    assert len(packed) == sum(counts)


def test_unusual_windows_have_more_updates_of_the_same_sizes(store):
    """A window for which the sample has given too small sizes is cut into more updates, down to single pairs."""
    layouter = plain_stream(store, DATA, 0).layouter
    ((length, rows),) = layouter.sizes
    counts = []
    for smaller in (rows, rows - 1, rows // 2, 1):
        layout = dataclasses.replace(layouter, sizes=((length, smaller),)).lay_out(0)
        assert layout.needed[:, 1].max() <= smaller
        np.testing.assert_array_equal(np.sort(layout.pairs), layouter.windows.visits(0).pairs)
        counts.append(layout.updates)
    assert counts == sorted(counts) and counts[0] < counts[2] < counts[3]


@dataclasses.dataclass(frozen=True)
class Repeated:
    """Draws each sentence of a store, before its EOS, as many times as the pair had been seen, up to twice: a `Draw`."""

    store: TokenStore
    longest: int = 48
    key: str = "repeated"

    def __call__(self, visits):
        return tuple(self._side(side, visits) for side in self.store.all_sides())

    def _side(self, side, visits):
        ids, offsets, lengths = side
        drawn = [
            np.append(np.tile(ids[offsets[pair] :][: lengths[pair] - 1], 1 + min(number, 1)), 1)
            for pair, number in zip(*visits, strict=True)
        ]
        lengths = np.array([len(ids) for ids in drawn], np.int32)
        return Sentences(np.concatenate(drawn), np.cumsum(lengths) - lengths, lengths)


def test_no_more_windows_are_drawn_than_a_sample_needs(store, monkeypatch):
    """To draw a window takes seconds."""
    drawn, real = [], Repeated.__call__
    monkeypatch.setattr(
        Repeated, "__call__", lambda self, visits: drawn.append(len(visits.pairs)) or real(self, visits)
    )
    monkeypatch.setattr(streams, "WINDOW_PAIRS", 300)
    config = dataclasses.replace(DATA, batch_tokens=60, max_length=48, pack_length=48)
    stream = plain_stream(store, config, 0, make_draw=Repeated)
    a_pass = stream.layouter.windows.a_pass
    assert len(drawn) == 1 < a_pass <= layouts.SAMPLED_WINDOWS
    assert stream.updates_per_epoch == pytest.approx(float(a_pass) * stream.window(0).updates, rel=0.05)


@pytest.mark.parametrize("batching", ["packed", "buckets"])
def test_ids_may_be_drawn_anew_in_each_pass(store, batching):
    config = dataclasses.replace(DATA, batching=batching, max_length=48, pack_length=48)

    def make_stream(store, data, seed, windows_of=None):
        return plain_stream(store, data, seed, windows_of, make_draw=Repeated)

    batches = Batches(store, config, seed=0, make_stream=make_stream)
    for epoch in (0, 1):
        seen = []
        for batch in pass_of(batches, epoch):
            assert max(batch.source_tokens, batch.target_tokens) <= config.batch_tokens
            assert batch.shape in batches.shapes
            arrays = {name: x[0] for name, x in batch.arrays.items()}
            assert (arrays["source_segments"] > 0).sum() == batch.source_tokens
            for pair, row, start in zip(
                batch.pairs, batch.row, np.broadcast_to(batch.starts[1], len(batch.row)), strict=True
            ):
                own = store.target(pair)[:-1].tolist()
                drawn = own * (1 + epoch) + [1]
                assert arrays["target"][row, start : start + len(drawn)].tolist() == drawn
            seen += batch.pairs.tolist()
        assert sorted(seen) == list(range(900))
