"""Training text of a tokenizer, with a share of each source of data.train."""

import itertools
import json
import math
from collections.abc import Sequence
from typing import NamedTuple

from t2t_flax.data.sources import Drawn, draw_pairs, sha256_of
from t2t_flax.data.tokenizer_text import TokenizerText


class Shares(NamedTuple):
    """Share of each source of data.train in a sample.

    It is weight * pairs^power, over the sum of all.
    """

    weights: tuple[float, ...]
    power: float

    def of(self, pairs: Sequence[float]) -> list[float]:
        """Return the shares of the first sources, given their numbers of pairs."""
        amounts = [
            weight * count**self.power for weight, count in zip(self.weights, pairs, strict=False)
        ]
        return [amount / (sum(amounts) or 1.0) for amount in amounts]


class MixedText(TokenizerText):
    """Text that gives each source its share of samples."""

    def __init__(self, text: TokenizerText, shares: Shares):
        super().__init__(text.source, text.policies, text.report)
        self._shares = shares

    def fingerprint(self):
        return sha256_of(super().fingerprint(), json.dumps(self._shares))

    def sample(self, count):
        """Sample pairs; pairs of a source that has fewer than its share are repeated.

        Filters see only pairs that were drawn, so that a sample is smaller by the pairs that they
        drop.
        """
        drawn: list[Drawn[tuple[str, str]]] = []
        for candidates in self.candidates():
            drawn.append(draw_pairs(candidates, count, key=len(drawn)))
            for one, share in zip(drawn, self._shares.of([one.seen for one in drawn]), strict=True):
                one.cut(math.ceil(share * count))
        kept = [[*self.kept(number, one.pairs)] for number, one in enumerate(drawn)]
        if not any(kept):
            raise self.nothing_left()
        # Estimate the pairs of each source that the filters would keep if they saw all of it.
        sizes = [
            one.seen * len(pairs) / max(1, len(one.pairs))
            for one, pairs in zip(drawn, kept, strict=True)
        ]
        shares = self._shares.of(sizes)
        total = min(count, sum(sizes))
        for one, pairs, share in zip(drawn, kept, shares, strict=True):
            # No pair is repeated while others were not drawn.
            if share and pairs and one.seen > len(one.pairs):
                total = min(total, len(pairs) / share)
        repeated = (
            _repeated(pairs, round(total * share))
            for pairs, share in zip(kept, shares, strict=True)
        )
        self.report("train the tokenizer", 0, None, "")
        return [*itertools.chain.from_iterable(repeated)]


def _repeated(pairs: Sequence[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    """Return `count` of the pairs, spread evenly: each equally often, or once more."""
    size = len(pairs)
    return [pairs[i * size // count] for i in range(count)] if size else []
