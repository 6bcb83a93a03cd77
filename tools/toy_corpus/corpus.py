"""Pairs of an English-German corpus: a pure function of (split, index, seed), in any number.

Each English sentence has exactly one translation. Words are drawn with splitmix64, the same on
every Python version. A hash of the English sentence alone decides to which split it belongs, so no
sentence is in two splits, whatever the seeds.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator

from t2t_flax.errors import UserError
from tools.toy_corpus import draws, everyday_draws
from tools.toy_corpus.everyday_words import FIXED

VERSION = 2
"""To be increased with every change of the lexicon, the templates or the draws."""

SPLITS = ("train", "valid", "test")
EVERYDAY_PERCENT = 55
"""Percentage of short everyday sentences.

The others have numbers, clauses and long-distance word order.
"""
_TWENTIETHS = ("valid", "test") + ("train",) * 18
_MASK = (1 << 64) - 1


def pair(split: str, index: int, *, seed: int = 0) -> tuple[str, str]:
    """Return the `index`-th (English, German) pair of `split`.

    It is the first candidate whose content assigns it to the split. Raises `UserError` for an
    unknown split, `ValueError` for a negative index.
    """
    _check(split)
    if index < 0:
        raise ValueError(f"index is {index}; the corpus starts at 0")
    candidates = (draw(stream(seed, split, index, attempt)) for attempt in itertools.count())
    return next(candidate for candidate in candidates if split_of(candidate[0]) == split)


def pairs(split: str, count: int, *, seed: int = 0) -> Iterator[tuple[str, str]]:
    """The first `count` pairs of `split`."""
    _check(split)
    return (pair(split, index, seed=seed) for index in range(count))


def draw(below: Callable[[int], int]) -> tuple[str, str]:
    """One English-German pair of the mixture, of any split."""
    return (everyday_draws if below(100) < EVERYDAY_PERCENT else draws).draw(below)


def split_of(english: str) -> str:
    """Return the split of a sentence: 90 % train, 5 % valid, 5 % test.

    Fixed phrases, such as greetings, are in train.
    """
    if english in FIXED:
        return "train"
    digest = hashlib.blake2b(english.encode(), digest_size=8).digest()
    return _TWENTIETHS[int.from_bytes(digest, "little") % len(_TWENTIETHS)]


def _check(split: str) -> None:
    if split not in SPLITS:
        raise UserError(f"the corpus has no split {split!r}; it has {', '.join(SPLITS)}")


def stream(seed: int, split: str, *key: int) -> Callable[[int], int]:
    """Return a function below(n) that draws integers in [0, n).

    The generator is splitmix64 (Steele, Lea, Flood 2014).
    """
    state = 0

    def below(n: int) -> int:
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((z ^ (z >> 31)) * n) >> 64

    for part in (seed, SPLITS.index(split), *key):
        state = below(1 << 64) ^ (part & _MASK)
    return below
