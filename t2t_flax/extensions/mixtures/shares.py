"""Mixtures: windows in which each source of the corpus has a given share.

Each source is an endless stream of permutations of its pairs. A window takes from each of them as many pairs as its share says,
so that at the end of any window the pairs of a source have been seen equally often, but for one time. Where other shares begin,
the streams go on: first with the pairs of the window whose updates were not all trained on.
"""

import bisect
import dataclasses
import functools
import itertools
import zlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from t2t_flax.config import Config, Data
from t2t_flax.data.batching.batch_sampler import Size
from t2t_flax.data.batching.layouts import Layouts, MakeStream, MakeWindows, Stream, Update
from t2t_flax.data.batching.streams import (
    WINDOW_UPDATES,
    Visits,
    fill,
    pairs_of_pass,
    pairs_of_update,
    windows_in_pass,
)
from t2t_flax.data.batching.window_layouts import Ahead
from t2t_flax.data.hashing import key_of
from t2t_flax.data.token_store import TokenStore
from t2t_flax.errors import UserError
from t2t_flax.extensions.mixtures import parse_batch_tokens, parse_shares


def join(parts: Sequence[Visits]) -> Visits:
    """All visits, by pair and pass ascending, so that reading their lengths goes through the store once."""
    passes = np.concatenate([part.passes for part in parts])
    pairs = np.concatenate([part.pairs for part in parts])
    return Visits(pairs, passes).at(np.lexsort((passes, pairs)))


@dataclasses.dataclass(frozen=True)
class PairStream:
    """The pairs `first` .. `first + count - 1` of a store without end: in each pass all of them, in another order."""

    first: int
    count: int
    seed: int

    def visits(self, begin: int, end: int) -> list[Visits]:
        """The positions `begin` .. `end - 1` of the stream; of whole passes in any order."""
        (first, offset), (last, rest) = divmod(begin, self.count), divmod(end, self.count)
        if first == last:
            return [self._of_pass(first, offset, rest)]
        whole = np.arange(first + 1, last)
        return [
            self._of_pass(first, offset, self.count),
            Visits(np.tile(self._all(), len(whole)), np.repeat(whole, self.count)),
            self._of_pass(last, 0, rest),
        ]

    def _of_pass(self, number: int, begin: int, end: int) -> Visits:
        if (begin, end) == (0, self.count):
            pairs = self._all()
        else:
            pairs = self.first + pairs_of_pass(self.count, self.seed, number, begin, end)
        return Visits(pairs, np.full(end - begin, number))

    def _all(self) -> np.ndarray:
        return np.arange(self.first, self.first + self.count)


@dataclasses.dataclass(frozen=True)
class SourceStream:
    """A source from where a phase begins: the visits `left` by the phase before, then its stream from `position` on."""

    stream: PairStream
    position: int = 0
    left: Visits = Visits(*np.zeros((2, 0), np.int64))

    @property
    def key(self) -> list[int]:
        return [self.stream.first, self.stream.count, self.position, zlib.crc32(np.stack(self.left).tobytes())]

    def visits(self, begin: int, end: int) -> list[Visits]:
        left = len(self.left.pairs)
        parts = [self.left.at(slice(begin, end))] if begin < left else []
        begin, end = (self.position + max(0, at - left) for at in (begin, end))
        return [*parts, *self.stream.visits(begin, end)]

    def after(self, used: int, left: Visits) -> "SourceStream":
        """From where the next phase begins, after `used` visits, of which `left`, in the order of training, were not
        trained on.
        """
        before, rest = len(self.left.pairs), self.left.at(slice(used, None))
        both = Visits(*map(np.concatenate, zip(left, rest, strict=True)))
        return SourceStream(self.stream, self.position + max(0, used - before), both)


@dataclasses.dataclass(frozen=True)
class Mixture:
    """The windows of a phase; `data.batching.streams.Windows`. rates: the pairs of each source in a window, 0 for those without a
    share. reference: the source with the largest share, by whose passes epochs are counted.
    """

    names: tuple[str, ...]
    sources: tuple[SourceStream, ...]
    rates: tuple[Fraction, ...]
    reference: int

    @property
    def key(self) -> list:
        return [[*source.key, str(rate)] for source, rate in zip(self.sources, self.rates, strict=True)]

    @property
    def a_pass(self) -> Fraction:
        return self.sources[self.reference].stream.count / self.rates[self.reference]

    def visits(self, window: int) -> Visits:
        spans = (self._span(source, window) for source in range(len(self.sources)))
        parts = [source.visits(*span) for source, span in zip(self.sources, spans, strict=True)]
        return join(list(itertools.chain(*parts)))

    def epoch(self, window: int) -> int:
        source = self.sources[self.reference]
        begin = source.position + max(0, self._span(self.reference, window)[0] - len(source.left.pairs))
        return begin // source.stream.count

    def _span(self, source: int, window: int) -> tuple[int, int]:
        begin, end = (int(at * self.rates[source]) for at in (window, window + 1))
        return begin, end

    def after(self, windows: int, left: Visits) -> tuple[SourceStream, ...]:
        """The sources from where the next phase begins, after `windows`, of whose visits `left` were not trained on."""
        sources = []
        for number, source in enumerate(self.sources):
            stream = source.stream
            own = (stream.first <= left.pairs) & (left.pairs < stream.first + stream.count)
            sources.append(source.after(self._span(number, windows)[0], left.at(own)))
        return tuple(sources)

    def describe(self) -> str:
        """ "clean 1,000 pairs, 75.0% of an update, 1 time each in an epoch; ..."."""
        parts = []
        for name, source, rate in zip(self.names, self.sources, self.rates, strict=True):
            times = f"{float(rate * self.a_pass / source.stream.count):.3g}"
            share = (
                f"{float(rate / sum(self.rates)):.1%} of an update, {times} time{'s' * (times != '1')} each in an epoch"
            )
            parts.append(f"{name} {source.stream.count:,} pairs, {share if rate else 'not used'}")
        return "; ".join(parts)


def mixtures(store: TokenStore, config: Config, data: Data, seed: int) -> list[tuple[int, Mixture]] | None:
    """(first update, mixture) of each phase of the config, as if it were the first; None if all pairs count equally, in
    batches of one size.
    """
    names, temperature = tuple(config.data.train_sources), config.group("mixtures").temperature or 1.0
    phases = phases_of(config)
    if len(phases) == 1 and (len(names) < 2 or temperature == 1 and not phases[0].weights):
        return None
    pairs = store.pairs_of_sources
    if len(names) != len(pairs):
        raise UserError(
            f"config.data.train has {len(names)} sources, but the token store {store.folder} was written from {len(pairs)}: "
            "prepare it with this config."
        )
    if temperature == 1 and not any(phase.weights for phase in phases):
        # The order of a run without phases, so that one of them may begin in a run that had none.
        names, pairs = (" and ".join(names),), [store.num_pairs]
        sources: tuple[SourceStream, ...] = (SourceStream(PairStream(0, store.num_pairs, seed)),)
    else:
        first = itertools.accumulate(pairs, initial=0)
        sources = tuple(
            SourceStream(PairStream(at, count, key_of(seed, 8, number)))
            for number, (at, count) in enumerate(zip(first, pairs, strict=False))
        )
    return [
        (start, _mixture(names, sources, _shares(names, pairs, weights, temperature), store, _sized(data, tokens)))
        for start, weights, tokens in phases
    ]


class PhaseOfUpdates(NamedTuple):
    """start: the first update. weights: see `Phase`. tokens: data.batch_tokens in this phase."""

    start: int
    weights: dict[str, float] | None
    tokens: int


def phases_of(config: Config) -> list[PhaseOfUpdates]:
    """The phases of a config, each with other shares or another batch size than the one before."""
    shares = dict(parse_shares(config))
    sizes = {0: config.data.batch_tokens} | parse_batch_tokens(config)
    if len(config.data.train_sources) < 2:
        shares = {0: None}
    last = lambda values, start: values[max(first for first in values if first <= start)]  # noqa: E731
    return [
        PhaseOfUpdates(start, last(shares, start), last(sizes, start)) for start in sorted(shares.keys() | sizes.keys())
    ]


def _sized(data: Data, tokens: int) -> Data:
    return dataclasses.replace(data, batch_tokens=tokens)


def _shares(
    names: Sequence[str], pairs: Sequence[int], weights: dict[str, float] | None, temperature: float
) -> list[Fraction]:
    """The shares of the sources in the pairs of an update, in proportion."""
    sizes = [
        count ** (1 / temperature) if weights is None else weights.get(name, 0.0)
        for name, count in zip(names, pairs, strict=True)
    ]
    return [Fraction(f"{size:.9g}") for size in sizes]


def _mixture(
    names: tuple[str, ...], sources: tuple[SourceStream, ...], shares: Sequence[Fraction], store: TokenStore, data: Data
) -> Mixture:
    """Windows of which the reference source has a whole number in a pass, or which have a whole number of its passes: one if
    they are passes of all sources.
    """
    reference = max(range(len(names)), key=lambda number: (shares[number], sources[number].stream.count))
    count = sources[reference].stream.count
    pairs = float(count / shares[reference] * sum(shares))
    a_pass = windows_in_pass(pairs, store, data)
    by_size = len({share / source.stream.count for share, source in zip(shares, sources, strict=True) if share}) == 1
    passes = 1 if by_size or a_pass > 1 else passes_in_window(pairs, store, data)
    rates = tuple(share / shares[reference] * count * passes / a_pass for share in shares)
    return Mixture(names, sources, rates, reference)


def passes_in_window(pairs: float, store: TokenStore, config: Data) -> int:
    """How many passes of so few pairs a window has: such that its last update is nearly full."""
    update = pairs_of_update(store, config)
    least = max(1, round(WINDOW_UPDATES * update / pairs))
    return max(range(least, 2 * least + 1), key=lambda count: fill(count * pairs / update))


def common_sizes(lists: Sequence[Sequence[Size]]) -> list[Size]:
    """One list for several: of rows of a length, as many as any needs, so that no program is compiled for each."""
    if len(lists) == 1:
        return list(lists[0])
    most: dict[int, int] = {}
    for length, rows in itertools.chain(*lists):
        most[length] = max(most.get(length, 0), rows)
    return sorted(most.items())


class Phases:
    """The updates of mixtures of which each begins at an update; a `Stream`. phases: by their first update, each as if it were
    the first one. Later ones do not change those before.
    """

    def __init__(self, phases: Mapping[int, Any]):
        self._starts, self._phases = list(phases), list(phases.values())
        by_tokens: dict[int, list[Sequence[Size]]] = {}
        for phase in self._phases:
            by_tokens.setdefault(phase.layouter.config.batch_tokens, []).append(phase.sizes)
        self.sizes = sorted({size for sizes in by_tokens.values() for size in common_sizes(sizes)})
        self.updates_per_epoch = self._phases[0].updates_per_epoch
        self._phase = functools.cache(self._continued)

    def update(self, k: int) -> Update:
        number = bisect.bisect_right(self._starts, k) - 1
        return self._phase(number).update(k - self._starts[number])

    def use(self, ahead: Ahead) -> None:
        for phase in self._phases:
            phase.use(ahead)

    def _continued(self, number: int) -> Layouts:
        """A phase from where the one before ends."""
        phase = self._phases[number]
        if not number:
            return phase
        before = self._phase(number - 1)
        windows: Any = before.layouter.windows  # a Mixture
        window, trained = before.locate(self._starts[number] - self._starts[number - 1])
        left = windows.visits(window).at(before.window(window).visits_from(trained))
        sources = windows.after(window + 1, left)
        following: Any = phase.layouter.windows
        return phase.of_windows(dataclasses.replace(following, sources=sources))


def _constant(mixture: Mixture) -> MakeWindows:
    return lambda store: mixture


def mixed_stream(make: MakeStream, config: Config) -> MakeStream:
    """The phases of mixtures.shares, each a stream of `make`."""

    def make_phases(store: TokenStore, data: Data, seed: int, windows_of: MakeWindows | None = None) -> Stream:
        phases = mixtures(store, config, data, seed)
        if phases is None:
            return make(store, data, seed, windows_of)
        seeds = [key_of(seed, 7, number) if number else seed for number in range(len(phases))]
        sized = [_sized(data, phase.tokens) for phase in phases_of(config)]
        return Phases({
            start: make(store, of_size, of_phase, _constant(mixture))
            for of_phase, of_size, (start, mixture) in zip(seeds, sized, phases, strict=True)
        })  # fmt: skip

    return make_phases
