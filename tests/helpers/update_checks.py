"""Corpora of lengths alone, and the invariants of every update of some epochs."""

import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np
from etils import epath

from t2t_flax.config import Data
from t2t_flax.data.batching.batch_sampler import Lengths as WindowLengths
from t2t_flax.data.batching.batch_sampler import MakeSampler, smallest_fitting
from t2t_flax.data.batching.batches import Batch, Batches
from t2t_flax.data.batching.layouts import MakeStream, plain_stream
from t2t_flax.data.stored_ids import Sentences


class Lengths:
    """A token store with lengths only, which is all that computing the rows of an update reads."""

    digest = ""
    origin = epath.Path("/dev/null/store")  # a plan beside it cannot be kept

    def __init__(self, source: np.ndarray, target: np.ndarray):
        self.lengths = self.source_lengths, self.target_lengths = source.astype(np.int32), target.astype(np.int32)
        self.num_pairs = len(source)
        self.longest = int(max(x.max() for x in self.lengths))
        self.mean_length = max(float(x.mean()) for x in self.lengths)

    def sentences(self, pairs):
        return tuple(Sentences(np.zeros(0, int), np.zeros(0, int), x[pairs]) for x in self.lengths)


def log_normal(rng, count, longest):
    source = rng.lognormal(np.log(0.1 * longest), 0.6, count)
    return source, source * rng.normal(1, 0.15, count)


def bimodal(rng, count, longest):
    middle = np.where(rng.random(count) < 0.5, 0.04, 0.8) * longest
    source = middle * rng.normal(1, 0.1, count)
    return source, source * rng.normal(1, 0.1, count)


def equal_lengths(rng, count, longest):
    length = rng.integers(2, longest + 1)
    return np.full(count, length), np.full(count, length)


def one_very_long(rng, count, longest):
    source = rng.normal(0.08 * longest, 0.02 * longest, count)
    source[rng.integers(count)] = longest
    return source, source[rng.permutation(count)]


def long_sources(rng, count, longest):
    source = rng.lognormal(np.log(0.25 * longest), 0.5, count)
    return source, source / 8


def half_row_lengths(rng, count, longest):
    """Most pairs fill a row, and an update, about half or just over half."""
    return [longest * rng.choice([0.3, 0.49, 0.51, 1.0], count, p=[0.3, 0.3, 0.3, 0.1]) for _ in range(2)]


CORPORA = [log_normal, bimodal, equal_lengths, one_very_long, long_sources, half_row_lengths]


def corpus(kind, count: int, longest: int, seed: int = 0) -> Lengths:
    sides = kind(np.random.default_rng(seed), count, longest)
    return Lengths(*(np.clip(np.round(side), 2, longest) for side in sides))


def pass_of(batches: Batches, epoch: int) -> Iterator[Batch]:
    """The batches of an epoch."""
    several = itertools.dropwhile(lambda batch: batch.epoch < epoch, map(batches.batch, itertools.count()))
    return itertools.takewhile(lambda batch: batch.epoch == epoch, several)


def check_updates(
    store: Lengths, config: Data, seed: int, epochs: int = 3, make_stream: MakeStream = plain_stream
) -> Batches:
    """Builds every update of these epochs and checks its invariants."""
    batches = Batches(store, config, seed=seed, make_stream=make_stream)
    allowed = set(batches.shapes)
    for epoch in range(epochs):
        visits = np.zeros(store.num_pairs, int)
        for batch in pass_of(batches, epoch):
            shape = batch.shape
            assert batch.epoch == epoch and shape in allowed
            assert 0 < max(batch.source_tokens, batch.target_tokens) <= config.batch_tokens
            assert batch.row.min() >= 0 and batch.row.max() < shape.micro * shape.rows
            for lengths in store.lengths:
                assert np.bincount(batch.row, lengths[batch.pairs]).max() <= shape.length
            if config.batching == "buckets":
                assert len(set(batch.row.tolist())) == len(batch.row), "one pair per row"
            visits[batch.pairs] += 1
        assert (visits == 1).all(), "each pair exactly once per epoch"
    return batches


def check_sizes(make_sampler: MakeSampler, batching: str) -> None:
    """Compares the closed list of random sizes with them."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 65, 300).tolist() if batching == "buckets" else [64] * 300
    sampler = make_sampler(Data(batching=batching, pack_length=64), 0, WindowLengths(*np.array([lengths] * 2)))
    needed = Counter(zip(lengths, rng.integers(1, 90, 300).tolist(), strict=True))
    sizes = sampler.sizes(needed)
    assert sizes == sorted(set(sizes)) and len(sizes) <= 10
    for length, rows in needed:
        fitting = sizes[smallest_fitting(sizes, (length, rows))]
        assert fitting[0] >= length and fitting[1] >= rows
        assert all(a * b >= fitting[0] * fitting[1] for a, b in sizes if a >= length and b >= rows)
    assert smallest_fitting(sizes, (64, 10_000)) is None
