"""Several training sources in proportion.

Batch k stays a function of (config, k), and pairs are seen equally often.
"""

import dataclasses
import json
from collections import Counter

import numpy as np
import pytest
from helpers.configs import DATA, random_pairs, small_config, write_store
from helpers.refusals import assert_names, refused
from helpers.runs import start, tiny_run
from helpers.update_checks import Lengths
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax.config import Config, default_config, override, resolve
from t2t_flax.data.batching import windows as window_module
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.dataset import describe_train, prepare_corpus
from t2t_flax.data.hooks import training_stream
from t2t_flax.data.preprocess import Policies
from t2t_flax.data.sources import JoinedSource, open_source
from t2t_flax.extensions.mixtures import parse_shares
from t2t_flax.extensions.mixtures.selections import FirstPairs
from t2t_flax.extensions.mixtures.shares import left_after, mixtures
from t2t_flax.extensions.shared.tagged_source import TaggedSource
from t2t_flax.tasks import task_of
from t2t_flax.training import loop
from t2t_flax.training.model_summary import describe
from t2t_flax.training.workdir import read_config

POLICIES = Policies(max_length=100, on_too_long="drop", empty_lines="drop")


def config_of(train="clean=a.tsv; bt=b.tsv", data=(), **keys) -> Config:
    """keys: of mixtures."""
    data = dataclasses.replace(DATA, train=train, **dict(data))
    return Config(data=data).with_values(
        {f"mixtures.{name}": value for name, value in keys.items()}
    )


def batches_of(store, seed=0, data=(), **keys) -> Batches:
    config = config_of(data=data, **keys)
    return Batches(store, config.data, seed=seed, make_stream=training_stream(config, None))


@pytest.fixture
def store(tmp_path):
    """30 pairs of "clean", then 90 of "bt"."""
    store = write_store(tmp_path / "store", random_pairs(120))
    store.meta["pairs_of_sources"] = [30, 90]
    return store


def sources_of(batch) -> Counter:
    return Counter("clean" if pair < 30 else "bt" for pair in batch.pairs)


def mixtures_of(store, config) -> list:
    return mixtures(store, config, 0)


def visits_of(mixture, windows) -> Counter:
    return Counter(
        np.concatenate([mixture.samples(window).pairs for window in range(windows)]).tolist()
    )


@given(
    pairs=st.lists(st.integers(1, 50), min_size=2, max_size=5),
    shares=st.lists(st.floats(0.05, 5), min_size=5, max_size=5),
    temperature=st.sampled_from([None, 1.5, 5.0, 1e6]),
    windows=st.integers(1, 4),
)
@settings(max_examples=200, deadline=None)
def test_pairs_of_a_source_are_seen_equally_often_and_shares_are_kept(
    pairs, shares, temperature, windows
):
    names = [f"s{i}" for i in range(len(pairs))]
    weights = dict(zip(names, shares, strict=False))
    keys = dict(temperature=temperature)
    if temperature is None:
        keys = dict(shares=", ".join(f"{name}={weight}" for name, weight in weights.items()))
    else:
        weights = {
            name: count ** (1 / temperature) for name, count in zip(names, pairs, strict=True)
        }
    config = config_of(train="; ".join(f"{name}=x.tsv" for name in names), **keys)

    class Store:
        pairs_of_sources, num_pairs = pairs, sum(pairs)

    ((_, mixture),) = mixtures_of(Store, config)
    drawn = visits_of(mixture, windows)
    source = np.repeat(np.arange(len(pairs)), pairs)
    total = sum(weights.values())
    for i, name in enumerate(names):
        of_source = [drawn[pair] for pair in np.flatnonzero(source == i)]
        assert max(of_source) - min(of_source) <= 1, "the pairs of a source are seen equally often"
        assert sum(of_source) == pytest.approx(
            weights[name] / total * drawn.total(), abs=len(pairs) + 1
        )


@given(
    pairs=st.lists(st.integers(1, 60), min_size=2, max_size=3),
    weights=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=2, max_size=4),
    lengths=st.lists(st.integers(1, 25), min_size=4, max_size=4),
    seed=st.integers(0, 3),
)
@settings(max_examples=50, deadline=None)
def test_pairs_are_seen_equally_often_over_phases(pairs, weights, lengths, seed):
    """With the rest for the next phase, visits of two pairs of a source differ by at most one."""
    names = [f"s{i}" for i in range(len(pairs))]
    of_phases = [
        ", ".join(f"{n}={w}" for n, w in zip(names, one, strict=False) if w) for one in weights
    ]
    of_phases = [one or f"{names[0]}=1" for one in of_phases]
    starts = np.cumsum([0, *lengths])[: len(of_phases)]
    shares = "; ".join(
        f"{start}: {one}" if start else one for start, one in zip(starts, of_phases, strict=True)
    )
    store = Lengths(*np.random.default_rng(seed).integers(2, 20, (2, sum(pairs))))
    store.pairs_of_sources = pairs
    config = config_of(train="; ".join(f"{name}=x.tsv" for name in names), shares=shares)
    batches = Batches(store, config.data, seed=seed, make_stream=training_stream(config, None))
    seen = np.zeros(sum(pairs), int)
    ends = np.cumsum(pairs)
    for k in range(int(starts[-1]) + 20):
        batch = batches.batch(k)
        assert batch.shape in batches.shapes
        np.add.at(seen, batch.pairs, 1)
        phase = int(np.searchsorted(starts, k, side="right")) - 1
        used = {names[i] for i in np.searchsorted(ends, batch.pairs, side="right")}
        assert used <= {part.split("=")[0].strip() for part in of_phases[phase].split(",")}
    for source in left_after(batches.stream.phase(len(starts) - 1), k + 1 - int(starts[-1])):
        np.add.at(seen, source.left.pairs, 1)
    for first, end in zip(ends - pairs, ends, strict=True):
        assert np.ptp(seen[first:end]) <= 1


def test_shares_by_size_are_the_joined_corpus(store):
    """Named sources without shares give, batch for batch, what one file of all pairs gives."""
    named, plain = batches_of(store, seed=5, tags="bt=<bt>"), Batches(store, DATA, seed=5)
    for k in range(2 * plain.updates_per_epoch):
        np.testing.assert_array_equal(named.batch(k).pairs, plain.batch(k).pairs)


def test_a_temperature_of_1_needs_no_mixture(store):
    assert mixtures_of(store, config_of()) is mixtures_of(store, config_of(temperature=1.0)) is None


@pytest.mark.parametrize("batching", ["packed", "buckets"])
def test_batches_do_not_depend_on_the_order_of_calls(store, batching):
    keys = dict(shares="clean=2, bt=1; 7: bt=1", data=dict(batching=batching))
    first, second = (batches_of(store, seed=3, **keys) for _ in range(2))
    order = np.random.default_rng(0).permutation(25)
    pairs = {k: first.batch(int(k)).pairs for k in order}
    for k in range(25):
        np.testing.assert_array_equal(second.batch(k).pairs, pairs[k])


def test_shares_change_at_the_given_update(store):
    batches = batches_of(store, shares="clean=1; 5: bt=1; 9: clean=1, bt=1")
    assert all(set(sources_of(batches.batch(k))) == {"clean"} for k in range(5))
    assert all(set(sources_of(batches.batch(k))) == {"bt"} for k in range(5, 9))
    assert set(sum((sources_of(batches.batch(k)) for k in range(9, 40)), Counter())) == {
        "clean",
        "bt",
    }
    assert all(batches.batch(k).shape in batches.shapes for k in range(40))


def test_the_rest_of_a_cut_window_comes_in_the_order_of_training(monkeypatch):
    """When shares change, the next pairs of a source stay spread over its file."""
    monkeypatch.setattr(window_module, "WINDOW_PAIRS", 2000)
    store = Lengths(*np.random.default_rng(0).integers(2, 20, (2, 8000)))
    store.pairs_of_sources = [4000, 4000]
    batches = batches_of(
        store, shares="clean=9, bt=1; 10: clean=1, bt=9", data=dict(batch_tokens=1600)
    )
    for first in (0, 10, 30):
        pairs = np.concatenate([batches.batch(k).pairs for k in range(first, first + 10)])
        positions = pairs[pairs < 4000] / 4000
        assert len(positions) > 10 and 0.35 < positions.mean() < 0.65 and np.ptp(positions) > 0.8


@pytest.mark.parametrize("train", ["a.tsv", "clean=a.tsv; bt=b.tsv"])
@pytest.mark.parametrize("batching", ["packed", "buckets"])
def test_batches_grow_at_the_given_updates_and_no_pair_is_lost(store, batching, train):
    if "=" not in train:
        store.meta["pairs_of_sources"] = [120]
    keys = dict(
        train=train, batch_tokens="7: 320; 12: 640", data=dict(batching=batching, batch_tokens=80)
    )
    batches, again = (batches_of(store, **keys) for _ in range(2))
    seen, sizes = np.zeros(120, int), []
    for k in range(40):
        batch = batches.batch(k)
        assert batch.shape in batches.shapes
        np.add.at(seen, batch.pairs, 1)
        sizes.append(max(batch.source_tokens, batch.target_tokens))
    for k in (39, 3, 13, 7):
        np.testing.assert_array_equal(again.batch(k).pairs, batches.batch(k).pairs)
    assert max(sizes[:7]) <= 80 < max(sizes[7:12]) <= 320 < max(sizes[12:]) <= 640
    slots = [batches.batch(k).shape.slots for k in range(40)]
    assert max(slots[:7]) < min(slots[13:20]), "a small batch is not padded to a large one"
    assert seen.min() >= 1 and np.ptp(seen) <= 2, (
        "but for the pairs of the windows that are being shuffled"
    )


@pytest.mark.parametrize("train", ["a.tsv", "clean=a.tsv; bt=b.tsv"])
def test_sizes_that_are_set_later_leave_the_order_of_the_pairs(store, monkeypatch, train):
    """A run without mixtures.batch_tokens can go on with them within a pass of several windows."""
    monkeypatch.setattr(window_module, "WINDOW_PAIRS", 16)
    if "=" not in train:
        store.meta["pairs_of_sources"] = [120]
    keys = dict(train=train, data=dict(batch_tokens=80))
    plain, grown = batches_of(store, **keys), batches_of(store, **keys, batch_tokens="9: 320")
    for k in range(9):
        np.testing.assert_array_equal(grown.batch(k).pairs, plain.batch(k).pairs)
    in_pass = [grown.batch(k).pairs for k in range(9)]
    seen = np.bincount(np.concatenate(in_pass), minlength=120)
    for k in range(9, 40):
        np.add.at(seen, grown.batch(k).pairs, 1)
        if seen.min():
            break
    assert seen.max() <= 2, "a pair comes a third time before another has come"


def test_schedule_repeats_no_order(store):
    """A later phase with the shares of the first draws new orders."""
    batches = batches_of(store, shares="clean=1, bt=1; 6: clean=1, bt=1")
    assert any(
        batches.batch(k).pairs.tolist() != batches.batch(k + 6).pairs.tolist() for k in range(6)
    )


@pytest.mark.parametrize(
    ("key", "value", "names"),
    [
        ("shares", "clean=1, other=2", ("'other'", "clean, bt")),
        ("shares", "clean=0, bt=1", ("'0'",)),
        ("shares", "clean=nan", ("'nan'",)),
        ("shares", "clean", ("'clean'", "NAME=VALUE")),
        ("shares", "clean=1, clean=2", ("clean",)),
        ("shares", "clean=1; bt=1", ("update 0",)),
        ("shares", "clean=3, bt=1; 20:", ("update 20",)),
        ("shares", ",", ("update 0",)),
        ("shares", "clean=1; 5: bt=1; 5: clean=1", ("update 5",)),
        ("temperature", 2.0, ("2.0", "mixtures.shares")),
        ("batch_tokens", "5: many", ("'5: many'",)),
        ("batch_tokens", "0: 320", ("update 0",)),
        ("batch_tokens", "9: 320; 5: 640", ("update 5", "update 9")),
        ("batch_tokens", "9: 20", ("20",)),
        ("tags", "bt=<b t>", ("'<b t>'",)),
        ("tags", "bt=</s>", ("</s>",)),
        ("limits", "bt=0", ("'0'",)),
    ],
)
def test_wrong_mixtures_are_refused_by_key(key, value, names):
    config = config_of(**{key: value} | (dict(shares="clean=1") if key == "temperature" else {}))
    with refused(f"config.mixtures.{key}", *names):
        config.group("mixtures").check(config)


@pytest.mark.parametrize(
    ("key", "value"), [("shares", "clean=1; 9: bt=1"), ("batch_tokens", "9: 50000")]
)
def test_epochs_cannot_be_counted_while_their_length_changes(key, value):
    keys = {
        "data.train": "clean=a.tsv; bt=b.tsv",
        f"mixtures.{key}": value,
        "eval.every_epochs": "1",
    }
    with refused(f"config.mixtures.{key}", "config.eval.every_steps"):
        resolve(override(default_config(), keys))


def test_phases_are_parsed_in_order():
    phases = parse_shares(config_of(shares="clean=3, bt=0.5 ; 20000: clean=1"))
    assert phases == [(0, {"clean": 3.0, "bt": 0.5}), (20000, {"clean": 1.0})]


@pytest.fixture
def text(tmp_path):
    (tmp_path / "a.tsv").write_text("".join(f"a house {i}\tein Haus {i}\n" for i in range(20)))
    (tmp_path / "b.tsv").write_text(
        "the dog\tder Hund\n\tleer\n" + "".join(f"dog {i}\tHund {i}\n" for i in range(30))
    )

    def source(name):
        return open_source(
            f"{name}.tsv", root=str(tmp_path), source_language="en", target_language="de"
        )

    return source


def test_content_decides_the_fingerprint(text):
    def fingerprint(*parts):
        return JoinedSource("x", parts).fingerprint()

    both = fingerprint(text("a"), text("b"))
    assert both == fingerprint(text("a"), text("b"))
    others = [
        fingerprint(text("b"), text("a")),
        fingerprint(text("a")),
        fingerprint(text("a"), FirstPairs(text("b"), 3)),
    ]
    assert len({both, *others}) == 4
    assert fingerprint(text("a"), TaggedSource(text("b"), "<bt>")) == both, (
        "the tag is part of the store's recipe"
    )


@pytest.mark.smoke
def test_a_run_trains_on_its_sources_in_proportion(text, tmp_path):
    """From the config to batches.

    Sources, tag, limit and shares, with counts that messages show.
    """
    keys = {
        "data.root": str(tmp_path),
        "data.train": "clean=a.tsv; bt=b.tsv",
        "mixtures.tags": "bt=<bt>",
        "mixtures.limits": "bt=10",
        "mixtures.shares": "clean=1, bt=1",
        "data.vocab_size": "320",
        "data.batch_tokens": "60",
        "data.pack_length": "30",
        "data.max_length": "30",
    }
    config = resolve(override(default_config(), keys))
    corpus = prepare_corpus(task_of(config), tmp_path / "run")
    assert corpus.train.pairs_of_sources == [20, 9]
    assert_names(describe_train(config, corpus), "update 0:", "20 pairs,", "9 pairs,")
    assert JoinedSource("x", [text("a"), text("b")]).count is None
    assert_names(describe(config), "update 0:", "bt 50.0%", "<bt>", "10 pairs", "30 tokens")


def test_a_store_of_other_sources_is_refused(store):
    with refused("3 sources,", "2"):
        mixtures_of(store, config_of(train="a=a.tsv; b=b.tsv; c=c.tsv", shares="a=1"))


def losses(workdir) -> dict[int, float]:
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def phased(workdir, steps, **keys):
    sources = dict(train="a=toy:train:200; b=toy:test:100", batch_tokens=512)
    return tiny_run(
        workdir, steps=steps, data=sources, mixtures=keys, checkpoint=dict(every_steps=5)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "before", "after", "wrong"),
    [
        ("shares", "a=1, b=1; 7: a=1", "a=1, b=1; 7: b=1; 11: a=1", "a=1, b=1; 4: b=1"),
        ("batch_tokens", "3: 256; 7: 1024", "3: 256; 6: 768", "4: 256"),
    ],
)
def test_a_later_phase_may_change_on_resume(tmp_path, cache, key, before, after, wrong):
    """The run goes on as one that had the new phases from its beginning."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    loop.train(start(phased(whole, 14, **{key: after}), whole, cache), score=None)
    loop.train(start(phased(resumed, 5, **{key: before}), resumed, cache), score=None)
    with refused(f"config.mixtures.{key}", "update 5"):
        start(phased(resumed, 14, **{key: wrong}), resumed, cache)
    assert getattr(read_config(resumed).group("mixtures"), key) == before
    loop.train(start(phased(resumed, 14, **{key: after}), resumed, cache), score=None)
    assert losses(resumed) == losses(whole) and len(losses(whole)) == 14
    changes = [
        json.loads(line).get("config_changed")
        for line in (resumed / "metrics.jsonl").read_text().splitlines()
    ]
    assert {f"mixtures.{key}": [before, after]}.items() <= next(filter(None, changes)).items()


@pytest.mark.parametrize(
    "growth, tokens", [("4: 1024; 8: 2048; 20: 4096", 9216), ("20: 4096", 2560)]
)
def test_explain_counts_the_tokens_of_batches_that_grow(growth, tokens):
    base = small_config(data=dict(batch_tokens=256), train=dict(steps=10))
    lines = [
        describe(config) for config in (base, base.with_values({"mixtures.batch_tokens": growth}))
    ]
    flops = [float(text.partition("pairs of 27 + 27")[2].split()[0]) for text in lines]
    assert f"{tokens:,} token slots per side" in lines[1] and flops[1] / flops[0] == pytest.approx(
        tokens / 2560, rel=0.02
    )
