"""The built-in English-German corpus: real sentences generated at run time, without end and without a download.

Each English sentence has exactly one translation. A pair is a pure function of (split, index, seed): its words are
drawn with splitmix64, the same on every Python version. A hash of the English sentence alone decides to which split
it belongs, so no sentence is in two splits, whatever the seeds.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import cache

from t2t_flax.data import toy_facts, toy_grammar, toy_numbers, toy_sentences
from t2t_flax.data import toy_lexicon as lexicon
from t2t_flax.data.toy_grammar import Event, Subject
from t2t_flax.data.toy_lexicon import Phrase
from t2t_flax.errors import UserError

VERSION = 1
"""Goes up with every change of the grammar, the lexicon or the draws."""

SPLITS = ("train", "valid", "test")

_MASK = (1 << 64) - 1
Below = Callable[[int], int]


def _stream(*key: int) -> Below:
    """A function that returns the next integer in [0, n): splitmix64 (Steele, Lea, Flood 2014) on plain integers."""
    state = 0

    def below(n: int) -> int:
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((z ^ (z >> 31)) * n) >> 64

    for part in key:
        state = below(1 << 64) ^ (part & _MASK)
    return below


def _one_of(*options: Callable[[Below], object]) -> Callable[[Below], object]:
    return lambda below: options[below(len(options))](below)


def _from(words: Sequence | dict) -> Callable[[Below], object]:
    """Draws a value of a table of lexemes, a phrase of a table of strings, or an item of a sequence."""
    if isinstance(words, dict):
        words = [Phrase(en, de) if isinstance(de, str) else de for en, de in words.items()]
    options = tuple(words)
    return lambda below: options[below(len(options))]


def _phrase(pattern_en: str, pattern_de: str, domain: str) -> Callable[[Below], Phrase]:
    """A drawn phrase inside a longer one: on {} and am {}."""

    def draw(below: Below) -> Phrase:
        inner = DOMAINS[domain](below)
        return Phrase(pattern_en.format(inner.en), pattern_de.format(inner.de))

    return draw


def _whole(below: Below, digits: int) -> int:
    """2 .. 10**digits - 1, each length equally likely; never ...01, whose German form varies before a noun."""
    number = 2 + below(10 ** (1 + below(digits)) - 2)
    return number + 1 if number % 100 == 1 else number


def _number(below: Below) -> Phrase:
    return toy_numbers.words(_whole(below, 3)) if below(3) else toy_numbers.digits(_whole(below, 5))


def _price(below: Below) -> Phrase:
    cents = 50 + below(10 ** (3 + below(4)))
    return toy_numbers.money(Decimal(cents) / 100, ("EUR", "EUR", "USD", "GBP")[below(4)])


def _measure(unit: str, low: int, high: int) -> Callable[[Below], Phrase]:
    return lambda below: toy_numbers.measure(Decimal(low + below(high - low)) / 10, unit)


def _day(first: int, style: str = "long") -> Callable[[Below], Phrase]:
    return lambda below: toy_numbers.date(first + below(50), 1 + below(12), 1 + below(28), style)


def _person_as_subject(below: Below) -> Subject:
    noun = DOMAINS["person"](below)
    return toy_grammar.all_the(noun) if below(3) == 0 else toy_grammar.the(noun)


def _thing_event(below: Below, plain: bool) -> Event:
    table, nouns = (lexicon.HANDLE, "thing") if below(4) else (lexicon.EAT, "food")
    verb, noun = _from_cached(table)(below), DOMAINS[nouns](below)
    adjective = DOMAINS["adjective"](below) if nouns == "thing" and below(2) else None
    kind = below(6)
    if kind == 0 and not plain:
        return toy_grammar.count(verb, _number(below), noun, adjective)
    determiner = ("the", "a", "the", "a", "the", None)[kind] or DOMAINS["owner"](below)
    return toy_grammar.act(verb, determiner, noun, adjective)


def _event(plain: bool) -> Callable[[Below], Event]:
    """What a subject does; a plain event counts nothing, so that it can be negated."""

    def draw(below: Below) -> Event:
        kind = below(10)
        if kind < 4:
            return _thing_event(below, plain)
        if kind < 6:
            return toy_grammar.act(_from_cached(lexicon.MEET)(below), "the", DOMAINS["person"](below))
        if kind == 6:
            return toy_grammar.serve(_from_cached(lexicon.SERVE)(below), DOMAINS["person"](below))
        if kind == 7:
            return toy_grammar.journey(DOMAINS["ride"](below), DOMAINS["city"](below), DOMAINS["vehicle"](below))
        if kind == 8:
            return toy_grammar.go(_from_cached(lexicon.GO)(below), DOMAINS["place"](below))
        manner = DOMAINS["manner"](below) if below(2) else ""
        return toy_grammar.stay(DOMAINS["rest"](below), DOMAINS["place"](below).at, manner)

    return draw
