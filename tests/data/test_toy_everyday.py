"""Everyday sentences of the built-in corpus: German that agrees, one translation each, and what newcomers type first."""

import re
from collections import Counter
from pathlib import Path

import pytest

from t2t_flax.data import toy_everyday, toy_everyday_draws, toy_everyday_words, toy_grammar
from t2t_flax.data import toy_lexicon as lexicon
from t2t_flax.data.sources import toy
from t2t_flax.data.toy_everyday_grammar import ASK, DENY, SAY, Moment, affects, contracted, mass, one, several, somebody
from t2t_flax.data.toy_grammar import IT, PRONOUNS, Event, named
from t2t_flax.data.toy_lexicon import ACCUSATIVE, DATIVE, Phrase

ROOT = Path(__file__).parents[2]
NEWCOMER = [line.split("\t") for line in Path(__file__).with_name("newcomer_sentences.tsv").read_text().splitlines()]
NOW, WAS, WILL = Moment("present"), Moment("past"), Moment("future")
DOG, CAT = toy_everyday_words.ANIMALS["dog"], toy_everyday_words.ANIMALS["cat"]
I, YOU, SHE, WE, THEY = (PRONOUNS[en] for en in ("I", "you", "she", "we", "they"))
TEMPLATES = dict(toy_everyday_draws.TEMPLATES)


@pytest.fixture(scope="module")
def training() -> dict[str, str]:
    return dict(toy.pairs("train", 20_000))


def test_everyday_sentences_written_by_hand():
    e, do = toy_everyday, toy_everyday_words.DO
    old, red, house = lexicon.ADJECTIVES["old"], lexicon.ADJECTIVES["red"], toy_everyday_words.SURROUNDINGS["house"]
    tired, late = Phrase("tired", "müde"), Phrase("late", "spät")
    sleep, swim = (Event(do[en], "", "", "nicht") for en in ("sleep", "swim"))
    arrive, read = Event(do["arrive"], "", "", "nicht"), affects(do["read"], one("the", lexicon.THINGS["book"]))
    him = somebody(PRONOUNS["he"], "ihn", "ihm")
    today, yesterday = Phrase("today", "heute"), Phrase("yesterday", "gestern")
    garden = lexicon.PLACES["garden"].at
    milk, my_cat = mass(toy_everyday_words.DRINKS["milk"]), one("my", CAT, old)
    expected = [
        (e.is_so(I, tired, NOW, DENY), "I am not tired.", "Ich bin nicht müde."),
        (e.is_so(YOU, tired, NOW, ASK), "Are you tired?", "Bist du müde?"),
        (e.it_is(IT, late, WILL, SAY), "It will be late.", "Es wird spät sein."),
        (e.it_is(IT, late, Moment("past", yesterday), DENY), "It was not late yesterday.", "Es war gestern nicht spät."),
        (e.thing_is(several("these", house), Phrase("red", "rot"), NOW, SAY), "These houses are red.", "Diese Häuser sind rot."),
        (e.is_often(SHE, Phrase("never", "nie"), tired, SAY), "She is never tired.", "Sie ist nie müde."),
        (e.where_is(toy_grammar.all_the(DOG), NOW), "Where are the dogs?", "Wo sind die Hunde?"),
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
        (e.meets(I, (toy_everyday_words.KNOW, ACCUSATIVE), him, NOW, DENY), "I do not know him.", "Ich kenne ihn nicht."),
        (e.meets(WE, (lexicon.SERVE["help"], DATIVE), him, Moment("past", today), SAY), "We helped him today.", "Wir haben ihm heute geholfen."),
        (e.meets(I, (lexicon.MEET["see"], ACCUSATIVE), somebody(WE, "uns", "uns"), NOW, SAY), "I see them.", "Ich sehe sie."),
        (e.does_often(named("Anna"), Phrase("always", "immer"), sleep, SAY), "Anna always sleeps.", "Anna schläft immer."),
        (e.likes_to(SHE, affects(do["eat"], several("", lexicon.FOODS["apple"])), DENY), "She does not like to eat apples.", "Sie isst nicht gern Äpfel."),
        (e.could(I, toy_everyday_words.ABILITIES["can"], sleep, DENY), "I cannot sleep.", "Ich kann nicht schlafen."),
        (e.could(SHE, toy_everyday_words.ABILITIES["want to"], sleep, ASK), "Does she want to sleep?", "Will sie schlafen?"),
        (e.could(SHE, toy_everyday_words.ABILITIES["would like to"], sleep, ASK), "Would she like to sleep?", "Möchte sie schlafen?"),
        (e.does_both(SHE, do["sing"], do["get up"]), "She sings and gets up.", "Sie singt und steht auf."),
        (e.gives(I, lexicon.GIVE["give"], him, one("a", lexicon.THINGS["coat"], red), NOW), "I give him a red coat.", "Ich gebe ihm einen roten Mantel."),
        (e.command(affects(toy_everyday_words.OPEN["close"], one("the", toy_everyday_words.THINGS["door"])), ASK), "Please close the door.", "Bitte schließe die Tür."),
        (e.asks(Phrase("where", "wo"), SHE, sleep, NOW), "Where does she sleep?", "Wo schläft sie?"),
        (e.thinks_that(I, toy_everyday_words.OPINIONS["think"], IT, late), "I think that it is late.", "Ich denke, dass es spät ist."),
        (e.does_because(SHE, do["wake up"], tired, DENY), "She does not wake up because she is tired.", "Sie wacht nicht auf, weil sie müde ist."),
        (e.compared(one("the", DOG).subject(), toy_everyday_words.QUALITIES["good"], one("the", CAT).subject(), SAY), "The dog is better than the cat.", "Der Hund ist besser als die Katze."),
        (e.scheduled((Phrase("the train", "der Zug"), toy_everyday_words.LEAVE), Phrase("on Friday", "am Freitag"), SAY), "The train leaves on Friday.", "Der Zug fährt am Freitag ab."),
        (e.when_scheduled((Phrase("the train", "der Zug"), toy_everyday_words.LEAVE)), "When does the train leave?", "Wann fährt der Zug ab?"),
    ]  # fmt: skip
    for pair, english, german in expected:
        assert pair == (english, german)


@pytest.mark.parametrize(
    ("thing", "forms"),
    [
        (one("this", DOG, lexicon.ADJECTIVES["old"]), ("dieser alte Hund", "diesen alten Hund", "diesem alten Hund")),
        (one("this", CAT), ("diese Katze", "diese Katze", "dieser Katze")),
        (one("our", lexicon.THINGS["book"]), ("unser Buch", "unser Buch", "unserem Buch")),
        (several("my", DOG, lexicon.ADJECTIVES["old"]), ("meine alten Hunde", "meine alten Hunde", "")),
        (several("", DOG, lexicon.ADJECTIVES["old"]), ("alte Hunde", "alte Hunde", "")),
        (several("many", DOG, lexicon.ADJECTIVES["old"]), ("viele alte Hunde", "viele alte Hunde", "")),
    ],
)
def test_noun_phrases_agree_in_gender_number_and_case(thing, forms):
    assert (thing.nominative, thing.accusative, thing.dative) == forms


def test_indefinite_noun_phrases_are_negated_with_kein_in_their_case():
    assert one("a", DOG, lexicon.ADJECTIVES["old"]).no == ("kein alter Hund", "keinen alten Hund")
    assert several("", DOG, lexicon.ADJECTIVES["old"]).no == ("keine alten Hunde", "keine alten Hunde")
    assert one("the", DOG).no == ("nicht der Hund", "den Hund nicht")


def test_english_participles_and_contractions():
    verbs = toy_everyday_words.DO | toy_everyday_words.USE
    forms = {verbs[en].ing for en in ("run", "write", "see", "get up", "look for", "swim", "sing", "cry")}
    assert forms == {"running", "writing", "seeing", "getting up", "looking for", "swimming", "singing", "crying"}
    for long, short in {
        "It is late.": "It's late.", "I do not sleep.": "I don't sleep.", "We cannot come.": "We can't come.",
        "He is not here.": "He isn't here.", "They will not go.": "They won't go.", "Is it late?": "Is it late?",
    }.items():  # fmt: skip
        assert contracted(long) == short


def test_every_template_has_a_weight_and_makes_plain_sentences():
    assert {template.__name__ for template in TEMPLATES} == set(toy_everyday_draws.WEIGHTS)
    for template, parameters in TEMPLATES.items():
        for index in range(40):
            english, german = toy_everyday_draws.fill(toy._stream(index), template, parameters)
            for text in (english, german):
                assert re.fullmatch(r"[A-ZÄÖÜ0-9€][A-Za-zÄÖÜäöüß0-9 ,:'€$£.-]*[.?!]", text), text
                assert "  " not in text, text


def test_every_everyday_word_is_in_the_training_text(training):
    text = Counter(word for english in training for word in re.findall(r"[a-z]+", english.lower()))
    tables = (
        toy_everyday_words.ANIMALS, toy_everyday_words.THINGS, toy_everyday_words.DRINKS, toy_everyday_words.FARE,
        toy_everyday_words.UNIQUE, toy_everyday_words.QUALITIES, toy_everyday_words.CHARACTER, toy_everyday_words.STATES,
        toy_everyday_words.DO, toy_everyday_words.USE, toy_everyday_words.MEET, lexicon.CITIES, lexicon.DAYS,
    )  # fmt: skip
    missing = {word for table in tables for entry in table for word in entry.lower().split() if text[word] < 10}
    assert not missing


def test_sentences_without_a_pattern_are_always_in_training(training):
    assert all(toy.split_of(english) == "train" for english in toy_everyday_words.FIXED)
    assert len(training.keys() & toy_everyday_words.FIXED.keys()) > 0.8 * len(toy_everyday_words.FIXED)


def test_half_of_each_split_is_everyday():
    for split in toy.SPLITS:
        short = [len(english.split()) <= 6 for english, _ in toy.pairs(split, 1000)]
        assert 400 < sum(short) < 650


def test_references_of_newcomers_sentences_are_those_of_the_corpus(training):
    assert len({english for english, _ in NEWCOMER}) == len(NEWCOMER)
    for english, german in NEWCOMER:
        assert training.get(english, german) == german
    assert sum(english not in training for english, _ in NEWCOMER) >= 100


def test_the_sentences_shown_to_newcomers_are_among_those_that_the_trained_model_is_tested_on():
    shown = set()
    for path in (
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "t2t_flax/commands").glob("*.py"),
        ROOT / "t2t_flax/__init__.py",
    ):
        text = path.read_text()
        shown |= set(re.findall(r"""--source=['"]([A-Z][^'"]+[.?!])['"]""", text))
        shown |= set(re.findall(r"""(?:translate|score|attend)\(\[?\(?["']([^"']+)["']""", text))
        shown |= set(re.findall(r"""echo "([^"]+)" \| python -m t2t_flax translate""", text))
        for source, target in re.findall(r"""score\(\[\("([^"]+)", "([^"]+)"\)""", text):
            assert [source, target] in NEWCOMER
    shown = {text for text in shown if not text.endswith(" .")}  # words split for a parser
    assert shown and shown <= {english for english, _ in NEWCOMER}
