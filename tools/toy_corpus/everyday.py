"""Short everyday sentences of the built-in corpus: the first that somebody types to try a model.

Each public function is a template as in sentences; `everyday_draws` has the domains of its
parameters and its weight. One template makes the statement, its denial and its question, in several
tenses.
"""

from __future__ import annotations

from tools.toy_corpus import grammar
from tools.toy_corpus.everyday_grammar import (
    ASK,
    DENY,
    NOTHING,
    SAY,
    Moment,
    Thing,
    affects,
    clause,
    often,
    somebody,
    spoken,
)
from tools.toy_corpus.everyday_words import COMMANDS, HAVE, HERE, OBJECTS
from tools.toy_corpus.grammar import (
    BE,
    ER,
    HATTE,
    PRONOUNS,
    WIR,
    Clause,
    Event,
    Modal,
    Subject,
    copula,
    main,
    modal,
    past,
    present,
    sentence,
    spaced,
)
from tools.toy_corpus.lexicon import DATIVE, Adjective, Phrase, Verb, article_en

Pair = tuple[str, str]
SEIN = grammar.HAVE["sein"]


def _other(who: Subject, human: Thing) -> Thing:
    """`human`, unless it shares a person with the subject: I see us, we see me."""
    return (
        somebody(PRONOUNS["they"], "sie", "ihnen") if {who.en, human.en} == {"I", "we"} else human
    )


def _object(human: Thing) -> str:
    return OBJECTS[human.en][0] if human.en in OBJECTS else human.en


def _be(who: Subject, what: Phrase, moment: Moment, form: str, denied: str = "") -> Pair:
    return spoken(
        copula(who, what, moment.tense, moment.time, form == DENY, form == ASK, denied), form
    )


def _question(word: Phrase, asked: Clause) -> Pair:
    return sentence(f"{word.en} {asked.en}", f"{word.de} {asked.first()}", "?")


# be: what somebody or something is like, where and who they are.
def is_so(who: Subject, quality: Phrase, being: Moment, form: str) -> Pair:
    return _be(who, quality, being, form)


def it_is(it: Subject, situation: Phrase, being: Moment, form: str) -> Pair:
    return _be(it, situation, being, form)


def thing_is(item: Thing, trait: Phrase, being: Moment, form: str) -> Pair:
    return _be(item.subject(), trait, being, form)


def is_often(who: Subject, adverb: Phrase, quality: Phrase, inquiry: str) -> Pair:
    complement = Phrase(f"{adverb.en} {quality.en}", quality.de)
    return spoken(copula(who, complement, time=Phrase("", adverb.de), ask=inquiry == ASK), inquiry)


def is_both(who: Subject, quality: Phrase, joint: Phrase, quality2: Phrase) -> Pair:
    both = Phrase(f"{quality.en}{joint.en}{quality2.en}", f"{quality.de}{joint.de}{quality2.de}")
    return _be(who, both, Moment("present"), SAY)


def is_there(who: Subject, spot: Phrase, being: Moment, form: str) -> Pair:
    return _be(who, spot, being, form)


def lies_there(piece: Thing, where: Phrase, form: str) -> Pair:
    return _be(piece.subject(), where, Moment("present"), form)


def where_is(whatever: Subject, being: Moment) -> Pair:
    return _question(
        Phrase("where", "wo"), copula(whatever, NOTHING, being.tense, being.time, ask=True)
    )


def how_is(measure: Phrase, whatever: Subject) -> Pair:
    be, ist = BE[whatever.person][0], SEIN[whatever.person]
    return sentence(
        f"how {measure.en} {be} {whatever.en}", f"wie {measure.de} {ist} {whatever.de}", "?"
    )


def how_goes_it(companion: Thing) -> Pair:
    return sentence(
        f"how {BE[companion.person][0]} {companion.en}", f"wie geht es {companion.dative}", "?"
    )


def why_is(who: Subject, quality: Phrase) -> Pair:
    return _question(Phrase("why", "warum"), copula(who, quality, ask=True))


def who_is(quality: Phrase, being: Moment) -> Pair:
    return main(copula(Subject("who", "wer", ER), quality, being.tense, being.time), "?")


def has_trade(worker: tuple[Subject, int], trade: tuple[str, tuple[str, str]], form: str) -> Pair:
    (who, woman), (en, german) = worker, trade
    no = f"kein{'e' if woman else ''} {german[woman]}"
    return _be(who, Phrase(article_en(en), german[woman]), Moment("present"), form, no)


def this_is(this: str, identity: Thing, form: str) -> Pair:
    plural = identity.person == WIR
    en = {"this": "these", "that": "those", "it": "they"}[this] if plural else this
    german = {"it": "es", "they": "sie"}.get(en, "das")
    what = Phrase(identity.en, identity.nominative)
    return _be(Subject(en, german, identity.person), what, Moment("present"), form, identity.no[0])


def compared(whatever: Subject, kind: Adjective, whatever2: Subject, inquiry: str) -> Pair:
    what = Phrase(f"{kind.more_en} than {whatever2.en}", f"{kind.more} als {whatever2.de}")
    return _be(whatever, what, Moment("present"), inquiry)


def as_so_as(whatever: Subject, kind: Adjective, whatever2: Subject, form: str) -> Pair:
    same = Phrase(f"as {kind.en} as {whatever2.en}", f"so {kind.de} wie {whatever2.de}")
    return _be(whatever, same, Moment("present"), form)


def aged(who: Subject, years: Phrase) -> Pair:
    return _be(
        who, Phrase(f"{years.en} years old", f"{years.de} Jahre alt"), Moment("present"), SAY
    )


# have, there is
def having(who: Subject, possession: Thing, form: str) -> Pair:
    return spoken(
        present(
            who,
            affects(HAVE, possession),
            None,
            form == DENY and bool(possession.no[1]),
            form == ASK,
        ),
        form,
    )


def had(who: Subject, possession: Thing, then: Phrase, inquiry: str) -> Pair:
    hatte = past(who, affects(HAVE, possession), then, ask=inquiry == ASK)
    return spoken(hatte._replace(finite=HATTE[who.person], tail=""), inquiry)


def there_is(entity: Thing, inside: Phrase, form: str) -> Pair:
    be, what, no = BE[entity.person][0], entity.en, entity.no[1]
    if form == ASK:
        return sentence(
            spaced(be, "there", what, inside.en),
            spaced("gibt es", inside.de, entity.accusative),
            "?",
        )
    negated = form == DENY and no.startswith("kein")
    if negated:
        what = f"no {what.removeprefix('a ').removeprefix('an ')}"
    german = no if negated else entity.accusative
    order = (inside.de, german) if inside.en in HERE else (german, inside.de)
    return sentence(spaced("there", be, what, inside.en), spaced("es gibt", *order))


# Verbs: what somebody does.
def does(who: Subject, simple: Event, moment: Moment, form: str) -> Pair:
    return spoken(clause(who, simple, moment, form), form)


def animal_does(animal: Thing, instinct: Event, moment: Moment, form: str) -> Pair:
    return spoken(clause(animal.subject(), instinct, moment, form), form)


def acts(who: Subject, deal: Event, moment: Moment, form: str) -> Pair:
    return spoken(clause(who, deal, moment, form), form)


def acts_there(who: Subject, deal: Event, whither: Phrase, moment: Moment, inquiry: str) -> Pair:
    deed = Event(deal.verb, spaced(deal.en, whither.en), spaced(deal.de, whither.de), "")
    return spoken(clause(who, deed, moment, inquiry), inquiry)


def meets(who: Subject, bond: tuple[Verb, int], human: Thing, moment: Moment, form: str) -> Pair:
    verb, case = bond
    human = _other(who, human)
    en, german = _object(human), human.dative if case == DATIVE else human.accusative
    if human.en not in OBJECTS:
        return spoken(clause(who, Event(verb, en, german, f"{german} nicht"), moment, form), form)
    when = moment.time
    deed = Event(
        verb, spaced(en, when.en), spaced(german, when.de), spaced(german, when.de, "nicht")
    )
    return spoken(clause(who, deed, Moment(moment.tense), form), form)


def does_often(who: Subject, frequency: Phrase, ordinary: Event, inquiry: str) -> Pair:
    deed = ordinary._replace(verb=often(ordinary.verb, frequency))
    return spoken(present(who, deed, Phrase("", frequency.de), ask=inquiry == ASK), inquiry)


def likes_to(who: Subject, pastime: Event, form: str) -> Pair:
    verb = pastime.verb._replace(en=f"like to {pastime.verb.en}", en3=f"likes to {pastime.verb.en}")
    deed = Event(verb, pastime.en, spaced("gern", pastime.de), spaced("nicht gern", pastime.de))
    return spoken(present(who, deed, None, form == DENY, form == ASK), form)


def could(who: Subject, ability: Modal, ordinary: Event, form: str) -> Pair:
    negated = form == DENY and bool(ordinary.negated) and ability.en != "must"
    return spoken(modal(ability, who, ordinary, None, negated, form == ASK), form)


def would_like(who: Subject, possession: Thing) -> Pair:
    moechte = ("möchte", "möchtest", "möchte", "möchten")[who.person]
    return sentence(
        f"{who.en} would like {possession.en}", f"{who.de} {moechte} {possession.accusative}"
    )


def goes_to(who: Subject, motion: Event, moment: Moment, form: str) -> Pair:
    return spoken(clause(who, motion, moment, form), form)


def does_both(who: Subject, act: Verb, act2: Verb) -> Pair:
    one, two = (present(who, Event(verb, "", "", "")) for verb in (act, act2))
    second = two.second().removeprefix(f"{who.de} ")
    return sentence(
        f"{one.en} and {two.en.removeprefix(f'{who.en} ')}", f"{one.second()} und {second}"
    )


def together(who: Subject, with_act: Verb, human: Thing, moment: Moment) -> Pair:
    human = _other(who, human)
    return main(
        clause(who, Event(with_act, f"with {_object(human)}", f"mit {human.dative}", ""), moment)
    )


def gives(who: Subject, grant: Verb, human: Thing, gift: Thing, moment: Moment) -> Pair:
    human = _other(who, human)
    deed = Event(grant, f"{_object(human)} {gift.en}", f"{human.dative} {gift.accusative}", "")
    return main(clause(who, deed, Moment(moment.tense)))


def command(order: Event, polite: str) -> Pair:
    verb = order.verb
    negated = polite == DENY
    german = spaced(COMMANDS[verb.en], order.negated if negated else order.de)
    if negated:
        return sentence(spaced("do not", verb.en, order.en), german)
    if polite == ASK:
        return sentence(spaced("please", verb.en, order.en), f"bitte {german}")
    return sentence(spaced(verb.en, order.en), german)


# Question words.
def asks(wh: Phrase, who: Subject, ordinary: Event, moment: Moment) -> Pair:
    if wh.en == "where" and ordinary.verb.auxiliary == "sein":  # a verb of motion asks wohin
        wh = Phrase("when", "wann")
    return _question(wh, clause(who, ordinary, moment, ASK))


def what_does(who: Subject, transitive: Verb, moment: Moment) -> Pair:
    return _question(Phrase("what", "was"), clause(who, Event(transitive, "", "", ""), moment, ASK))


def who_does(ordinary: Event, moment: Moment) -> Pair:
    return main(clause(Subject("who", "wer", ER), ordinary, moment), "?")


def how_much(piece: Thing) -> Pair:
    do, cost = ("do", "kosten") if piece.person == WIR else ("does", "kostet")
    return sentence(f"how much {do} {piece.en} cost", f"wie viel {cost} {piece.nominative}", "?")


def what_color(piece: Thing) -> Pair:
    be, have = ("are", "haben") if piece.person == WIR else ("is", "hat")
    return sentence(f"what color {be} {piece.en}", f"welche Farbe {have} {piece.nominative}", "?")


# Two clauses.
def thinks_that(who: Subject, mind: Verb, it: Subject, situation: Phrase) -> Pair:
    opinion, content = present(who, Event(mind, "that", "", "")), copula(it, situation)
    return sentence(f"{opinion.en} {content.en}", f"{opinion.second()}, dass {content.last()}")


def does_because(pronoun: Subject, act: Verb, quality: Phrase, form: str) -> Pair:
    effect, reason = (
        present(pronoun, Event(act, "", "", "nicht"), negated=form == DENY),
        copula(pronoun, quality),
    )
    return sentence(f"{effect.en} because {reason.en}", f"{effect.second()}, weil {reason.last()}")


def fixed(phrase: Phrase) -> Pair:
    return phrase.en, phrase.de


# Names, homes, times, prices.
def is_called(called: tuple[Phrase, str]) -> Pair:
    whose, name = called
    return sentence(f"{whose.en} name is {name}", f"{whose.de} {name}")


def lives_in(who: Subject, home: Event, form: str) -> Pair:
    return spoken(present(who, home, None, form == DENY, form == ASK), form)


def greets(greeting: Phrase, name: str, mark: str) -> Pair:
    return sentence(f"{greeting.en}, {name}", f"{greeting.de}, {name}", mark)


def it_is_time(time_of_day: Phrase) -> Pair:
    return sentence(time_of_day.en, time_of_day.de)


def scheduled(carrier: tuple[Phrase, Verb], at: Phrase, form: str) -> Pair:
    what, verb = carrier
    deed = Event(verb, at.en, at.de, f"nicht {at.de}")
    return spoken(present(Subject(*what, ER), deed, None, form == DENY, form == ASK), form)


def when_scheduled(carrier: tuple[Phrase, Verb]) -> Pair:
    what, verb = carrier
    return _question(
        Phrase("when", "wann"), present(Subject(*what, ER), Event(verb, "", "", ""), ask=True)
    )


def price_is(piece: Thing, euros: Phrase) -> Pair:
    cost, kosten = ("cost", "kosten") if piece.person == WIR else ("costs", "kostet")
    return sentence(f"{piece.en} {cost} {euros.en}", f"{piece.nominative} {kosten} {euros.de}")
