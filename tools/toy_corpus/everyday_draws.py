"""Draw everyday sentences: the domains of their parameters and the weight of each template."""

from __future__ import annotations

from collections.abc import Callable

from tools.toy_corpus import everyday, lexicon
from tools.toy_corpus import everyday_parts as parts
from tools.toy_corpus import everyday_words as words
from tools.toy_corpus.draws import (
    Below,
    Domain,
    Parameters,
    any_of,
    at_an_hour,
    fill,
    mixed,
    name,
    on_a_day,
    templates_of,
    within,
)
from tools.toy_corpus.everyday_grammar import contracted
from tools.toy_corpus.grammar import ER, IT, Subject
from tools.toy_corpus.lexicon import ACCUSATIVE, DATIVE, Phrase


def _qualified(plain: Domain, of: int = 4) -> Domain:
    """red, and one time in `of` + 1 very red."""
    return mixed(*[plain] * of, within("{} {}", "{} {}", any_of(words.DEGREES), plain))


_BONDS = [(verb, ACCUSATIVE) for verb in words.MEET.values()] + [
    (verb, DATIVE) for verb in lexicon.SERVE.values()
]
_COMPANY = [
    words.DO[en] for en in "dance play work sing talk swim eat cook study come travel".split()
]
_ALONE = [
    verb
    for verb in words.DO.values()
    if verb.en not in ("come", "go", "arrive", "pay", "win", "talk")
]
_OBJECTS = (
    words.USE | words.EAT | words.READ | words.DRINK | words.WEAR | {"hear": words.MEET["hear"]}
)
_MEASURED = "old big heavy long expensive good bad hot cold fast".split()
_MEETING = ("Hello", "Good morning", "Good evening", "Good night", "Thank you", "Goodbye")
_OF_PERSONS = mixed(any_of(words.STATES), any_of(words.STATES), parts.predicative(words.CHARACTER))

_PRONOUNS = (("that", "das"), ("this", "das"), ("everything", "alles"))

DOMAINS: dict[str, Domain] = {
    "who": parts.who, "pronoun": parts.pronoun, "human": parts.human, "companion": parts.companion,
    "animal": parts.animal, "whatever": parts.whatever, "worker": parts.worker,
    "called": parts.called, "name": name,
    "it": any_of([IT] * 4 + [Subject(en, de, ER) for en, de in _PRONOUNS]),
    "item": parts.item, "piece": parts.piece, "possession": parts.possession,
    "entity": parts.entity,
    "identity": parts.identity, "gift": lambda b: parts.object_of(parts.handy(b), b),
    "quality": _qualified(_OF_PERSONS, 3), "trait": _qualified(parts.predicative(words.QUALITIES)),
    "situation": _qualified(any_of(words.SITUATIONS)), "kind": mixed(parts.trait, parts.character),
    "measure": any_of([Phrase(en, words.QUALITIES[en].de) for en in _MEASURED]),
    "form": parts.share(say=6, deny=2, ask=2), "inquiry": parts.share(say=3, ask=1),
    "polite": parts.share(say=3, ask=2, deny=2), "this": parts.share(this=3, that=2, it=3),
    "mark": any_of("..!"),
    "being": parts.being, "moment": parts.moment, "then": parts.then,
    "time_of_day": parts.time_of_day,
    "at": mixed(
        on_a_day, parts.at_hour, parts.at_hour, at_an_hour, parts.later, any_of(lexicon.NOW)
    ),
    "spot": parts.spot, "where": parts.where, "whither": parts.whither,
    "inside": mixed(parts.at_a_place, parts.at_a_place, any_of(words.HERE)),
    "simple": parts.simple, "instinct": parts.instinct, "deal": parts.deal,
    "ordinary": mixed(parts.simple, parts.deal),
    "motion": parts.motion, "home": parts.home, "pastime": parts.pastime, "order": parts.order,
    "bond": any_of(_BONDS), "act": any_of(_ALONE), "with_act": any_of(_COMPANY),
    "grant": any_of(lexicon.GIVE),
    "transitive": any_of([_OBJECTS[en] for en in words.WHAT]), "mind": any_of(words.OPINIONS),
    "ability": any_of(words.ABILITIES), "adverb": any_of(words.ADVERBS),
    "frequency": any_of(words.FREQUENCY),
    "joint": any_of({" and ": " und ", " but ": ", aber "}),
    "trade": any_of(tuple(lexicon.TRADES.items())),
    "wh": any_of({"why": "warum", "when": "wann", "where": "wo", "how often": "wie oft"}),
    "years": parts.few,
    "greeting": any_of({en: words.GREETINGS[en] for en in _MEETING}), "phrase": any_of(words.FIXED),
    "carrier": parts.carrier, "euros": parts.euros,
}  # fmt: skip

WEIGHTS = dict(
    is_so=10, it_is=5, thing_is=12, is_often=2, is_both=1, is_there=4, lies_there=3, where_is=3,
    how_is=2, how_goes_it=1, why_is=1, who_is=1, has_trade=3, this_is=4, compared=2, as_so_as=1,
    aged=1, having=6, had=1, there_is=4, does=8, animal_does=5, acts=16, acts_there=2, meets=8,
    does_often=3, likes_to=3, could=8, would_like=1, goes_to=5, does_both=1, together=1, gives=3,
    command=3, asks=3, what_does=2, who_does=2, how_much=1, what_color=1, thinks_that=1,
    does_because=1, fixed=4, is_called=1, lives_in=2, greets=1, it_is_time=4, scheduled=5,
    when_scheduled=1, price_is=1,
)  # fmt: skip
TEMPLATES = tuple(templates_of(everyday, DOMAINS))
_DRAWN = [pair for pair in TEMPLATES for _ in range(WEIGHTS[pair[0].__name__])]


def draw(below: Below) -> tuple[str, str]:
    """Draw an everyday pair.

    Every sixth English sentence is contracted where it can be: it's late, I don't sleep.
    """
    english, german = fill(below, *choose(below))
    return (english if below(6) else contracted(english)), german


def choose(below: Below) -> tuple[Callable, Parameters]:
    """A template, by its weight."""
    return _DRAWN[below(len(_DRAWN))]
