"""Mixtures: epochs in which each source of the corpus occurs in a given proportion.

An epoch is a list of slots, each of which is a pair of the store. The source that is used least for its size has each of its
pairs once, the others have theirs several times. So an epoch leaves no pair out, its slots are a function of the config alone,
and the batch sampler shuffles and cuts them as it does the pairs of a single corpus.
"""

import bisect
import dataclasses
from collections.abc import Sequence

import numpy as np

from t2t_flax.config import Config, Data
from t2t_flax.data.batching.layouts import MakeStream, SlotsOf, Stream, Update
from t2t_flax.data.hashing import key_of
from t2t_flax.data.token_store import TokenStore
from t2t_flax.errors import UserError
from t2t_flax.extensions.mixtures import parse_shares

LARGEST = 32
"""An epoch has at most this many slots for each pair of its sources, since all of them are laid out before training."""


@dataclasses.dataclass(frozen=True)
class Mixture:
    """names [S]; first [S]: index in the store of each source's first pair; pairs [S]: its pairs; slots [S]: its slots in an
    epoch, at least as many, or 0.
    """

    names: tuple[str, ...]
    first: np.ndarray
    pairs: np.ndarray
    slots: np.ndarray

    @property
    def size(self) -> int:
        """Slots of an epoch."""
        return int(self.slots.sum())

    @property
    def key(self) -> list[int]:
        """What the pairs of an epoch depend on."""
        return self.slots.tolist()

    def pairs_at(self, slots: np.ndarray) -> np.ndarray:
        """The pairs (int64 indices into the store) of slots from 0 to size - 1. Pair i of a source is in its slots i,
        i + pairs, i + 2 * pairs ...
        """
        ends = np.cumsum(self.slots)
        source = np.searchsorted(ends, slots, side="right")
        return self.first[source] + (slots - (ends - self.slots)[source]) % self.pairs[source]

    def describe(self) -> str:
        """ "clean 1,000 pairs, 75 % of an epoch (3.00 times each); ..."."""
        parts = []
        for name, pairs, slots in zip(self.names, self.pairs, self.slots, strict=True):
            share = f"{slots / self.size:.1%} of an epoch ({slots / pairs:.2f} times each)" if slots else "not used"
            parts.append(f"{name} {pairs:,} pairs, {share}")
        return "; ".join(parts)


def mixtures(store: TokenStore, config: Config) -> list[tuple[int, Mixture | None]]:
    """(first update, mixture) of each phase of the config; None where every pair occurs once. Raises UserError for shares so
    unequal that an epoch would be too long.
    """
    names = tuple(config.data.train_sources)
    if len(names) < 2:
        return [(0, None)]
    pairs = store.pairs_of_sources
    if len(names) != len(pairs):
        raise UserError(
            f"config.data.train has {len(names)} sources, but the token store {store.folder} was written from {len(pairs)}: "
            "prepare it with this config."
        )
    temperature = config.group("mixtures").temperature or 1.0
    return [(start, _mixture(names, pairs, weights, temperature)) for start, weights in parse_shares(config)]


def _mixture(
    names: tuple[str, ...], pairs: Sequence[int], weights: dict[str, float] | None, temperature: float
) -> Mixture | None:
    sizes = np.array(pairs, np.int64)
    if weights is None:
        shares = sizes ** (1 / temperature)
    else:
        shares = np.array([weights.get(name, 0.0) for name in names])
    used = shares > 0
    # Slots per unit of share, so that the source with the most pairs for its share has each pair once.
    unit = (sizes[used] / shares[used]).max()
    slots = np.where(used, np.maximum(np.rint(shares * unit), sizes), 0)
    if slots.sum() > LARGEST * sizes[used].sum():
        rare = names[int(np.argmax(np.where(used, sizes / np.where(used, shares, 1), 0)))]
        if weights is None:
            raise UserError(
                f"config.mixtures.temperature = {temperature:g} makes an epoch of {slots.sum():,.0f} pairs from "
                f"{sizes[used].sum():,}: lower it, or use fewer pairs of large sources with --config.mixtures.limits=NAME=N."
            )
        raise UserError(
            f"config.mixtures.shares: with so small a share of {rare}, an epoch that has each of its pairs once would have "
            f"{slots.sum():,.0f} pairs, {slots.sum() / sizes[used].sum():.0f} times those of the sources. Raise its share, or "
            f"use fewer of its pairs with --config.mixtures.limits={rare}=N."
        )
    slots = slots.astype(np.int64)
    if (slots == sizes).all():
        return None
    return Mixture(names, np.cumsum(sizes) - sizes, sizes, slots)


class Phases:
    """Streams of which each goes on from an update; a `Stream`. streams: by their first update."""

    def __init__(self, streams: dict[int, Stream]):
        self._starts, self._streams = list(streams), list(streams.values())
        self.parts = [part for stream in self._streams for part in stream.parts]
        self.updates_per_epoch = self._streams[0].updates_per_epoch

    def update(self, k: int) -> Update:
        phase = bisect.bisect_right(self._starts, k) - 1
        return self._streams[phase].update(k - self._starts[phase])


def mixed_stream(make: MakeStream, config: Config) -> MakeStream:
    """The phases of mixtures.shares, each a stream of `make`."""

    def make_phases(stores: Sequence[TokenStore], data: Data, seed: int, slots_of: SlotsOf | None = None) -> Stream:
        def of_phase(number: int) -> Stream:
            of_seed = key_of(seed, 7, number) if number else seed
            return make(stores, data, of_seed, lambda store: mixtures(store, config)[number][1])

        starts = [start for start, _ in mixtures(stores[0], config)]
        return Phases({start: of_phase(number) for number, start in enumerate(starts)})

    return make_phases
