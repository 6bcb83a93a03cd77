"""Filters that look at one pair: unequal lengths, equal sides."""

import dataclasses
from typing import ClassVar

from t2t_flax.data.preprocess import Pair, PairFilter


class Rule(PairFilter):
    """A filter that `explain` shows."""

    @property
    def rule(self) -> str:
        """Description of the pairs it drops."""
        return self.shown

    def accepts(self, pair: Pair) -> bool:
        """Return whether a pair is kept."""
        return True

    def drops(self, pairs):
        return [not self.accepts(pair) for pair in pairs]


@dataclasses.dataclass(frozen=True)
class LengthRatio(Rule):
    """Drop pairs whose one side has more than `most` times the tokens of the other."""

    reason: ClassVar[str] = "length_ratio"
    shown: ClassVar[str] = "of unlike lengths"
    needs_tokens: ClassVar[bool] = True
    most: float

    @property
    def rule(self):
        return f"pairs with more than {self.most:g} times as many tokens on one side"

    def as_stored(self):
        return {"max_length_ratio": self.most}

    def accepts(self, pair):
        shorter, longer = sorted((len(pair.source_ids), len(pair.target_ids)))
        return longer <= self.most * shorter


@dataclasses.dataclass(frozen=True)
class Copies(Rule):
    """Drop pairs whose sides are equal, ignoring spaces around them."""

    reason: ClassVar[str] = "copy"
    shown: ClassVar[str] = "with equal sides"

    def as_stored(self):
        return {"drop_copies": True}

    def accepts(self, pair):
        return pair.source.strip() != pair.target.strip()
