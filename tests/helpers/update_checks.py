"""Corpora of lengths alone, and the invariants of every update of some epochs."""

import itertools

import numpy as np
from etils import epath

from t2t_flax.config import Data
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.batching.updates import MakeStream, plain_stream
from t2t_flax.data.stored_ids import Sentences


class Lengths:
    """A token store with lengths only, which is all that computing the rows of an update reads."""

    digest = ""
    origin = epath.Path("/dev/null/store")  # a plan beside it cannot be kept

    def __init__(self, source: np.ndarray, target: np.ndarray):
        self.lengths = source.astype(np.int32), target.astype(np.int32)
        self.num_pairs, self._ids = len(source), np.zeros(0, int)
        self.longest = int(max(x.max() for x in self.lengths))

    def sentences(self, pairs):
        return tuple(
            Sentences(self._ids, np.zeros(len(pairs), int), x[pairs]) for x in self.lengths
        )


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
    return [
        longest * rng.choice([0.3, 0.49, 0.51, 1.0], count, p=[0.3, 0.3, 0.3, 0.1])
        for _ in range(2)
    ]


CORPORA = [log_normal, bimodal, equal_lengths, one_very_long, long_sources, half_row_lengths]


def corpus(kind, count: int, longest: int, seed: int = 0) -> Lengths:
    sides = kind(np.random.default_rng(seed), count, longest)
    return Lengths(*(np.clip(np.round(side), 2, longest) for side in sides))


def check_updates(
    store: Lengths, config: Data, seed: int, epochs: int = 3, make_stream: MakeStream = plain_stream
) -> Batches:
    """Builds every update of these epochs and checks its invariants."""
    batches = Batches(store, config, seed=seed, make_stream=make_stream)
    allowed, visits = set(batches.shapes), np.zeros(store.num_pairs, int)
    for batch in map(batches.batch, itertools.count()):
        if batch.epoch >= epochs:
            break
        shape = batch.shape
        assert shape in allowed and 0 < max(batch.source_tokens, batch.target_tokens) <= shape.slots
        assert batch.epoch == visits.min(), "the epoch in which the update begins"
        assert batch.row.min() >= 0 and batch.row.max() < shape.micro * shape.rows
        for lengths in store.lengths:
            assert np.bincount(batch.row, lengths[batch.pairs]).max() <= shape.length
        if config.batching == "buckets":
            assert len(set(batch.row.tolist())) == len(batch.row), "one pair per row"
        elif make_stream is plain_stream:
            size = config.batch_tokens // config.pack_length
            assert set(batch.row.tolist()) == set(range(size)), "every row is used"
        np.add.at(visits, batch.pairs, 1)
        assert np.ptp(visits) <= 1, "each pair once in each epoch"
    return batches
