"""Subjects, events and clauses of the built-in corpus, each language in its own word order.

A German clause keeps its five parts apart (subject, finite verb, middle field, tail, verb cluster),
so that one clause can stand verb second, verb first or verb last.
"""

from __future__ import annotations

from typing import NamedTuple

from tools.toy_corpus.lexicon import (
    ACCUSATIVE,
    DATIVE,
    KIN,
    MANNERS,
    NOMINATIVE,
    OWNERS,
    VEHICLES,
    Adjective,
    Noun,
    Phrase,
    Place,
    Verb,
    article_en,
    noun_phrase,
)

ICH, DU, ER, WIR = 0, 1, 2, 3


class Subject(NamedTuple):
    """`person` indexes the German verb forms: ich, du, er/sie/es, wir/sie."""

    en: str
    de: str
    person: int


class Event(NamedTuple):
    """A verb with its complements.

    `negated` are the German ones with kein or nicht ("" where the corpus has none).
    """

    verb: Verb
    en: str
    de: str
    negated: str


class Modal(NamedTuple):
    """A modal verb; `en3` goes with he and she (wants to), `forms` with ich, du, er, wir."""

    en: str
    en3: str
    forms: tuple[str, str, str, str]


class Clause(NamedTuple):
    """The parts of a clause.

    `tail` closes a main clause (prefix, participle, infinitive); `cluster` is the verb of a
    subordinate clause.
    """

    en: str
    subject: str
    finite: str
    middle: str
    tail: str
    cluster: str

    def second(self) -> str:
        """Verb second: Anna holt heute den Mantel ab."""
        return spaced(self.subject, self.finite, self.middle, self.tail)

    def first(self) -> str:
        """Verb first, as in a question or after a fronted part: holt Anna heute den Mantel ab."""
        return spaced(self.finite, self.subject, self.middle, self.tail)

    def last(self) -> str:
        """Verb last, as after dass: Anna heute den Mantel abholt."""
        return spaced(self.subject, self.middle, self.cluster)


PRONOUNS = {en: Subject(en, de, person) for en, de, person in (
    ("I", "ich", ICH), ("you", "du", DU), ("he", "er", ER), ("she", "sie", ER), ("we", "wir", WIR),
    ("they", "sie", WIR)
)}  # fmt: skip
MODALS = {
    "can": Modal("can", "can", ("kann", "kannst", "kann", "können")),
    "must": Modal("must", "must", ("muss", "musst", "muss", "müssen")),
    "should": Modal("should", "should", ("sollte", "solltest", "sollte", "sollten")),
    "may": Modal("may", "may", ("darf", "darfst", "darf", "dürfen")),
    "want to": Modal("want to", "wants to", ("will", "willst", "will", "wollen")),
    "would like to": Modal(
        "would like to", "would like to", ("möchte", "möchtest", "möchte", "möchten")
    ),
}
IT = Subject("it", "es", ER)
WILL = Modal("will", "will", ("werde", "wirst", "wird", "werden"))
HAVE = {"haben": ("habe", "hast", "hat", "haben"), "sein": ("bin", "bist", "ist", "sind")}
BE = (("am", "was"), ("are", "were"), ("is", "was"), ("are", "were"))
WAR = ("war", "warst", "war", "waren")
HATTE = ("hatte", "hattest", "hatte", "hatten")


WORDS = {"the": "der", "this": "dies", "a": "ein"} | OWNERS
PLURAL_WORDS = {"the": "die", "these": "diese", "many": "viele", "": ""} | {
    en: f"{de}e" for en, de in OWNERS.items()
}


def spaced(*parts: str) -> str:
    """The parts that are not empty, with a space between them."""
    return " ".join(part for part in parts if part)


def sentence(en: str, de: str, mark: str = ".") -> tuple[str, str]:
    """Both sides with a capital letter and the closing mark."""
    return f"{en[0].upper()}{en[1:]}{mark}", f"{de[0].upper()}{de[1:]}{mark}"


def main(clause: Clause, mark: str = ".") -> tuple[str, str]:
    """The clause as a sentence, verb second."""
    return sentence(clause.en, clause.second(), mark)


def named(name: str) -> Subject:
    """A person by name."""
    return Subject(name, name, ER)


def kin(owner: str, relative: str) -> Subject:
    """my brother; with a name as the owner, Anna's brother, Annas Bruder."""
    noun = KIN[relative]
    if owner in OWNERS:
        return Subject(f"{owner} {noun.en}", noun_phrase(OWNERS[owner], noun, NOMINATIVE), ER)
    return Subject(f"{owner}'s {noun.en}", f"{owner}s {noun.de}", ER)


def the(noun: Noun, adjective: Adjective | None = None) -> Subject:
    """the old coat, der alte Mantel."""
    return Subject(
        spaced("the", adjective.en if adjective else "", noun.en),
        noun_phrase("der", noun, NOMINATIVE, adjective),
        ER,
    )


def all_the(noun: Noun) -> Subject:
    """the children, die Kinder."""
    return Subject(f"the {noun.plural_en}", f"die {noun.plural}", WIR)


def act(
    verb: Verb,
    determiner: str,
    noun: Noun,
    adjective: Adjective | None = None,
    case: int = ACCUSATIVE,
) -> Event:
    """Return `verb` with one object in `case`.

    `determiner` is "a", "the", "this" or a possessive such as "my".
    """
    described = spaced(adjective.en if adjective else "", noun.en)
    if determiner == "a":
        positive, negative = (noun_phrase(word, noun, case, adjective) for word in ("ein", "kein"))
        return Event(verb, article_en(described), positive, negative)
    german = noun_phrase(WORDS[determiner], noun, case, adjective)
    return Event(verb, f"{determiner} {described}", german, f"{german} nicht")


def count(verb: Verb, number: Phrase, noun: Noun, adjective: Adjective | None = None) -> Event:
    """`verb` with a number of things: buys three red cups."""
    described = (adjective.en, f"{adjective.stem}e") if adjective else ("", "")
    en, de = (
        spaced(number.en, described[0], noun.plural_en),
        spaced(number.de, described[1], noun.plural),
    )
    return Event(verb, en, de, "")


def serve(verb: Verb, noun: Noun) -> Event:
    """A verb that governs the dative: helps the doctor, hilft dem Arzt."""
    return act(verb, "the", noun, case=DATIVE)


def journey(verb: Verb, city: Phrase, vehicle: str) -> Event:
    """Manner before place in German: to Vienna by train, mit dem Zug nach Wien."""
    manner = VEHICLES[vehicle] if vehicle else ""
    by = f"by {vehicle}" if vehicle else ""
    german = spaced(manner, f"nach {city.de}")
    return Event(verb, spaced(f"to {city.en}", by), german, f"nicht {german}")


def go(verb: Verb, place: Place) -> Event:
    """walks to the park, geht in den Park."""
    return Event(verb, place.to.en, place.to.de, f"nicht {place.to.de}")


def stay(verb: Verb, place: Phrase, manner: str = "") -> Event:
    """works alone in the library, arbeitet allein in der Bibliothek."""
    german = spaced(MANNERS[manner] if manner else "", place.de)
    return Event(verb, spaced(manner, place.en), german, f"nicht {german}")


def give(verb: Verb, person: Noun, thing: Noun, adjective: Adjective | None = None) -> Event:
    """Dative before accusative: gives the child a red cup, gibt dem Kind eine rote Tasse."""
    gift = act(verb, "a", thing, adjective)
    receiver = noun_phrase("der", person, DATIVE)
    return Event(
        verb, f"the {person.en} {gift.en}", f"{receiver} {gift.de}", f"{receiver} {gift.negated}"
    )


def _clause(
    en: str,
    who: Subject,
    forms: tuple,
    event: Event,
    time: Phrase | None,
    negated: bool,
    ends: tuple,
) -> Clause:
    when = time or Phrase("", "")
    finite, middle = forms[who.person], spaced(when.de, event.negated if negated else event.de)
    tail, cluster = ends
    return Clause(
        spaced(en, event.en, when.en), who.de, finite, middle, tail, cluster.format(finite)
    )


def present(
    who: Subject,
    event: Event,
    time: Phrase | None = None,
    negated: bool = False,
    ask: bool = False,
    progressive: bool = False,
) -> Clause:
    """Return a clause in the present tense; `ask` gives the English question with do.

    The English progressive has no German form.
    """
    verb, third = event.verb, who.person == ER
    if progressive:
        en = spaced(_asked_or_not(BE[who.person][0], who, negated, ask), verb.ing)
    elif ask or negated:
        en = spaced(_asked_or_not("does" if third else "do", who, negated, ask), verb.en)
    else:
        en = f"{who.en} {verb.en3 if third else verb.en}"
    return _clause(en, who, verb.forms, event, time, negated, (verb.prefix, verb.prefix + "{}"))


def past(
    who: Subject, event: Event, time: Phrase | None = None, negated: bool = False, ask: bool = False
) -> Clause:
    """The English past tense, the German perfect."""
    verb = event.verb
    en = (
        spaced(_asked_or_not("did", who, negated, ask), verb.en)
        if ask or negated
        else f"{who.en} {verb.past_en}"
    )
    ends = verb.participle, verb.participle + " {}"
    return _clause(en, who, HAVE[verb.auxiliary], event, time, negated, ends)


def modal(
    how: Modal,
    who: Subject,
    event: Event,
    time: Phrase | None = None,
    negated: bool = False,
    ask: bool = False,
) -> Clause:
    """Return a clause with a modal verb or the future (`WILL`) and an infinitive at the end.

    want to and have to ask and deny with do.
    """
    helper, _, rest = how.en.partition(" ")
    if helper in ("want", "have"):
        helper, rest = ("does" if who.person == ER else "do"), how.en
    if ask or negated:
        en = spaced(
            _asked_or_not(helper, who, negated, ask).replace("can not", "cannot"),
            rest,
            event.verb.en,
        )
    else:
        en = f"{who.en} {how.en3 if who.person == ER else how.en} {event.verb.en}"
    return _clause(
        en, who, how.forms, event, time, negated, (event.verb.full(), event.verb.full() + " {}")
    )


def copula(
    who: Subject,
    what: Phrase,
    tense: str = "present",
    time: Phrase | None = None,
    negated: bool = False,
    ask: bool = False,
    denied: str = "",
) -> Clause:
    """Return a clause with be, sein.

    `tense` is present, past or future, `denied` the German for not `what` where it has kein.
    """
    helper = "will" if tense == "future" else BE[who.person][tense == "past"]
    be, sein = ("be", "sein") if tense == "future" else ("", "")
    en = spaced(_asked_or_not(helper, who, negated, ask), be)
    forms = {"present": HAVE["sein"], "past": WAR, "future": WILL.forms}[tense]
    event = Event(None, what.en, what.de, denied or f"nicht {what.de}")
    return _clause(en, who, forms, event, time, negated, (sein, spaced(sein, "{}")))


def _asked_or_not(helper: str, who: Subject, negated: bool, ask: bool) -> str:
    """Put the English helper verb before its subject (does he) or after it (he does not)."""
    return f"{helper} {who.en}" if ask else f"{who.en} {helper}{' not' if negated else ''}"


def to_infinitive(event: Event) -> Phrase:
    """to give back the book, das Buch zurückzugeben."""
    return Phrase(spaced("to", event.verb.en, event.en), spaced(event.de, event.verb.full(zu=True)))
