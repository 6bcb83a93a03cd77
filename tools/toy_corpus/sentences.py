"""Sentence templates without figures: word order, agreement and government.

Each public function here and in facts is a template: a pure function from words and quantities to
one pair. The name of a parameter, without a trailing digit, says from which of `draws.DOMAINS` it
is drawn. A template must have at least 10,000 sentences, or the small held-out splits repeat
themselves.
"""

from __future__ import annotations

from tools.toy_corpus.grammar import (
    ER,
    WILL,
    Clause,
    Event,
    Modal,
    Subject,
    act,
    journey,
    kin,
    main,
    modal,
    named,
    past,
    present,
    sentence,
    the,
    to_infinitive,
)
from tools.toy_corpus.lexicon import (
    ACCUSATIVE,
    DATIVE,
    KNOW,
    LAY,
    LIVE,
    NAMES,
    NOMINATIVE,
    PERIODS,
    TRADES,
    Adjective,
    Noun,
    Phrase,
    Place,
    Verb,
    article_en,
    determiner,
    noun_phrase,
)

Pair = tuple[str, str]
QUESTIONS = {"why": "warum", "when": "wann", "how often": "wie oft", "with whom": "mit wem"}
JOINTS = {" and ": " und ", ", but ": ", aber "}


def _fronted(time: Phrase, clause: Clause) -> Pair:
    return sentence(f"{time.en}, {clause.en}", f"{time.de} {clause.first()}")


def _she(name: str) -> Phrase:
    return Phrase("she", "sie") if name in NAMES["f"] else Phrase("he", "er")


# Main clauses: verb second, with what belongs to the verb at the end.
def habit(who: Subject, deed: Event, today: Phrase) -> Pair:
    return main(present(who, deed, today))


def habit_fronted(today: Phrase, who: Subject, deed: Event) -> Pair:
    return _fronted(today, present(who, deed))


def done(who: Subject, deed: Event, then: Phrase) -> Pair:
    return main(past(who, deed, then))


def done_fronted(then: Phrase, who: Subject, deed: Event) -> Pair:
    return _fronted(then, past(who, deed))


def future(who: Subject, deed: Event, later: Phrase) -> Pair:
    return main(modal(WILL, who, deed, later))


def future_fronted(later: Phrase, who: Subject, deed: Event) -> Pair:
    return _fronted(later, modal(WILL, who, deed))


def wish(how: Modal, who: Subject, deed: Event, later: Phrase) -> Pair:
    return main(modal(how, who, deed, later))


def habit_denied(who: Subject, plain: Event, today: Phrase) -> Pair:
    return main(present(who, plain, today, negated=True))


def done_denied(who: Subject, plain: Event, then: Phrase) -> Pair:
    return main(past(who, plain, then, negated=True))


def gave(who: Subject, gift: Event, then: Phrase) -> Pair:
    return main(past(who, gift, then))


def two_clauses(who: Subject, deed: Event, joint: str, who2: Subject, deed2: Event) -> Pair:
    first, second = past(who, deed), past(who2, deed2)
    return sentence(
        f"{first.en}{joint}{second.en}", f"{first.second()}{JOINTS[joint]}{second.second()}"
    )


# Questions: verb first, or second after the question word.
def habit_asked(who: Subject, deed: Event, today: Phrase) -> Pair:
    clause = present(who, deed, today, ask=True)
    return sentence(clause.en, clause.first(), "?")


def done_asked(who: Subject, deed: Event, then: Phrase) -> Pair:
    clause = past(who, deed, then, ask=True)
    return sentence(clause.en, clause.first(), "?")


def modal_asked(may: Modal, who: Subject, deed: Event, later: Phrase) -> Pair:
    clause = modal(may, who, deed, later, ask=True)
    return sentence(clause.en, clause.first(), "?")


def question_word(question: str, who: Subject, deed: Event) -> Pair:
    clause = past(who, deed, ask=True)
    return sentence(f"{question} {clause.en}", f"{QUESTIONS[question]} {clause.first()}", "?")


def who_did(deed: Event, then: Phrase) -> Pair:
    return main(past(Subject("who", "wer", ER), deed, then), "?")


# Subordinate clauses: verb last.
def because(who: Subject, deed: Event, who2: Subject, deed2: Event) -> Pair:
    effect, cause = past(who, deed), past(who2, deed2)
    return sentence(f"{effect.en} because {cause.en}", f"{effect.second()}, weil {cause.last()}")


def because_state(name: str, plain: Event, state: Phrase) -> Pair:
    effect, pronoun = past(named(name), plain, negated=True), _she(name)
    reason = Phrase(f"because {pronoun.en} was {state.en}", f"weil {pronoun.de} {state.de} war")
    return sentence(f"{effect.en} {reason.en}", f"{effect.second()}, {reason.de}")


def although(who: Subject, deed: Event, who2: Subject, deed2: Event) -> Pair:
    effect, obstacle = past(who2, deed2), past(who, deed)
    return sentence(
        f"although {obstacle.en}, {effect.en}", f"obwohl {obstacle.last()}, {effect.first()}"
    )


def report(who: Subject, mind: Verb, who2: Subject, deed: Event, then: Phrase) -> Pair:
    opinion, content = present(who, Event(mind, "that", "", "")), past(who2, deed, then)
    return sentence(f"{opinion.en} {content.en}", f"{opinion.second()}, dass {content.last()}")


def whether(who: Subject, who2: Subject, deed: Event, today: Phrase) -> Pair:
    doubt, content = (
        present(who, Event(KNOW, "whether", "", "nicht"), negated=True),
        present(who2, deed, today),
    )
    return sentence(f"{doubt.en} {content.en}", f"{doubt.second()}, ob {content.last()}")


def condition(who: Subject, deed: Event, who2: Subject, deed2: Event) -> Pair:
    given, effect = present(who, deed), modal(WILL, who2, deed2)
    return sentence(f"if {given.en}, {effect.en}", f"wenn {given.last()}, {effect.first()}")


def mood(name: str, state: Phrase, who: Subject, deed: Event) -> Pair:
    given = present(who, deed)
    return sentence(
        f"{name} is {state.en} when {given.en}", f"{name} ist {state.de}, wenn {given.last()}"
    )


def subject_relative(person: Noun, deed: Event, city: Phrase) -> Pair:
    clause = past(Subject("who", determiner("der", person.gender, NOMINATIVE), ER), deed)
    home = f"lives in {city.en}", f"wohnt in {city.de}"
    someone = the(person)
    return sentence(
        f"{someone.en} {clause.en} {home[0]}", f"{someone.de}, {clause.last()}, {home[1]}"
    )


def object_relative(
    thing: Noun, who: Subject, handle: Verb, then: Phrase, adjective: Adjective
) -> Pair:
    clause, item = past(who, Event(handle, "", "", ""), then), the(thing)
    relative = f"{determiner('der', thing.gender, ACCUSATIVE)} {clause.last()}"
    return sentence(
        f"{item.en} that {clause.en} is {adjective.en}",
        f"{item.de}, {relative}, ist {adjective.de}",
    )


def attempt(who: Subject, intent: Verb, deed: Event) -> Pair:
    main, aim = past(who, Event(intent, "", "", "")), to_infinitive(deed)
    return sentence(f"{main.en} {aim.en}", f"{main.second()}, {aim.de}")


def purpose(who: Subject, city: Phrase, vehicle: str, ride: Verb, deed: Event) -> Pair:
    main, aim = present(who, journey(ride, city, vehicle)), to_infinitive(deed)
    return sentence(f"{main.en} in order {aim.en}", f"{main.second()}, um {aim.de}")


# Comparison and place: agreement of adjectives, dative against accusative after the same
# preposition.
def comparative(
    color: Adjective, thing: Noun, trait: Adjective, color2: Adjective, thing2: Noun
) -> Pair:
    one, other = the(thing, color), the(thing2, color2)
    return sentence(
        f"{one.en} is {trait.more_en} than {other.en}", f"{one.de} ist {trait.more} als {other.de}"
    )


def not_equal(
    color: Adjective, thing: Noun, trait: Adjective, color2: Adjective, thing2: Noun
) -> Pair:
    one, other = the(thing, color), the(thing2, color2)
    return sentence(
        f"{one.en} is not as {trait.en} as {other.en}",
        f"{one.de} ist nicht so {trait.de} wie {other.de}",
    )


def older(name: str, years: Phrase, owner: str, relative: str) -> Pair:
    other = kin(owner, relative)
    return sentence(
        f"{name} is {years.en} years older than {other.en}",
        f"{name} ist {years.de} Jahre älter als {other.de}",
    )


def lies(
    adjective: Adjective, thing: Noun, side: Phrase, adjective2: Adjective, thing2: Noun
) -> Pair:
    one, other = the(thing, adjective), the(thing2, adjective2)
    where = f"{side.de} {noun_phrase('der', thing2, DATIVE, adjective2)}"
    return sentence(f"{one.en} lies {side.en} {other.en}", f"{one.de} liegt {where}")


def laid(who: Subject, thing: Noun, side: Phrase, adjective: Adjective, thing2: Noun) -> Pair:
    item, other = act(LAY, "the", thing), noun_phrase("der", thing2, ACCUSATIVE, adjective)
    en = f"{item.en} {side.en} the {adjective.en} {thing2.en}"
    return main(past(who, Event(LAY, en, f"{item.de} {side.de} {other}", "")))


def there_are(number: Phrase, adjective: Adjective, thing: Noun, place: Place) -> Pair:
    things = (
        f"{number.en} {adjective.en} {thing.plural_en}",
        f"{number.de} {adjective.stem}e {thing.plural}",
    )
    return sentence(f"there are {things[0]} {place.at.en}", f"es gibt {things[1]} {place.at.de}")


def trade(name: str, job: str, city: Phrase, years: Phrase) -> Pair:
    german = TRADES[job][name in NAMES["f"]]
    return sentence(
        f"{name} has worked as {article_en(job)} in {city.en} for {years.en} years",
        f"{name} arbeitet seit {years.de} Jahren als {german} in {city.de}",
    )


def lived(who: Subject, city: Phrase, years: Phrase, period: str) -> Pair:
    have = "has" if who.person == ER else "have"
    return sentence(
        f"{who.en} {have} lived in {city.en} for {years.en} {period}",
        f"{who.de} {LIVE.forms[who.person]} seit {years.de} {PERIODS[period]} in {city.de}",
    )
