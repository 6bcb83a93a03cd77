"""Sentence templates with figures: numbers in words, prices, measures, dates and times.

Rules as in sentences.
"""

from __future__ import annotations

from tools.toy_corpus.grammar import (
    BE,
    HAVE,
    Event,
    Subject,
    act,
    journey,
    main,
    past,
    present,
    sentence,
    stay,
    the,
)
from tools.toy_corpus.lexicon import (
    LIVE,
    NAMES,
    PAY,
    READ,
    Adjective,
    Noun,
    Phrase,
    Place,
    Verb,
)
from tools.toy_corpus.numbers import digits, words

Pair = tuple[str, str]
OPERATORS = {
    "plus": ("plus", int.__add__),
    "minus": ("minus", int.__sub__),
    "times": ("mal", int.__mul__),
}
BECOME = ("wurde", "wurdest", "wurde", "wurden")


# Quantities in words.
def arithmetic(amount: int, operator: str, amount2: int) -> Pair:
    german, compute = OPERATORS[operator]
    if operator == "times":
        amount2 = amount2 % 9 + 2
    one, two = words(max(amount, amount2)), words(min(amount, amount2))
    result = words(compute(max(amount, amount2), min(amount, amount2)))
    return sentence(
        f"{one.en} {operator} {two.en} is {result.en}",
        f"{one.de} {german} {two.de} ist {result.de}",
    )


def in_words(large: int) -> Pair:
    spelled = words(large)
    return sentence(
        f"in words, {digits(large).en} is {spelled.en}",
        f"in Worten ist {digits(large).de} {spelled.de}",
    )


def chapter(who: Subject, rank: Adjective, text: Noun, then: Phrase) -> Pair:
    return main(past(who, act(READ, "the", text, rank), then))


def moved(year_words: Phrase, who: Subject, travel: Verb, city: Phrase) -> Pair:
    clause = past(who, journey(travel, city, ""))
    return sentence(f"in {year_words.en}, {clause.en}", f"{year_words.de} {clause.first()}")


def age(who: Subject, years: Phrase, city: Phrase) -> Pair:
    home = present(who, stay(LIVE, Phrase(f"in {city.en}", f"in {city.de}")))
    ist = HAVE["sein"][who.person]
    return sentence(
        f"{who.en} {BE[who.person][0]} {years.en} years old and"
        f" {home.en.removeprefix(who.en + ' ')}",
        f"{who.de} {ist} {years.de} Jahre alt und {home.second().removeprefix(who.de + ' ')}",
    )


def lasts(show: Noun, city: Phrase, minutes: Phrase) -> Pair:
    event = the(show)
    return sentence(
        f"{event.en} in {city.en} lasts {minutes.en} minutes",
        f"{event.de} in {city.de} dauert {minutes.de} Minuten",
    )


def birthday(name: str, jubilee: Adjective, day: Phrase) -> Pair:
    her, ihren = ("her", "ihren") if name in NAMES["f"] else ("his", "seinen")
    return sentence(
        f"{name} celebrated {her} {jubilee.en} birthday on {day.en}",
        f"{name} hat am {day.de} {ihren} {jubilee.stem}en Geburtstag gefeiert",
    )


# Quantities in figures.
def costs(adjective: Adjective, thing: Noun, price: Phrase) -> Pair:
    item = the(thing, adjective)
    return sentence(f"{item.en} costs {price.en}", f"{item.de} kostet {price.de}")


def paid(who: Subject, price: Phrase, thing: Noun, then: Phrase) -> Pair:
    item = act(PAY, "the", thing)
    return main(
        past(who, Event(PAY, f"{price.en} for {item.en}", f"{price.de} für {item.de}", ""), then)
    )


def dearer(color: Adjective, thing: Noun, price: Phrase, worth: Phrase, thing2: Noun) -> Pair:
    one, other = the(thing, color), the(thing2)
    return sentence(
        f"{one.en} is {price.en} {worth.en} than {other.en}",
        f"{one.de} ist {price.de} {worth.de} als {other.de}",
    )


def distance(city: Phrase, city2: Phrase, way: Phrase) -> Pair:
    return sentence(
        f"the distance between {city.en} and {city2.en} is {way.en}",
        f"die Entfernung zwischen {city.de} und {city2.de} beträgt {way.de}",
    )


def weighs(adjective: Adjective, thing: Noun, mass: Phrase) -> Pair:
    item = the(thing, adjective)
    return sentence(f"{item.en} weighs {mass.en}", f"{item.de} wiegt {mass.de}")


def extent(color: Adjective, thing: Noun, length: Phrase, dimension: Phrase) -> Pair:
    item = the(thing, color)
    return sentence(
        f"{item.en} is {length.en} {dimension.en}", f"{item.de} ist {length.de} {dimension.de}"
    )


def temperature(then: Phrase, heat: Phrase, city: Phrase) -> Pair:
    return sentence(
        f"{then.en}, it was {heat.en} in {city.en}", f"{then.de} waren es in {city.de} {heat.de}"
    )


def trend(index: Phrase, change: Phrase, rate: Phrase, month: Phrase) -> Pair:
    return sentence(
        f"{index.en} {change.en} by {rate.en} in {month.en}",
        f"{index.de} ist im {month.de} um {rate.de} {change.de}",
    )


def share_of(share: Phrase, person: Noun, city: Phrase) -> Pair:
    return sentence(
        f"{share.en} of the {person.plural_en} live in {city.en}",
        f"{share.de} der {person.plural} wohnen in {city.de}",
    )


def born(who: Subject, city: Phrase, day: Phrase) -> Pair:
    return sentence(
        f"{who.en} {BE[who.person][1]} born in {city.en} on {day.en}",
        f"{who.de} {BECOME[who.person]} am {day.de} in {city.de} geboren",
    )


def letterhead(city: Phrase, full_day: Phrase) -> Pair:
    return sentence(f"{city.en}, {full_day.en}", f"{city.de}, {full_day.de}", "")


def founded(venue: Place, city: Phrase, day: Phrase) -> Pair:
    house = the(venue.noun)
    return sentence(
        f"{house.en} in {city.en} was opened on {day.en}",
        f"{house.de} in {city.de} wurde am {day.de} eröffnet",
    )


def leaves(carrier: Noun, city: Phrase, weekday: Phrase, hour: Phrase) -> Pair:
    return sentence(
        f"the {carrier.en} to {city.en} leaves on {weekday.en} at {hour.en}",
        f"{the(carrier).de} nach {city.de} fährt am {weekday.de} um {hour.de} Uhr ab",
    )


def arrives(carrier: Noun, city: Phrase, hour: Phrase, city2: Phrase) -> Pair:
    return sentence(
        f"the {carrier.en} from {city.en} arrives in {city2.en} at {hour.en}",
        f"{the(carrier).de} aus {city.de} kommt um {hour.de} Uhr in {city2.de} an",
    )


def starts(show: Noun, city: Phrase, weekday: Phrase, hour: Phrase) -> Pair:
    return sentence(
        f"the {show.en} in {city.en} starts on {weekday.en} at {hour.en}",
        f"{the(show).de} in {city.de} fängt am {weekday.de} um {hour.de} Uhr an",
    )


def opens(venue: Place, morning: Phrase, evening: Phrase) -> Pair:
    return sentence(
        f"the {venue.noun.en} opens at {morning.en} and closes at {evening.en}",
        f"{the(venue.noun).de} öffnet um {morning.de} Uhr und schließt um {evening.de} Uhr",
    )


def phone(name: str, code: str) -> Pair:
    return sentence(f"{name}'s phone number is {code}", f"{name}s Telefonnummer ist {code}")


def room(who: Subject, indoors: Verb, chamber: int, then: Phrase) -> Pair:
    place = Phrase(f"in room {chamber}", f"in Zimmer {chamber}")
    return main(past(who, stay(indoors, place), then))
