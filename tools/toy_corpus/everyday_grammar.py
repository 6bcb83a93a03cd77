"""Noun phrases and clauses of everyday sentences, in any tense, affirmed, denied or asked."""

from __future__ import annotations

import re
from typing import NamedTuple

from tools.toy_corpus.everyday_words import STATIVE
from tools.toy_corpus.grammar import (
    ER,
    PLURAL_WORDS,
    WILL,
    WIR,
    WORDS,
    Clause,
    Event,
    Subject,
    main,
    modal,
    past,
    present,
    sentence,
    spaced,
)
from tools.toy_corpus.lexicon import (
    ACCUSATIVE,
    DATIVE,
    NOMINATIVE,
    Adjective,
    Noun,
    Phrase,
    Verb,
    article_en,
    noun_phrase,
    plural_phrase,
)

NOTHING = Phrase("", "")
SAY, DENY, ASK = "say", "deny", "ask"


class Moment(NamedTuple):
    """A tense (present, progressive, past, future) with a time that goes with it, or none."""

    tense: str
    time: Phrase = NOTHING


class Thing(NamedTuple):
    """A noun phrase in the cases it is used in.

    `no` is the phrase under negation in nominative and accusative, or empty.
    """

    en: str
    nominative: str
    accusative: str
    dative: str
    no: tuple[str, str]
    person: int

    def subject(self) -> Subject:
        return Subject(self.en, self.nominative, self.person)


def one(word: str, noun: Noun, adjective: Adjective | None = None) -> Thing:
    """the dog, a big dog, my dog, this dog."""
    described = spaced(adjective.en if adjective else "", noun.en)
    cases = tuple(
        noun_phrase(WORDS[word], noun, case, adjective) for case in (NOMINATIVE, ACCUSATIVE, DATIVE)
    )
    if word == "a":
        no = tuple(noun_phrase("kein", noun, case, adjective) for case in (NOMINATIVE, ACCUSATIVE))
        return Thing(article_en(described), *cases, no, ER)
    return Thing(f"{word} {described}", *cases, (f"nicht {cases[0]}", f"{cases[1]} nicht"), ER)


def mass(noun: Noun) -> Thing:
    """water, which takes no article."""
    no = tuple(noun_phrase("kein", noun, case) for case in (NOMINATIVE, ACCUSATIVE))
    return Thing(noun.en, noun.de, noun.de, noun.de, no, ER)


def several(word: str | Phrase, noun: Noun, adjective: Adjective | None = None) -> Thing:
    """the dogs, these dogs, dogs, many dogs, two dogs; they are not used in the dative."""
    en, de = word if isinstance(word, Phrase) else (word, PLURAL_WORDS[word])
    german = plural_phrase(de, noun, adjective)
    no = (f"nicht {german}", f"{german} nicht")
    if isinstance(word, Phrase) or word == "many":
        no = ("", "")
    elif not word:
        no = (plural_phrase("keine", noun, adjective),) * 2
    return Thing(
        spaced(en, adjective.en if adjective else "", noun.plural_en), german, german, "", no, WIR
    )


def somebody(who: Subject, accusative: str, dative: str) -> Thing:
    """A person as one who is seen or helped."""
    return Thing(
        who.en, who.de, accusative, dative, (f"nicht {who.de}", f"{accusative} nicht"), who.person
    )


def affects(verb: Verb, thing: Thing) -> Event:
    """A verb with its direct object."""
    return Event(verb, thing.en, thing.accusative, thing.no[1])


def clause(who: Subject, deed: Event, moment: Moment, form: str = SAY) -> Clause:
    """Return a clause in any tense and form.

    "I read" could be both present and past: verbs like it stay in the present.
    """
    negated, ask = form == DENY and bool(deed.negated), form == ASK
    if moment.tense == "future":
        return modal(WILL, who, deed, moment.time, negated, ask)
    if moment.tense == "past" and deed.verb.en != deed.verb.past_en:
        return past(who, deed, moment.time, negated, ask)
    time = NOTHING if moment.tense == "past" else moment.time
    progressive = moment.tense == "progressive" and deed.verb.en not in STATIVE
    return present(who, deed, time, negated, ask, progressive)


def spoken(clause: Clause, form: str) -> tuple[str, str]:
    """The clause as a statement or as a question."""
    return sentence(clause.en, clause.first(), "?") if form == ASK else main(clause)


def often(verb: Verb, adverb: Phrase) -> Verb:
    """Put an English adverb before the verb, never sleeps; the German one is the clause's time."""
    en, en3, past_en = (f"{adverb.en} {form}" for form in (verb.en, verb.en3, verb.past_en))
    return verb._replace(en=en, en3=en3, past_en=past_en)


_CONTRACTIONS = (
    (r"\b(is|are|was|were|do|does|did|should|would) not\b", r"\1n't"),
    (r"\bcannot\b", "can't"),
    (r"\bwill not\b", "won't"),
    (r"^I am (?!not$)", "I'm "),
    (r"^(You|We|They) are ", r"\1're "),
    (r"^(He|She|It|That) is ", r"\1's "),
    (r"^(I|You|He|She|It|We|They) will ", r"\1'll "),
    (r"^(I|You|He|She|We|They) would ", r"\1'd "),
)


def contracted(english: str) -> str:
    """Return the spoken form of a sentence: it's late, I don't sleep."""
    for long, short in _CONTRACTIONS:
        english = re.sub(long, short, english)
    return english
