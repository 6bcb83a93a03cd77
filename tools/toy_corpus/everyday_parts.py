"""The parts of everyday sentences as they are drawn: persons, things, deeds, places and times."""

from __future__ import annotations

from decimal import Decimal

from tools.toy_corpus import everyday_words as everyday
from tools.toy_corpus import grammar, lexicon, numbers
from tools.toy_corpus.draws import Below, Domain, any_of, hour, mixed, name, within
from tools.toy_corpus.everyday_grammar import (
    NOTHING,
    Moment,
    Thing,
    affects,
    mass,
    one,
    several,
    somebody,
)
from tools.toy_corpus.grammar import IT, PRONOUNS, WIR, Event, Subject
from tools.toy_corpus.lexicon import DATIVE, Noun, Phrase, noun_phrase

owner = any_of(tuple(lexicon.OWNERS))
pronoun = any_of([PRONOUNS[en] for en in "I I I you you he she we they".split()])
person, animal_noun, relative = (
    any_of(everyday.PERSONS),
    any_of(everyday.ANIMALS),
    any_of(lexicon.KIN),
)
city, weekday = any_of(lexicon.CITIES), any_of(lexicon.DAYS)
place = any_of([place for place in lexicon.PLACES.values()])
trait, character = any_of(everyday.QUALITIES), any_of(everyday.CHARACTER)
few = mixed(lambda b: numbers.words(2 + b(11)), lambda b: Phrase(*[str(2 + b(40))] * 2))


def share(**weights: int) -> Domain:
    """One of the keywords, by weight."""
    return any_of([key for key, weight in weights.items() for _ in range(weight)])


def predicative(adjectives: dict) -> Domain:
    return any_of([Phrase(each.en, each.de) for each in adjectives.values()])


# Persons
def one_person(below: Below) -> Subject:
    word = ("the", "the", "the", "a", "this", owner(below))[below(6)]
    described = character(below) if below(5) == 0 else None
    return one(word, person(below), described).subject()


def several_persons(below: Below) -> Subject:
    return several(("the", "the", "these", owner(below))[below(4)], person(below)).subject()


def two_persons(below: Below) -> Subject:
    first, second = name(below), name(below)
    if first == second or below(4) == 0:
        other = kin(below)
        return Subject(f"{first} and {other.en}", f"{first} und {other.de}", WIR)
    return Subject(f"{first} and {second}", f"{first} und {second}", WIR)


def parents(below: Below) -> Subject:
    word = owner(below)
    return Subject(f"{word} parents", f"{lexicon.OWNERS[word]}e Eltern", WIR)


def named_person(below: Below) -> Subject:
    return grammar.named(name(below))


def kin(below: Below) -> Subject:
    return grammar.kin(owner(below), relative(below).en)


def animal(below: Below) -> Thing:
    word = ("the", "the", "the", owner(below), "a", "this", "several")[below(7)]
    if word == "several":
        return several(("the", owner(below), "these", "")[below(4)], animal_noun(below))
    return one(word, animal_noun(below), character(below) if below(5) == 0 else None)


who = mixed(
    *[pronoun] * 8,
    *[named_person] * 3,
    *[kin] * 3,
    *[one_person] * 3,
    *[several_persons] * 2,
    parents,
    two_persons,
)


def human(below: Below) -> Thing:
    kind = below(8)
    if kind < 4:
        subject = (*PRONOUNS.values(), IT)[below(7)]
        return somebody(subject, *everyday.OBJECTS[subject.en][1:])
    if kind == 4:
        subject = named_person(below)
        return somebody(subject, subject.de, subject.de)
    if kind == 5:
        return one(owner(below), relative(below))
    return one(("the", "the", "this", owner(below))[below(4)], person(below))


def companion(below: Below) -> Thing:
    """Draw a person whose health one asks about: he, Anna, my brother."""
    whom = human(below)
    return whom if whom.en != "it" else one("my", relative(below))


def worker(below: Below) -> tuple[Subject, int]:
    kind = below(8)
    if kind < 4:
        return PRONOUNS[("I", "you", "he", "she")[kind]], int(kind == 3)
    if kind < 6:
        someone = name(below)
        return grammar.named(someone), int(someone in lexicon.NAMES["f"])
    word = relative(below)
    return grammar.kin(owner(below), word.en), int(word.gender == "f")


# Things
thing_noun = mixed(
    *[any_of(everyday.SURROUNDINGS)] * 4,
    *[any_of(lexicon.THINGS)] * 4,
    any_of(lexicon.FOODS),
    animal_noun,
)
handy = mixed(*[any_of(lexicon.THINGS)] * 6, any_of(everyday.SURROUNDINGS), animal_noun)
mass_noun = any_of(everyday.DRINKS | everyday.FARE)


def item(below: Below) -> Thing:
    """Draw the subject of a statement."""
    kind = below(20)
    if kind < 2:
        return one("the", any_of(everyday.UNIQUE)(below))
    if kind == 2:
        return one(("the", "this", owner(below))[below(3)], mass_noun(below))
    adjective = trait(below) if below(5) == 0 else None
    if kind < 16:
        word = ("the", "the", "the", "the", "this", owner(below))[below(6)]
        return one(word, thing_noun(below), adjective)
    return several(("the", "the", "these", owner(below))[below(4)], thing_noun(below), adjective)


def whatever(below: Below) -> Subject:
    return (who, lambda b: item(b).subject(), lambda b: animal(b).subject())[
        (0, 1, 1, 2)[below(4)]
    ](below)


def object_of(noun: Noun, below: Below) -> Thing:
    adjective = trait(below) if below(5) == 0 else None
    word = ("the", "the", "the", "a", "a", "a", "a", owner(below), "this", "", "", "the", "few")[
        below(13)
    ]
    if word == "":
        return several(("", "", "", "these", owner(below), "many")[below(6)], noun, adjective)
    if word == "few":
        return several(few(below), noun, adjective)
    return one(word, noun, adjective)


def stuff(below: Below, nouns: Domain) -> Thing:
    noun = nouns(below)
    return mass(noun) if below(5) else one(("the", owner(below))[below(2)], noun)


def deal(below: Below) -> Event:
    """A verb with a thing that suits it."""
    kind = below(20)
    if kind < 9:
        return affects(any_of(everyday.USE)(below), object_of(handy(below), below))
    if kind < 12:
        return affects(any_of(everyday.EAT)(below), object_of(any_of(lexicon.FOODS)(below), below))
    if kind == 12:
        return affects(any_of(everyday.EAT)(below), stuff(below, any_of(everyday.FARE)))
    if kind < 16:
        return affects(any_of(everyday.DRINK)(below), stuff(below, any_of(everyday.DRINKS)))
    verbs, nouns = (
        (everyday.READ, everyday.READABLE),
        (everyday.WEAR, everyday.CLOTHES),
        (everyday.OPEN, everyday.OPENED),
    )[below(3)]
    return affects(any_of(verbs)(below), object_of(any_of(nouns)(below), below))


def hobby(below: Below) -> Event:
    pastime = any_of(tuple(everyday.HOBBIES))(below)
    verb, german, denied = everyday.HOBBIES[pastime]
    verbs = {"play": everyday.DO["play"], "speak": everyday.SPEAK, "hear": everyday.MEET["hear"]}
    return Event(verbs[verb], pastime, german, denied)


def simple(below: Below) -> Event:
    kind = below(10)
    if kind == 0:
        return hobby(below)
    if kind < 3:
        verb = any_of(lexicon.STAY)(below)
        return grammar.stay(verb, place(below).at)
    return Event(any_of(everyday.DO)(below), "", "", "nicht")


def instinct(below: Below) -> Event:
    verb = everyday.DO[any_of(everyday.OF_ANIMALS)(below)]
    if verb.auxiliary == "haben" and below(3) == 0:
        return grammar.stay(verb, place(below).at)
    return Event(verb, "", "", "nicht")


def motion(below: Below) -> Event:
    kind = below(6)
    if kind < 2:
        verb = (everyday.GO_BY, everyday.GO_BY, everyday.DO["travel"], lexicon.JOURNEY["fly"])[
            below(4)
        ]
        return grammar.journey(verb, city(below), "")
    verb = everyday.DO["go"] if below(2) else any_of(lexicon.GO)(below)
    if kind == 2:
        goal = any_of(everyday.GOALS)(below)
        verb = verb if goal.en == "home" else everyday.DO["go"]
        return Event(verb, goal.en, goal.de, f"nicht {goal.de}")
    return grammar.go(verb, place(below))


def home(below: Below) -> Event:
    kind, town = below(5), city(below)
    if kind == 0:
        return Event(
            everyday.DO["come"], f"from {town.en}", f"aus {town.de}", f"nicht aus {town.de}"
        )
    if kind == 1:
        return grammar.stay(lexicon.LIVE, any_of(everyday.HERE)(below))
    in_town = Phrase(f"in {town.en}", f"in {town.de}")
    return grammar.stay(lexicon.LIVE if below(4) else everyday.DO["work"], in_town)


def pastime(below: Below) -> Event:
    kind = below(3)
    if kind == 0:
        return hobby(below)
    if kind == 1:
        return Event(any_of(everyday.DO)(below), "", "", "nicht")
    verb, nouns = (("eat", lexicon.FOODS), ("drink", everyday.DRINKS), ("eat", everyday.FARE))[
        below(3)
    ]
    noun = any_of(nouns)(below)
    food = several("", noun) if nouns is lexicon.FOODS else mass(noun)
    return affects(everyday.DO[verb], food)


def order(below: Below) -> Event:
    while True:
        event = (deal, simple)[below(2)](below)
        if event.verb.en in everyday.COMMANDS and event.negated and not event.verb.prefix:
            return event


_SIBLINGS = [lexicon.KIN[en] for en in ("brother", "sister", "son", "daughter")] + [
    everyday.PERSONS[en] for en in ("child", "friend")
]


def possession(below: Below) -> Thing:
    kind = below(8)
    if kind == 0:
        return mass(mass_noun(below))
    if kind == 1:
        return one("a", relative(below))
    if kind == 2:
        if below(2):
            return several(numbers.words(2 + below(4)), any_of(_SIBLINGS)(below))
        return several(few(below), mixed(animal_noun, handy)(below))
    return object_of(mixed(handy, handy, thing_noun)(below), below)


def entity(below: Below) -> Thing:
    kind, noun = below(6), mixed(thing_noun, thing_noun, animal_noun, person)(below)
    if kind == 0:
        return mass(mass_noun(below))
    if kind == 1:
        return several(("", "many")[below(2)] if below(2) else few(below), noun)
    return one("a", noun, trait(below) if below(5) == 0 else None)


def identity(below: Below) -> Thing:
    kind, noun = below(8), mixed(thing_noun, thing_noun, animal_noun, person, relative)(below)
    if kind == 0:
        return several(("", owner(below))[below(2)], noun)
    word = ("a", "a", "a", "a", "the", owner(below), owner(below))[kind - 1]
    return one(word, noun, trait(below) if below(5) == 0 else None)


# Where and when
def where(below: Below) -> Phrase:
    side, (en, de, nouns) = below(4), ("on", "auf", everyday.SURFACES)
    if side == 0:
        en, de, nouns = "in", "in", everyday.CONTAINERS
    elif side > 1:
        (en, de), nouns = any_of(lexicon.SIDES)(below), everyday.LANDMARKS
        nouns = everyday.SURFACES if en == "on" else nouns
    noun = any_of(nouns)(below)
    return Phrase(
        f"{en} the {noun.en}", f"{de} {noun_phrase('der', noun, DATIVE)}".replace("in dem ", "im ")
    )


def piece(below: Below) -> Thing:
    """A thing that has a place and a price."""
    if below(4) == 0:
        return several(("the", "the", "these", owner(below))[below(4)], handy(below))
    word = ("the", "the", "the", "the", "this", owner(below))[below(6)]
    return one(word, handy(below), trait(below) if below(5) == 0 else None)


def whither(below: Below) -> Phrase:
    """Draw a phrase after an object: in the garden, for my mother."""
    if below(2):
        return place(below).at
    whom = human(below)
    en = everyday.OBJECTS[whom.en][0] if whom.en in everyday.OBJECTS else whom.en
    return Phrase(f"for {en}", f"für {whom.accusative}")


at_a_place = any_of([place.at for place in lexicon.PLACES.values()])
in_a_city = within("in {}", "in {}", city)
spot = mixed(any_of(everyday.SPOTS), at_a_place, at_a_place, in_a_city)
NOW = [Phrase(en, de) for en, de in (everyday.TODAY | lexicon.NOW).items()]
today, then, later = any_of(NOW), any_of(lexicon.PAST), any_of(lexicon.SOON)
at_hour = within("at {}", "um {} Uhr", hour)


def o_clock(below: Below) -> Phrase:
    number = 1 + below(12)
    return Phrase("one", "ein") if number == 1 else numbers.words(number)


def half_past(below: Below) -> Phrase:
    number = 1 + below(12)
    return Phrase(numbers.words(number).en, numbers.words(number % 12 + 1).de)


def being(below: Below) -> Moment:
    kind = below(20)
    if kind < 11:
        return Moment("present")
    if kind < 14:
        return Moment("present", today(below) if kind == 11 else any_of(everyday.TODAY)(below))
    if kind < 18:
        return Moment("past", NOTHING if kind < 16 else then(below))
    return Moment("future", NOTHING if kind == 18 else later(below))


def moment(below: Below) -> Moment:
    kind = below(20)
    if kind < 8:
        return Moment("present")
    if kind < 12:
        return Moment(
            "progressive",
            NOTHING if kind < 11 else mixed(any_of(everyday.TODAY), any_of(everyday.HERE))(below),
        )
    if kind < 14:
        return Moment("present", today(below) if kind == 12 else any_of(everyday.HERE)(below))
    if kind < 18:
        return Moment("past", NOTHING if kind < 16 else then(below))
    return Moment("future", NOTHING if kind == 18 else later(below))


def carrier(below: Below) -> tuple[Phrase, lexicon.Verb]:
    kind = below(4)
    if kind < 2:
        noun, town = any_of(lexicon.CARRIERS)(below), city(below)
        carrier = grammar.the(noun)
        verb = (everyday.LEAVE, everyday.DO["arrive"])[kind]
        to, nach = (
            (f" to {town.en}", f" nach {town.de}"),
            (f" from {town.en}", f" aus {town.de}"),
        )[kind]
        return (
            Phrase(carrier.en, carrier.de)
            if below(3)
            else Phrase(carrier.en + to, carrier.de + nach)
        ), verb
    if kind == 2:
        venue = grammar.the(lexicon.PLACES[any_of(lexicon.OPENING)(below)].noun)
        return Phrase(venue.en, venue.de), any_of(everyday.OPEN)(below)
    show = grammar.the(any_of(lexicon.SHOWS)(below))
    return Phrase(show.en, show.de), everyday.START


def time_of_day(below: Below) -> Phrase:
    kind = below(10)
    if kind < 4:
        return within("it is {}", "es ist {} Uhr", hour)(below)
    if kind < 6:
        return within("it is {} o'clock", "es ist {} Uhr", o_clock)(below)
    if kind == 6:
        return within("it is half past {}", "es ist halb {}", half_past)(below)
    if kind == 7:
        return within(
            "it is {}", "es ist {}", any_of(lexicon.MONTHS | everyday.SEASONS | lexicon.DAYS)
        )(below)
    days = {
        "it is": "es ist",
        "today is": "heute ist",
        "tomorrow is": "morgen ist",
        "yesterday was": "gestern war",
    }
    return within("{} {}", "{} {}", any_of(days), weekday)(below)


def called(below: Below) -> tuple[Phrase, str]:
    someone = name(below)
    if below(2):
        third = ("her", "sie heißt") if someone in lexicon.NAMES["f"] else ("his", "er heißt")
        return Phrase(*(("my", "ich heiße"), ("your", "du heißt"), third)[below(3)]), someone
    gender = "f" if someone in lexicon.NAMES["f"] else "m"
    kin = grammar.kin(
        owner(below),
        any_of([noun.en for noun in lexicon.KIN.values() if noun.gender == gender])(below),
    )
    return Phrase(f"{kin.en}'s", f"{kin.de} heißt"), someone


def euros(below: Below) -> Phrase:
    amount = few(below) if below(2) else Phrase(*[str(5 + 5 * below(60))] * 2)
    if below(3) == 0:
        return numbers.money(Decimal(50 + below(10000)) / 100)
    return Phrase(f"{amount.en} euros", f"{amount.de} Euro")
