"""Mixtures: windows in which each source of the corpus has a given share.

Each source is an endless stream of permutations of its pairs. A window takes from each of them as
many pairs as its share says, so that at the end of any window the pairs of a source have been seen
equally often, give or take one time. When other shares begin, the streams go on: first with the
pairs of the window whose updates were not all trained on.
"""

import bisect
import dataclasses
import itertools
import zlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from t2t_flax.config import Config, Data
from t2t_flax.data.batching.layouts import Layout, PairReader
from t2t_flax.data.batching.rows import HostBatch
from t2t_flax.data.batching.updates import MakeStream, Stream, UpdateStream
from t2t_flax.data.batching.windows import Samples, Windows, pairs_of_epoch, windows_in
from t2t_flax.data.hashing import key_of
from t2t_flax.data.token_store import TokenStore
from t2t_flax.data.workers import Workers
from t2t_flax.errors import UserError
from t2t_flax.extensions.mixtures import parse_batch_tokens, parse_shares


def join(parts: Sequence[Samples]) -> Samples:
    """Return all samples, by pair and epoch ascending.

    In this order, reading their lengths goes through the store once.
    """
    epochs = np.concatenate([part.epochs for part in parts])
    pairs = np.concatenate([part.pairs for part in parts])
    return Samples(pairs, epochs).at(np.lexsort((epochs, pairs)))


@dataclasses.dataclass(frozen=True)
class PairStream:
    """Pairs `first` .. `first + count - 1` of a store without end.

    Each epoch has all of them, in another order.
    """

    first: int
    count: int
    seed: int

    def samples(self, begin: int, end: int) -> list[Samples]:
        """Return positions `begin` .. `end - 1` of the stream; whole epochs in any order."""
        (first, offset), (last, rest) = divmod(begin, self.count), divmod(end, self.count)
        if first == last:
            return [self._of_epoch(first, offset, rest)]
        whole = np.arange(first + 1, last)
        return [
            self._of_epoch(first, offset, self.count),
            Samples(np.tile(self._all(), len(whole)), np.repeat(whole, self.count)),
            self._of_epoch(last, 0, rest),
        ]

    def _of_epoch(self, number: int, begin: int, end: int) -> Samples:
        if (begin, end) == (0, self.count):
            pairs = self._all()
        else:
            pairs = self.first + pairs_of_epoch(self.count, self.seed, number, begin, end)
        return Samples(pairs, np.full(end - begin, number))

    def _all(self) -> np.ndarray:
        return np.arange(self.first, self.first + self.count)


@dataclasses.dataclass(frozen=True)
class SourceStream:
    """A source from the start of a phase.

    First come the samples `left` by the phase before, then its stream from `position` on.
    """

    stream: PairStream
    position: int = 0
    left: Samples = Samples(*np.zeros((2, 0), np.int64))

    @property
    def key(self) -> list[int]:
        return [
            self.stream.first,
            self.stream.count,
            self.position,
            zlib.crc32(np.stack(self.left).tobytes()),
        ]

    def samples(self, begin: int, end: int) -> list[Samples]:
        left = len(self.left.pairs)
        parts = [self.left.at(slice(begin, end))] if begin < left else []
        begin, end = (self.position + max(0, at - left) for at in (begin, end))
        return [*parts, *self.stream.samples(begin, end)]

    def after(self, used: int, left: Samples) -> "SourceStream":
        """Return the source from where the next phase begins.

        Args:
            used: samples taken from it.
            left: the ones that were not trained on, in the order of training.
        """
        before, rest = len(self.left.pairs), self.left.at(slice(used, None))
        both = Samples(*map(np.concatenate, zip(left, rest, strict=True)))
        return SourceStream(self.stream, self.position + max(0, used - before), both)


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Windows of a phase; `data.batching.windows.Windows`.

    Args:
        names: names of the sources.
        sources: streams of their pairs.
        rates: pairs of each source in a window, 0 without a share.
        reference: source with the largest share, whose epochs are counted.
        per_epoch: windows in one of its epochs.
    """

    names: tuple[str, ...]
    sources: tuple[SourceStream, ...]
    rates: tuple[Fraction, ...]
    reference: int
    per_epoch: int

    @property
    def key(self) -> list:
        return [
            [*source.key, str(rate)] for source, rate in zip(self.sources, self.rates, strict=True)
        ]

    def samples(self, window: int) -> Samples:
        spans = (self._span(source, window) for source in range(len(self.sources)))
        parts = [source.samples(*span) for source, span in zip(self.sources, spans, strict=True)]
        return join(list(itertools.chain(*parts)))

    def epoch(self, window: int) -> int:
        source = self.sources[self.reference]
        begin = source.position + max(
            0, self._span(self.reference, window)[0] - len(source.left.pairs)
        )
        return begin // source.stream.count

    def _span(self, source: int, window: int) -> tuple[int, int]:
        begin, end = (int(at * self.rates[source]) for at in (window, window + 1))
        return begin, end

    def after(self, windows: int, left: Samples) -> tuple[SourceStream, ...]:
        """Return the sources from the start of the next phase, after `windows`.

        Args:
            left: the samples of these windows that were not trained on.
        """
        sources = []
        for number, source in enumerate(self.sources):
            stream = source.stream
            own = (stream.first <= left.pairs) & (left.pairs < stream.first + stream.count)
            sources.append(source.after(self._span(number, windows)[0], left.at(own)))
        return tuple(sources)

    def describe(self) -> str:
        """Describe the mixture.

        "clean 1,000 pairs, 75.0% of an update, 1 time each in an epoch; ...".
        """
        parts = []
        for name, source, rate in zip(self.names, self.sources, self.rates, strict=True):
            times = f"{float(rate * self.per_epoch / source.stream.count):.3g}"
            share = (
                f"{float(rate / sum(self.rates)):.1%} of an update, {times}"
                f" time{'s' * (times != '1')} each in an epoch"
            )
            parts.append(f"{name} {source.stream.count:,} pairs, {share if rate else 'not used'}")
        return "; ".join(parts)


def mixtures(store: TokenStore, config: Config, seed: int) -> list[tuple[int, Mixture]] | None:
    """Return (first update, mixture) of each phase of the config.

    A mixture is built as if its phase were the first. None if all pairs count equally, in batches
    of one size.
    """
    names, temperature = (
        tuple(config.data.train_sources),
        config.group("mixtures").temperature or 1.0,
    )
    phases = phases_of(config)
    if len(phases) == 1 and (len(names) < 2 or temperature == 1 and not phases[0].weights):
        return None
    pairs = store.pairs_of_sources
    if len(names) != len(pairs):
        raise UserError(
            f"config.data.train has {len(names)} sources, but the token store {store.folder} was"
            f" written from {len(pairs)}: prepare it with this config."
        )
    if temperature == 1 and not any(phase.weights for phase in phases):
        # The order of a run without phases, so that a phase may begin in a run that had none.
        names, pairs = (" and ".join(names),), [store.num_pairs]
        sources: tuple[SourceStream, ...] = (SourceStream(PairStream(0, store.num_pairs, seed)),)
    else:
        first = itertools.accumulate(pairs, initial=0)
        sources = tuple(
            SourceStream(PairStream(at, count, key_of(seed, 8, number)))
            for number, (at, count) in enumerate(zip(first, pairs, strict=False))
        )
    return [
        (start, _mixture(names, sources, _shares(names, pairs, weights, temperature)))
        for start, weights, _ in phases
    ]


class PhaseOfUpdates(NamedTuple):
    """Updates from `start` on, with their `weights` (see `Phase`) and `tokens`.

    `tokens` replaces data.batch_tokens.
    """

    start: int
    weights: dict[str, float] | None
    tokens: int


def phases_of(config: Config) -> list[PhaseOfUpdates]:
    """Return the phases of a config.

    Each has other shares or another batch size than the one before.
    """
    shares = dict(parse_shares(config))
    sizes = {0: config.data.batch_tokens} | parse_batch_tokens(config)
    if len(config.data.train_sources) < 2:
        shares = {0: None}
    last = lambda values, start: values[max(first for first in values if first <= start)]  # noqa: E731
    return [
        PhaseOfUpdates(start, last(shares, start), last(sizes, start))
        for start in sorted(shares.keys() | sizes.keys())
    ]


def _shares(
    names: Sequence[str], pairs: Sequence[int], weights: dict[str, float] | None, temperature: float
) -> list[Fraction]:
    """Return the shares of the sources in the pairs of an update, in proportion."""
    sizes = [
        count ** (1 / temperature) if weights is None else weights.get(name, 0.0)
        for name, count in zip(names, pairs, strict=True)
    ]
    return [Fraction(f"{size:.9g}") for size in sizes]


def _mixture(
    names: tuple[str, ...], sources: tuple[SourceStream, ...], shares: Sequence[Fraction]
) -> Mixture:
    """Return windows; an epoch of the reference source has a whole number of them."""
    reference = max(
        range(len(names)), key=lambda number: (shares[number], sources[number].stream.count)
    )
    count = sources[reference].stream.count
    windows = windows_in(float(count / shares[reference] * sum(shares)))
    rates = tuple(share / shares[reference] * count / windows for share in shares)
    return Mixture(names, sources, rates, reference, windows)


class Phases:
    """A `Stream` of the updates of mixtures; each mixture begins at an update.

    Later mixtures do not change the updates before them.

    Args:
        phases: streams by their first update, each as if it were the first one.
    """

    def __init__(self, phases: Mapping[int, UpdateStream]):
        self._starts, self._phases = list(phases), list(phases.values())
        self._begun = 0
        """Phases after the first one that begin where the one before ends."""
        self._workers: Workers[Layout] | None = None
        self.sizes = sorted({size for phase in self._phases for size in phase.sizes})

    @property
    def updates_per_epoch(self) -> int:
        return self._phases[0].updates_per_epoch

    def update(self, k: int) -> HostBatch:
        number = bisect.bisect_right(self._starts, k) - 1
        return self.phase(number).update(k - self._starts[number])

    def use(self, workers: Workers[Layout] | None) -> None:
        self._workers = workers
        for phase in self._phases:
            phase.use(workers)

    def phase(self, number: int) -> UpdateStream:
        """Return the updates of a phase."""
        while self._begun < number:
            updates = self._starts[self._begun + 1] - self._starts[self._begun]
            sources = left_after(self._phases[self._begun], updates)
            self._begun += 1
            layouter = self._phases[self._begun].layouter
            mixture: Any = layouter.windows
            windows = dataclasses.replace(mixture, sources=sources)
            phase = UpdateStream(dataclasses.replace(layouter, windows=windows))
            phase.use(self._workers)
            self._phases[self._begun] = phase
        return self._phases[number]


def left_after(stream: UpdateStream, updates: int) -> tuple[SourceStream, ...]:
    """Return the sources of a phase after this many updates."""
    mixture: Any = stream.layouter.windows
    window, block = stream.locate(updates * stream.layouter.blocks_of_update)
    layout = stream.layout(window)
    left = layout.samples.at(slice(layout.begin(block), None))
    return mixture.after(window + 1, left)


def mixed_stream(make: MakeStream, config: Config) -> MakeStream:
    """Return the phases of mixtures.shares and mixtures.batch_tokens.

    Each is a stream of `make`.
    """

    def make_phases(
        reader: PairReader, data: Data, seed: int, windows: Windows | None = None
    ) -> Stream:
        found = mixtures(reader.store, config, seed)
        if found is None:
            return make(reader, data, seed, windows)
        phases = {}
        for number, ((start, mixture), (_, _, tokens)) in enumerate(
            zip(found, phases_of(config), strict=True)
        ):
            seed_of_phase = key_of(seed, 7, number) if number else seed
            stream = make(
                reader, dataclasses.replace(data, batch_tokens=tokens), seed_of_phase, mixture
            )
            assert isinstance(stream, UpdateStream)
            phases[start] = stream
        return Phases(phases)

    return make_phases
