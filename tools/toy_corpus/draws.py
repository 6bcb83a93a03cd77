"""Draw pairs of the built-in corpus: a domain for each parameter of the sentence templates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from decimal import Decimal

from tools.toy_corpus import facts, grammar, lexicon, numbers, sentences
from tools.toy_corpus.grammar import Event, Subject
from tools.toy_corpus.lexicon import Phrase

Below = Callable[[int], int]
"""Returns an integer in [0, n), uniform."""
Domain = Callable[[Below], object]
Parameters = list[tuple[str, Domain]]


def draw(below: Below) -> tuple[str, str]:
    """One English-German pair, each template equally likely."""
    return fill(below, *choose(below))


def choose(below: Below) -> tuple[Callable, Parameters]:
    """A template, each equally likely."""
    return TEMPLATES[below(len(TEMPLATES))]


def fill(below: Below, template: Callable, parameters: Parameters) -> tuple[str, str]:
    """A pair of one template."""
    return template(**values_of(below, parameters))


def values_of(below: Below, parameters: Parameters) -> dict[str, object]:
    """A value of each parameter. They differ from each other: no coat is heavier than the coat."""
    values: dict[str, object] = {}
    taken: set[object] = set()
    for name, domain in parameters:
        label = None
        while label is None or label in taken:
            value = domain(below)
            label = getattr(value, "en", value)
        taken.add(label)
        values[name] = value
    return values


def any_of(options: Iterable) -> Domain:
    """An item of a sequence, a lexeme of a table, or a phrase of a table of strings."""
    if isinstance(options, dict):
        options = [Phrase(en, de) if isinstance(de, str) else de for en, de in options.items()]
    items = tuple(options)
    return lambda below: items[below(len(items))]


def mixed(*domains: Domain) -> Domain:
    return lambda below: domains[below(len(domains))](below)


def within(en: str, de: str, *inner: Domain) -> Domain:
    """Drawn phrases inside a longer one: on {} at {}, am {} um {} Uhr."""

    def phrase(below: Below) -> Phrase:
        parts = [domain(below) for domain in inner]
        return Phrase(
            en.format(*(part.en for part in parts)), de.format(*(part.de for part in parts))
        )

    return phrase


def _whole(below: Below, most: int) -> int:
    """Draw from 2 .. 10**most - 1, each length equally likely.

    Numbers that end in 01 are left out: their German form before a noun is not settled.
    """
    number = 2 + below(10 ** (1 + below(most)) - 2)
    return number + 1 if number % 100 == 1 else number


def _number(below: Below) -> Phrase:
    return numbers.words(_whole(below, 3)) if below(3) else numbers.digits(_whole(below, 5))


def _words(low: int, high: int, kind: str = "cardinal") -> Domain:
    return lambda below: numbers.words(low + below(high - low), kind)


def _price(below: Below) -> Phrase:
    cents = 50 + below(10 ** (3 + below(4)))
    return numbers.money(Decimal(cents) / 100, ("EUR", "EUR", "USD", "GBP")[below(4)])


def _tenths(below: Below, low: int, high: int) -> Decimal:
    """A number of tenths in [low, high), never exactly 1, which takes a verb in the singular."""
    tenths = low + below(high - low)
    return Decimal(11 if tenths == 10 else tenths) / 10


def _measure(unit: str, low: int, high: int) -> Domain:
    return lambda below: numbers.measure(_tenths(below, low, high), unit)


def _day(low: int, high: int, style: str = "long") -> Domain:
    return lambda below: numbers.date(low + below(high - low), 1 + below(12), 1 + below(28), style)


def _hour(low: int, high: int) -> Domain:
    return lambda below: numbers.clock(low + below(high - low), 5 * below(12))


def _year(below: Below) -> Phrase:
    year = 1800 + below(225)
    return Phrase(f"in {year}", f"im Jahr {year}")


def _persons(below: Below) -> Subject:
    noun = person(below)
    return grammar.the(noun) if below(3) else grammar.all_the(noun)


def _doing_to_things(below: Below, plain: bool) -> Event:
    if below(4):
        verb, noun, adjective = (
            handle(below),
            thing(below),
            any_adjective(below) if below(2) else None,
        )
    else:
        verb, noun, adjective = eat(below), food(below), None
    determiner = ("the", "a", "the", "a", "", "number")[below(5 if plain else 6)]
    if determiner == "number":
        return grammar.count(verb, _number(below), noun, adjective)
    return grammar.act(verb, determiner or owner(below), noun, adjective)


def _event(plain: bool) -> Domain:
    """Draw a subject's deed; a plain event counts nothing, so that it can be negated."""

    def event(below: Below) -> Event:
        kind = below(10)
        if kind < 4:
            return _doing_to_things(below, plain)
        if kind < 6:
            return grammar.act(meet(below), "the", person(below))
        if kind == 6:
            return grammar.serve(serve(below), person(below))
        if kind == 7:
            return grammar.journey(ride(below), city(below), vehicle(below))
        if kind == 8:
            return grammar.go(go(below), place(below))
        return grammar.stay(rest(below), place(below).at, manner(below) if below(2) else "")

    return event


def _gift(below: Below) -> Event:
    return grammar.give(
        give(below), person(below), thing(below), any_adjective(below) if below(2) else None
    )


name = any_of(sorted(lexicon.NAMES["f"] + lexicon.NAMES["m"]))
owner, relative = any_of(tuple(lexicon.OWNERS)), any_of(tuple(lexicon.KIN))
person, thing, food = any_of(lexicon.PERSONS), any_of(lexicon.THINGS), any_of(lexicon.FOODS)
any_adjective, place, city = (
    any_of(lexicon.ADJECTIVES),
    any_of(lexicon.PLACES),
    any_of(lexicon.CITIES),
)
handle, eat, meet, serve = (
    any_of(t) for t in (lexicon.HANDLE, lexicon.EAT, lexicon.MEET, lexicon.SERVE)
)
ride = any_of([lexicon.JOURNEY["travel"], lexicon.JOURNEY["return"]])
go, rest, give = any_of(lexicon.GO), any_of(lexicon.STAY), any_of(lexicon.GIVE)
vehicle, manner = any_of(tuple(lexicon.VEHICLES)), any_of(tuple(lexicon.MANNERS))
weekday, month, hour, some = (
    any_of(lexicon.DAYS),
    any_of(lexicon.MONTHS),
    _hour(0, 24),
    _words(2, 21),
)
period = any_of(tuple(lexicon.PERIODS))
periods = any_of(lexicon.PERIODS)
on_a_day, in_a_month = within("on {}", "am {}", weekday), within("in {}", "im {}", month)
at_an_hour = within("on {} at {}", "am {} um {} Uhr", weekday, hour)

DOMAINS: dict[str, Domain] = {
    "name": name, "owner": owner, "relative": relative, "person": person, "thing": thing,
    "place": place, "city": city,
    "who": mixed(
        any_of(grammar.PRONOUNS), any_of(grammar.PRONOUNS), lambda b: grammar.named(name(b)),
        lambda b: grammar.named(name(b)), lambda b: grammar.kin(owner(b), relative(b)),
        lambda b: grammar.kin(name(b), relative(b)), _persons, _persons,
    ),
    "deed": _event(plain=False), "plain": _event(plain=True), "gift": _gift,
    "handle": handle, "ride": ride, "travel": any_of(lexicon.JOURNEY), "rest": rest,
    "indoors": any_of([lexicon.STAY[en] for en in "work sleep wait sing laugh play".split()]),
    "vehicle": vehicle,
    "mind": any_of(lexicon.MIND), "intent": any_of(lexicon.INTEND), "state": any_of(lexicon.STATES),
    "how": any_of(grammar.MODALS),
    "may": any_of([grammar.MODALS[en] for en in ("can", "must", "should", "may")]),
    "joint": any_of(tuple(sentences.JOINTS)), "question": any_of(tuple(sentences.QUESTIONS)),
    "adjective": any_adjective, "color": any_of([lexicon.ADJECTIVES[en] for en in lexicon.COLORS]),
    "trait": any_of([a for en, a in lexicon.ADJECTIVES.items() if en not in lexicon.COLORS]),
    "today": mixed(
        any_of(lexicon.NOW), any_of(lexicon.NOW), within("every {}", "jeden {}", weekday), on_a_day,
        at_an_hour
    ),
    "then": mixed(
        any_of(lexicon.PAST), any_of(lexicon.PAST), within("{} {} ago", "vor {} {}", some, periods),
        _year,
        on_a_day, in_a_month, at_an_hour, within("on {}", "am {}", _day(1950, 2025)),
    ),
    "later": mixed(
        any_of(lexicon.SOON), any_of(lexicon.SOON), within("in {} {}", "in {} {}", some, periods),
        on_a_day, in_a_month, at_an_hour, within("on {}", "am {}", _day(2030, 2050)),
    ),
    "side": any_of(lexicon.SIDES), "job": any_of(tuple(lexicon.TRADES)), "period": period,
    "number": _number, "years": _words(2, 100), "minutes": lambda b: numbers.words(_whole(b, 3)),
    "amount": lambda b: 1 + b(999), "operator": any_of(tuple(facts.OPERATORS)),
    "large": lambda b: 100 + b(9900),
    "rank": lambda b: numbers.ordinal(2 + b(198)), "jubilee": lambda b: numbers.ordinal(2 + b(98)),
    "text": any_of(lexicon.TEXTS), "year_words": _words(1800, 2025, "year"),
    "show": any_of(lexicon.SHOWS), "carrier": any_of(lexicon.CARRIERS), "weekday": weekday,
    "month": month, "hour": hour,
    "morning": _hour(6, 12), "evening": _hour(16, 24), "day": _day(1920, 2030),
    "full_day": _day(1920, 2030, "full"),
    "price": _price, "worth": any_of({"cheaper": "billiger", "more expensive": "teurer"}),
    "way": _measure("length-kilometer", 100, 20000), "mass": _measure("mass-kilogram", 2, 400),
    "length": _measure("length-meter", 2, 100), "dimension": any_of(lexicon.DIMENSIONS),
    "heat": _measure("temperature-celsius", -250, 400),
    "share": lambda b: numbers.percent(_tenths(b, 1, 1000)),
    "rate": lambda b: numbers.percent(_tenths(b, 1, 300)),
    "index": any_of(lexicon.INDICES), "change": any_of(lexicon.CHANGES),
    "venue": any_of([lexicon.PLACES[en] for en in lexicon.OPENING]),
    "code": lambda b: f"0{100 + b(900)} {10000 + b(90000)}", "chamber": lambda b: 100 + b(900),
}  # fmt: skip


def templates_of(module, domains: dict[str, Domain]) -> Iterable[tuple[Callable, Parameters]]:
    """The public functions of a module with the domains of their parameters."""
    for template in vars(module).values():
        if (
            inspect.isfunction(template)
            and template.__module__ == module.__name__
            and template.__name__[0] != "_"
        ):
            yield (
                template,
                [
                    (each, domains[each.rstrip("0123456789")])
                    for each in inspect.signature(template).parameters
                ],
            )


TEMPLATES = tuple(pair for module in (sentences, facts) for pair in templates_of(module, DOMAINS))
