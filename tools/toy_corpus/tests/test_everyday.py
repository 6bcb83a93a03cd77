"""Everyday sentences of the built-in corpus.

German that agrees, one translation each, splits that are balanced.
"""

import re
from collections import Counter

import pytest

from tools.toy_corpus import corpus as toy
from tools.toy_corpus import everyday, everyday_draws, everyday_words, grammar, lexicon
from tools.toy_corpus.everyday_grammar import (
    ASK,
    DENY,
    SAY,
    Moment,
    affects,
    contracted,
    mass,
    one,
    several,
    somebody,
)
from tools.toy_corpus.grammar import IT, PRONOUNS, Event, named
from tools.toy_corpus.lexicon import ACCUSATIVE, DATIVE, Phrase

pytestmark = pytest.mark.slow  # they guard changes of the generator alone
NOW, WAS, WILL = Moment("present"), Moment("past"), Moment("future")
DOG, CAT = everyday_words.ANIMALS["dog"], everyday_words.ANIMALS["cat"]
I, YOU, SHE, WE, THEY = (PRONOUNS[en] for en in ("I", "you", "she", "we", "they"))
TEMPLATES = dict(everyday_draws.TEMPLATES)


@pytest.fixture(scope="module")
def training() -> dict[str, str]:
    return dict(toy.pairs("train", 20_000))


def test_everyday_templates_match_handwritten_sentences():
    e, do = everyday, everyday_words.DO
    old, red, house = (
        lexicon.ADJECTIVES["old"],
        lexicon.ADJECTIVES["red"],
        everyday_words.SURROUNDINGS["house"],
    )
    tired, late = Phrase("tired", "müde"), Phrase("late", "spät")
    sleep, swim = (Event(do[en], "", "", "nicht") for en in ("sleep", "swim"))
    arrive, read = (
        Event(do["arrive"], "", "", "nicht"),
        affects(do["read"], one("the", lexicon.THINGS["book"])),
    )
    him = somebody(PRONOUNS["he"], "ihn", "ihm")
    today, yesterday = Phrase("today", "heute"), Phrase("yesterday", "gestern")
    garden = lexicon.PLACES["garden"].at
    milk, my_cat = mass(everyday_words.DRINKS["milk"]), one("my", CAT, old)
    expected = [
        (e.is_so(I, tired, NOW, DENY), "I am not tired.", "Ich bin nicht müde."),
        (e.is_so(YOU, tired, NOW, ASK), "Are you tired?", "Bist du müde?"),
        (e.it_is(IT, late, WILL, SAY), "It will be late.", "Es wird spät sein."),
        (e.it_is(IT, late, Moment("past", yesterday), DENY), "It was not late yesterday.", "Es war gestern nicht spät."),
        (e.thing_is(several("these", house), Phrase("red", "rot"), NOW, SAY), "These houses are red.", "Diese Häuser sind rot."),
        (e.is_often(SHE, Phrase("never", "nie"), tired, SAY), "She is never tired.", "Sie ist nie müde."),
        (e.where_is(grammar.all_the(DOG), NOW), "Where are the dogs?", "Wo sind die Hunde?"),
        (e.has_trade((SHE, 1), ("doctor", ("Arzt", "Ärztin")), DENY), "She is not a doctor.", "Sie ist keine Ärztin."),
        (e.this_is("this", my_cat, SAY), "This is my old cat.", "Das ist meine alte Katze."),
        (e.this_is("it", one("a", DOG, old), DENY), "It is not an old dog.", "Es ist kein alter Hund."),
        (e.this_is("that", several("", DOG), SAY), "Those are dogs.", "Das sind Hunde."),
        (e.having(WE, one("a", DOG, old), DENY), "We do not have an old dog.", "Wir haben keinen alten Hund."),
        (e.had(SHE, milk, yesterday, ASK), "Did she have milk yesterday?", "Hatte sie gestern Milch?"),
        (e.there_is(milk, Phrase("here", "hier"), DENY), "There is no milk here.", "Es gibt hier keine Milch."),
        (e.there_is(one("a", DOG), garden, ASK), "Is there a dog in the garden?", "Gibt es im Garten einen Hund?"),
        (e.does(THEY, arrive, Moment("progressive", today), DENY), "They are not arriving today.", "Sie kommen heute nicht an."),
        (e.does(I, arrive, WAS, ASK), "Did I arrive?", "Bin ich angekommen?"),
        (e.animal_does(one("this", DOG), swim, Moment("progressive"), SAY), "This dog is swimming.", "Dieser Hund schwimmt."),
        (e.acts(SHE, read, Moment("progressive"), ASK), "Is she reading the book?", "Liest sie das Buch?"),
        (e.meets(I, (everyday_words.KNOW, ACCUSATIVE), him, NOW, DENY), "I do not know him.", "Ich kenne ihn nicht."),
        (e.meets(WE, (lexicon.SERVE["help"], DATIVE), him, Moment("past", today), SAY), "We helped him today.", "Wir haben ihm heute geholfen."),
        (e.meets(I, (lexicon.MEET["see"], ACCUSATIVE), somebody(WE, "uns", "uns"), NOW, SAY), "I see them.", "Ich sehe sie."),
        (e.does_often(named("Anna"), Phrase("always", "immer"), sleep, SAY), "Anna always sleeps.", "Anna schläft immer."),
        (e.likes_to(SHE, affects(do["eat"], several("", lexicon.FOODS["apple"])), DENY), "She does not like to eat apples.", "Sie isst nicht gern Äpfel."),
        (e.could(I, everyday_words.ABILITIES["can"], sleep, DENY), "I cannot sleep.", "Ich kann nicht schlafen."),
        (e.could(SHE, everyday_words.ABILITIES["want to"], sleep, ASK), "Does she want to sleep?", "Will sie schlafen?"),
        (e.could(SHE, everyday_words.ABILITIES["would like to"], sleep, ASK), "Would she like to sleep?", "Möchte sie schlafen?"),
        (e.does_both(SHE, do["sing"], do["get up"]), "She sings and gets up.", "Sie singt und steht auf."),
        (e.gives(I, lexicon.GIVE["give"], him, one("a", lexicon.THINGS["coat"], red), NOW), "I give him a red coat.", "Ich gebe ihm einen roten Mantel."),
        (e.command(affects(everyday_words.OPEN["close"], one("the", everyday_words.THINGS["door"])), ASK), "Please close the door.", "Bitte schließe die Tür."),
        (e.asks(Phrase("where", "wo"), SHE, sleep, NOW), "Where does she sleep?", "Wo schläft sie?"),
        (e.thinks_that(I, everyday_words.OPINIONS["think"], IT, late), "I think that it is late.", "Ich denke, dass es spät ist."),
        (e.does_because(SHE, do["wake up"], tired, DENY), "She does not wake up because she is tired.", "Sie wacht nicht auf, weil sie müde ist."),
        (e.compared(one("the", DOG).subject(), everyday_words.QUALITIES["good"], one("the", CAT).subject(), SAY), "The dog is better than the cat.", "Der Hund ist besser als die Katze."),
        (e.scheduled((Phrase("the train", "der Zug"), everyday_words.LEAVE), Phrase("on Friday", "am Freitag"), SAY), "The train leaves on Friday.", "Der Zug fährt am Freitag ab."),
        (e.when_scheduled((Phrase("the train", "der Zug"), everyday_words.LEAVE)), "When does the train leave?", "Wann fährt der Zug ab?"),
    ]  # fmt: skip
    for pair, english, german in expected:
        assert pair == (english, german)


@pytest.mark.parametrize(
    ("thing", "forms"),
    [
        (
            one("this", DOG, lexicon.ADJECTIVES["old"]),
            ("dieser alte Hund", "diesen alten Hund", "diesem alten Hund"),
        ),
        (one("this", CAT), ("diese Katze", "diese Katze", "dieser Katze")),
        (one("our", lexicon.THINGS["book"]), ("unser Buch", "unser Buch", "unserem Buch")),
        (
            several("my", DOG, lexicon.ADJECTIVES["old"]),
            ("meine alten Hunde", "meine alten Hunde", ""),
        ),
        (several("", DOG, lexicon.ADJECTIVES["old"]), ("alte Hunde", "alte Hunde", "")),
        (
            several("many", DOG, lexicon.ADJECTIVES["old"]),
            ("viele alte Hunde", "viele alte Hunde", ""),
        ),
    ],
)
def test_noun_phrases_agree_in_gender_number_and_case(thing, forms):
    assert (thing.nominative, thing.accusative, thing.dative) == forms


def test_indefinite_noun_phrases_are_negated_with_kein_in_their_case():
    assert one("a", DOG, lexicon.ADJECTIVES["old"]).no == ("kein alter Hund", "keinen alten Hund")
    assert several("", DOG, lexicon.ADJECTIVES["old"]).no == (
        "keine alten Hunde",
        "keine alten Hunde",
    )
    assert one("the", DOG).no == ("nicht der Hund", "den Hund nicht")


def test_english_participles_and_contractions():
    verbs = everyday_words.DO | everyday_words.USE
    forms = {
        verbs[en].ing for en in ("run", "write", "see", "get up", "look for", "swim", "sing", "cry")
    }
    assert forms == {
        "running",
        "writing",
        "seeing",
        "getting up",
        "looking for",
        "swimming",
        "singing",
        "crying",
    }
    for long, short in {
        "It is late.": "It's late.", "I do not sleep.": "I don't sleep.", "We cannot come.": "We can't come.",
        "He is not here.": "He isn't here.", "They will not go.": "They won't go.", "Is it late?": "Is it late?",
    }.items():  # fmt: skip
        assert contracted(long) == short


def test_every_template_has_a_weight_and_gives_plain_sentences():
    assert {template.__name__ for template in TEMPLATES} == set(everyday_draws.WEIGHTS)
    for template, parameters in TEMPLATES.items():
        for index in range(40):
            english, german = everyday_draws.fill(
                toy.stream(0, "train", index), template, parameters
            )
            for text in (english, german):
                assert re.fullmatch(r"[A-ZÄÖÜ0-9€][A-Za-zÄÖÜäöüß0-9 ,:'€$£.-]*[.?!]", text), text
                assert "  " not in text, text


def test_every_everyday_word_occurs_in_training(training):
    text = Counter(word for english in training for word in re.findall(r"[a-z]+", english.lower()))
    tables = (
        everyday_words.ANIMALS, everyday_words.THINGS, everyday_words.DRINKS, everyday_words.FARE,
        everyday_words.UNIQUE, everyday_words.QUALITIES, everyday_words.CHARACTER, everyday_words.STATES,
        everyday_words.DO, everyday_words.USE, everyday_words.MEET, lexicon.CITIES, lexicon.DAYS,
    )  # fmt: skip
    missing = {
        word
        for table in tables
        for entry in table
        for word in entry.lower().split()
        if text[word] < 10
    }
    assert not missing


def test_fixed_phrases_are_always_in_training(training):
    assert all(toy.split_of(english) == "train" for english in everyday_words.FIXED)
    assert len(training.keys() & everyday_words.FIXED.keys()) > 0.8 * len(everyday_words.FIXED)


def test_half_of_each_split_is_everyday():
    for split in toy.SPLITS:
        short = [len(english.split()) <= 6 for english, _ in toy.pairs(split, 1000)]
        assert 400 < sum(short) < 650
