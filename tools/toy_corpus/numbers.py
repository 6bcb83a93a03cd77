"""Numbers, prices, measures, dates and times in both languages: words (num2words), digits (Babel).

No-break and narrow spaces of both libraries become plain spaces.
"""

from __future__ import annotations

import datetime
import importlib.metadata
from decimal import Decimal
from functools import lru_cache

import babel
import babel.dates
import babel.numbers
import babel.units
from num2words import num2words

from tools.toy_corpus.lexicon import Adjective, Phrase

_SPACES = str.maketrans(dict.fromkeys("\u00a0\u2007\u2009\u202f", " "))
_LOCALES = babel.Locale("en", "US"), babel.Locale("de", "DE")


def versions() -> list[str]:
    """The releases that decide how a number is written."""
    return [f"{name} {importlib.metadata.version(name)}" for name in ("babel", "num2words")]


def _localised(form) -> Phrase:
    en, de = _LOCALES
    return Phrase(form(en).translate(_SPACES), form(de).translate(_SPACES))


@lru_cache(maxsize=1 << 14)
def words(number: int, kind: str = "cardinal") -> Phrase:
    """Spell a number.

    kind "year" reads 1984 as nineteen eighty-four, neunzehnhundertvierundachtzig.
    """
    return Phrase(num2words(number, lang="en", to=kind), num2words(number, lang="de", to=kind))


@lru_cache(maxsize=1 << 10)
def ordinal(number: int) -> Adjective:
    """`number` as an adjective: twenty-third, dreiundzwanzigst-."""
    en, de = (num2words(number, lang=language, to="ordinal") for language in ("en", "de"))
    return Adjective(en, "", de, "", de.removesuffix("e"))


@lru_cache(maxsize=1 << 14)
def digits(number: Decimal | int) -> Phrase:
    """1,234.5 and 1.234,5."""
    return _localised(lambda locale: babel.numbers.format_decimal(number, locale=locale))


@lru_cache(maxsize=1 << 14)
def money(amount: Decimal, currency: str = "EUR") -> Phrase:
    """€1,234.50 and 1.234,50 €."""
    return _localised(lambda locale: babel.numbers.format_currency(amount, currency, locale=locale))


@lru_cache(maxsize=1 << 14)
def percent(value: Decimal) -> Phrase:
    """12.5% and 12,5 %; `value` in percent."""
    form = babel.numbers.format_percent
    return _localised(lambda locale: form(value / 100, locale=locale, decimal_quantization=False))


@lru_cache(maxsize=1 << 14)
def measure(value: Decimal, unit: str) -> Phrase:
    """12.5 kilograms and 12,5 Kilogramm; `unit` as in CLDR, mass-kilogram."""
    form = babel.units.format_unit
    return _localised(lambda locale: form(value, unit, length="long", locale=locale))


@lru_cache(maxsize=1 << 14)
def date(year: int, month: int, day: int, style: str = "long") -> Phrase:
    """March 5, 2021 and 5. März 2021; style "full" puts the weekday first."""
    value = datetime.date(year, month, day)
    return _localised(lambda locale: babel.dates.format_date(value, style, locale=locale))


@lru_cache(maxsize=1440)
def clock(hour: int, minute: int) -> Phrase:
    """3:45 PM and 15:45."""
    value = datetime.time(hour, minute)
    return _localised(lambda locale: babel.dates.format_time(value, "short", locale=locale))
