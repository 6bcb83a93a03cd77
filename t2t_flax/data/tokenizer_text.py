"""The text on which a tokenizer is trained: what the filters of training pairs keep, each source of data.train in its share."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from t2t_flax.data.preprocess import CHUNK_PAIRS, EMPTY, Pair, PairFilter, Unread, rows_of
from t2t_flax.data.progress import Report, reported, silent
from t2t_flax.data.sources import Drawn, Source, counted, draw_pairs
from t2t_flax.errors import UserError


class Shares(NamedTuple):
    """The share of each source of data.train in a sample: weight * pairs^power, over the sum of all."""

    weights: tuple[float, ...]
    power: float

    def of(self, pairs: Sequence[float]) -> list[float]:
        """Of the first sources, by their numbers of pairs."""
        amounts = [weight * count**self.power for weight, count in zip(self.weights, pairs, strict=False)]
        return [amount / (sum(amounts) or 1.0) for amount in amounts]


class TokenizerText(Source):
    """The pairs of a source that have text on both sides and that the filters keep, tags included. Filters of tokens are left
    out, since there is no tokenizer yet. shares: in a sample; None = by size. report: told how far the source is read, and when
    a sample is complete, of which a tokenizer is then trained.
    """

    def __init__(
        self, source: Source, filters: Sequence[PairFilter], shares: Shares | None = None, report: Report = silent
    ):
        super().__init__(source.spec)
        self._source, self._filters = source, [one for one in filters if not one.needs_tokens]
        self._report = report
        self._dropped = Counter[str]()
        self._shares = shares or Shares((1.0,) * len(source.parts), 1.0)

    def read(self):
        kept = False
        for number, pairs in enumerate(self._candidates()):
            for pair in self._kept(number, pairs):
                kept = True
                yield pair
        if not kept:
            raise self._nothing_left()

    def fingerprint(self):
        return self._source.fingerprint()

    def sample(self, count):
        """Of a source that has fewer pairs than its share, pairs are repeated. Filters see only pairs that were drawn, so that
        a sample is smaller by those that they drop.
        """
        drawn: list[Drawn] = []
        for candidates in self._candidates():
            drawn.append(draw_pairs(candidates, count, key=len(drawn)))
            for one, share in zip(drawn, self._shares.of([one.seen for one in drawn]), strict=True):
                one.cut(math.ceil(share * count))
        kept = [[*self._kept(number, one.pairs)] for number, one in enumerate(drawn)]
        if not any(kept):
            raise self._nothing_left()
        # Of each source, the pairs that the filters would keep if they saw all of it.
        sizes = [one.seen * len(pairs) / max(1, len(one.pairs)) for one, pairs in zip(drawn, kept, strict=True)]
        shares = self._shares.of(sizes)
        total = min(count, sum(sizes))
        for one, pairs, share in zip(drawn, kept, shares, strict=True):
            if share and pairs and one.seen > len(one.pairs):  # no pair is repeated while others were not drawn
                total = min(total, len(pairs) / share)
        repeated = (_repeated(pairs, round(total * share)) for pairs, share in zip(kept, shares, strict=True))
        self._report("train the tokenizer", 0, None, "")
        return [*itertools.chain.from_iterable(repeated)]

    def _candidates(self) -> Iterator[Iterator[tuple[str, str]]]:
        """The pairs of each part that have text on both sides and are not dropped because of others."""
        self._dropped = Counter[str]()
        numbers, count = itertools.count(), self._source.expected_count
        for of_part in rows_of(self._source.parts, self._filters, self._report):
            rows = reported(of_part, numbers, "sample sentences", self._report, count)
            yield filter(None, map(self._with_text, rows))

    def _with_text(self, row: Unread) -> tuple[str, str] | None:
        """The pair; None, counted, for one that is dropped or has an empty side."""
        if isinstance(row, str) or not all(map(str.strip, row)):
            self._dropped[row if isinstance(row, str) else "empty"] += 1
            return None
        return row

    def _kept(self, number: int, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        part, rest = self._source.parts[number], iter(pairs)
        while chunk := [*itertools.islice(rest, CHUNK_PAIRS)]:
            for one in self._filters:
                drops = one.drops([Pair(part.without_tag(source), target, (), (), number) for source, target in chunk])
                self._dropped[one.reason] += sum(drops)
                chunk = [pair for pair, drop in zip(chunk, drops, strict=True) if not drop]
            yield from chunk

    def _nothing_left(self) -> UserError:
        shown = {**self._source.reasons, "empty": EMPTY, **{one.reason: one.shown for one in self._filters}}
        return UserError(f"{self.spec}: no pair is left to train a tokenizer on: {counted(self._dropped, shown)}")


def _repeated(pairs: Sequence[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    """`count` of the pairs, spread evenly: each equally often, or once more."""
    size = len(pairs)
    return [pairs[i * size // count] for i in range(count)] if size else []
