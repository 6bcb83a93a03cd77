"""Filters that look at one pair: equal sides, lengths, letters and their script, numbers."""

import dataclasses
import functools
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

import regex

from t2t_flax.data.preprocess import Pair, PairFilter
from t2t_flax.extensions.corpora.scripts import scripts_of

_LETTERS = regex.compile(r"[\p{L}\p{M}]+")
_NUMBER = regex.compile(r"\d+")
_GROUPING = regex.compile(r"(?<=\d)[.,'\u2019\s](?=\d{3}(?!\d))")
"""Between groups of three digits: 1,000 and 1.000 and 1000 are the same number."""


class Rule(PairFilter):
    """A filter that `explain` shows."""

    @property
    def rule(self) -> str:
        """The pairs that it drops, in words."""
        return self.shown

    def accepts(self, pair: Pair) -> bool:
        """Whether a pair is kept."""
        return True

    def drops(self, pairs):
        return [not self.accepts(pair) for pair in pairs]


@dataclasses.dataclass(frozen=True)
class LengthRatio(Rule):
    """Drops pairs of which one side has more than `most` times the tokens of the other."""

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
    """Drops pairs whose sides are equal, apart from spaces around them."""

    reason: ClassVar[str] = "copy"
    shown: ClassVar[str] = "with equal sides"

    def as_stored(self):
        return {"drop_copies": True}

    def accepts(self, pair):
        return pair.source.strip() != pair.target.strip()


_COUNTS: dict[str, Callable[[str], int]] = {"words": lambda text: len(text.split()), "characters": len}


@dataclasses.dataclass(frozen=True)
class Length(Rule):
    """Drops pairs with a side of fewer than `least` or more than `most` (0 = no limit) words, split at spaces, or characters.

    unit: "words" | "characters".
    """

    unit: str
    least: int
    most: int

    @property
    def reason(self):  # type: ignore[override]
        return self.unit

    @property
    def shown(self):  # type: ignore[override]
        return f"with too few or too many {self.unit}"

    @property
    def rule(self):
        limits = {"fewer": self.least, "more": self.most}
        said = " or ".join(f"{word} than {limit:,}" for word, limit in limits.items() if limit)
        return f"pairs with a side of {said} {self.unit}"

    def as_stored(self):
        return {self.unit: [self.least, self.most]}

    def accepts(self, pair):
        lengths = map(_COUNTS[self.unit], (pair.source, pair.target))
        return all(self.least <= length <= (self.most or length) for length in lengths)


@dataclasses.dataclass(frozen=True)
class Letters(Rule):
    """Drops pairs if less than this share of either side's characters (without spaces) are letters or marks on them; the others
    are digits, punctuation and symbols.
    """

    reason: ClassVar[str] = "letters"
    shown: ClassVar[str] = "with few letters"
    least: float

    @property
    def rule(self):
        return f"pairs with a side of less than {self.least:.4g} letters"

    def as_stored(self):
        return {"letters": self.least, "unicode": regex.__version__}

    def accepts(self, pair):
        return all(self._share(text) >= self.least for text in (pair.source, pair.target))

    def _share(self, text: str) -> float:
        return _length(_LETTERS, text) / sum(map(len, text.split()))


@dataclasses.dataclass(frozen=True)
class Scripts(Rule):
    """Drops pairs if less than this share of either side's letters are in its language's script; text without a letter is kept.

    languages: (source, target) of each part.
    """

    reason: ClassVar[str] = "script"
    shown: ClassVar[str] = "in another script"
    least: float
    languages: tuple[tuple[str, str], ...]

    @property
    def rule(self):
        return f"pairs with a side of less than {self.least:.4g} letters of its script"

    def as_stored(self):
        scripts = [[scripts_of(language) for language in pair] for pair in self.languages]
        return {"script": self.least, "scripts": scripts, "unicode": regex.__version__}

    def accepts(self, pair):
        sides = zip((pair.source, pair.target), self.languages[pair.part], strict=True)
        return all(self._share(text, language) >= self.least for text, language in sides)

    def _share(self, text: str, language: str) -> float:
        foreign = _length(_foreign_letters(language), text)
        return 1 - foreign / _length(_LETTERS, text) if foreign else 1.0


@functools.cache
def _foreign_letters(language: str) -> regex.Pattern:
    """Letters of other scripts than a language's, without those that many share, such as a combining accent."""
    names = "".join(rf"\p{{Script_Extensions={script}}}" for script in (*scripts_of(language), "Zinh", "Zyyy"))
    return regex.compile(rf"[[\p{{L}}\p{{M}}]--[{names}]]+", regex.V1)


def _length(runs: regex.Pattern, text: str) -> int:
    """Characters of the text in runs that match."""
    return sum(map(len, runs.findall(text)))


@dataclasses.dataclass(frozen=True)
class Numbers(Rule):
    """Drops pairs if less than this share of the numbers, in digits, occur on both sides; pairs without numbers are kept.

    Of the numbers with their repetitions: those on both sides, divided by those on either. Separators of thousands and leading
    zeros do not count; the parts of a decimal number or a date are numbers of their own.
    """

    reason: ClassVar[str] = "numbers"
    shown: ClassVar[str] = "with other numbers"
    least: float

    @property
    def rule(self):
        return f"pairs with less than {self.least:.4g} of their numbers on both sides"

    def as_stored(self):
        return {"numbers": self.least, "numbers_unicode": [regex.__version__, unicodedata.unidata_version]}

    def accepts(self, pair):
        if not (_NUMBER.search(pair.source) or _NUMBER.search(pair.target)):
            return True
        source, target = (_numbers(text) for text in (pair.source, pair.target))
        either = (source | target).total()
        return (source & target).total() >= self.least * either


def _numbers(text: str) -> Counter[str]:
    found = _NUMBER.findall(_GROUPING.sub("", text))
    return Counter(_in_ascii(number).lstrip("0") or "0" for number in found)


def _in_ascii(number: str) -> str:
    """The digits in ASCII; those of a newer Unicode than unicodedata's stay as they are."""
    digits = ((digit, unicodedata.digit(digit, None)) for digit in number)
    return number if number.isascii() else "".join(sign if value is None else str(value) for sign, value in digits)
