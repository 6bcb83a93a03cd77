"""The built-in corpus: splits, purity, and German checked by libraries and by hand."""

import datetime
import lzma
import re
import subprocess
import sys
from decimal import Decimal

import pytest
from babel.dates import format_date
from babel.numbers import parse_decimal
from num2words import num2words

from t2t_flax.data.sources import toy as shipped
from t2t_flax.errors import UserError
from tools.toy_corpus import __main__ as generator
from tools.toy_corpus import corpus as toy
from tools.toy_corpus import draws, facts, grammar, lexicon, numbers, sentences
from tools.toy_corpus.grammar import ER, MODALS, PRONOUNS, Subject, act, kin, named, the
from tools.toy_corpus.lexicon import (
    ACCUSATIVE,
    ADJECTIVES,
    DATIVE,
    NOMINATIVE,
    PERSONS,
    PLACES,
    THINGS,
    Phrase,
)

pytestmark = pytest.mark.slow  # they guard changes of the generator alone
VIENNA = Phrase("Vienna", "Wien")
YESTERDAY = Phrase("yesterday", "gestern")
ANNA = named("Anna")


@pytest.fixture(scope="module")
def corpus():
    return {
        split: list(toy.pairs(split, 3000 if split == "train" else 1000)) for split in toy.SPLITS
    }


def drawn(template, count):
    """Pairs of one template with the values they were made from."""
    parameters = dict(draws.TEMPLATES)[template]
    for index in range(count):
        below = toy.stream(0, "train", index)
        values = {name: domain(below) for name, domain in parameters}
        yield values, *template(**values)


def test_pair_depends_only_on_its_arguments(corpus):
    backwards = [toy.pair("train", index) for index in reversed(range(50))]
    assert backwards[::-1] == corpus["train"][:50]
    assert toy.pair("train", 7, seed=1) != toy.pair("train", 7, seed=2)
    script = "from tools.toy_corpus import corpus as toy; print(ascii([toy.pair('test', i, seed=3) for i in (900, 2)]))"
    fresh = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert fresh.strip() == ascii([toy.pair("test", 900, seed=3), toy.pair("test", 2, seed=3)])


def test_splits_are_disjoint_whatever_the_seed(corpus):
    train = {english for seed in (0, 1, 2) for english, _ in toy.pairs("train", 3000, seed=seed)}
    held_out = {
        split: {e for seed in (0, 5) for e, _ in toy.pairs(split, 1000, seed=seed)}
        for split in toy.SPLITS[1:]
    }
    assert (
        not train & held_out["valid"]
        and not train & held_out["test"]
        and not held_out["valid"] & held_out["test"]
    )


def test_held_out_splits_get_a_twentieth_each():
    homes = [toy.split_of(toy.draw(toy.stream(11, "train", index))[0]) for index in range(4000)]
    assert 0.88 < homes.count("train") / 4000 < 0.92
    assert 0.035 < homes.count("valid") / 4000 < 0.065


def test_held_out_sentences_rarely_repeat(corpus):
    for split in ("valid", "test"):
        assert len({english for english, _ in corpus[split]}) > 960


def test_english_sentence_has_one_translation():
    german = {}
    for seed in range(3):
        for english, translation in toy.pairs("train", 4000, seed=seed):
            assert german.setdefault(english, translation) == translation


def test_sentences_are_short_plain_lines(corpus):
    sides = [side for pairs in corpus.values() for pair in pairs for side in pair]
    for text in sides:
        assert re.fullmatch(r"[^\s]+( [^\s]+){0,21}", text), text
        assert text[0].isupper() or text[0].isdigit(), text
        assert re.fullmatch(r"[A-Za-zÄÖÜäöüß0-9 .,:?!'%€$£-]+", text), text
        assert text.endswith((".", "?", "!")) or re.search(r", \d{4}$| \d{4}$", text), text
    assert 6 <= sum(len(text.split()) for text in sides) / len(sides) <= 8


def test_every_template_gives_many_sentences():
    assert 45 <= len(draws.TEMPLATES) <= 60
    for template, _ in draws.TEMPLATES:
        distinct = {english for _, english, _ in drawn(template, 200)}
        assert len(distinct) >= 195, f"{template.__name__} makes few sentences"


def test_vocabulary_is_about_a_thousand_words(corpus):
    words = {
        word.lower() for english, _ in corpus["train"] for word in re.findall(r"[A-Za-z]+", english)
    }
    assert 600 < len(words) < 1100


def test_price_is_equal_on_both_sides():
    for _, english, german in drawn(facts.costs, 200):
        amount = re.search(r"[€$£]([\d,]+\.\d\d)\.$", english).group(1)
        betrag = re.search(r"([\d.]+,\d\d) [€$£]\.$", german).group(1)
        assert parse_decimal(amount, locale="en_US") == parse_decimal(betrag, locale="de_DE") > 0


@pytest.mark.parametrize(
    "template", [facts.weighs, facts.distance, facts.temperature, facts.share_of]
)
def test_measure_is_equal_on_both_sides(template):
    for values, english, german in drawn(template, 100):
        quantity = next(values[key] for key in ("mass", "way", "heat", "share") if key in values)
        assert quantity.en in english and quantity.de in german
        numbers = (
            re.match(r"-?[\d,.]+", quantity.en).group(),
            re.match(r"-?[\d,.]+", quantity.de).group(),
        )
        assert parse_decimal(numbers[0], locale="en_US") == parse_decimal(
            numbers[1], locale="de_DE"
        )


def test_time_is_equal_on_both_sides():
    for _, english, german in drawn(facts.opens, 100):
        parsed = [
            datetime.datetime.strptime(time, "%I:%M %p")
            for time in re.findall(r"\d+:\d\d [AP]M", english)
        ]
        assert [time.strftime("%H:%M") for time in parsed] == re.findall(r"\d\d:\d\d", german)
        assert parsed[0] < parsed[1]


def test_date_is_equal_on_both_sides():
    for _, english, german in drawn(facts.letterhead, 100):
        day = datetime.datetime.strptime(english.split(", ", 1)[1], "%A, %B %d, %Y").date()
        assert german.endswith(format_date(day, "full", locale="de_DE"))


def test_numbers_in_words_match_num2words():
    for values, english, german in drawn(facts.in_words, 200):
        number = values["large"]
        assert english == f"In words, {number:,} is {num2words(number, lang='en')}."
        assert (
            german
            == f"In Worten ist {f'{number:,}'.replace(',', '.')} {num2words(number, lang='de')}."
        )


def test_sums_are_correct():
    spelled = {num2words(number, lang="de"): number for number in range(10000)}
    meaning = {"plus": int.__add__, "minus": int.__sub__, "mal": int.__mul__}
    for _, _, german in drawn(facts.arithmetic, 200):
        left, operator, right, result = re.fullmatch(
            r"(\w+) (\w+) (\w+) ist (\w+)\.", german
        ).groups()
        assert meaning[operator](spelled[left.lower()], spelled[right]) == spelled[result]


@pytest.mark.parametrize(
    ("noun", "forms"),
    [
        (THINGS["coat"], ("ein alter Mantel", "einen alten Mantel", "einem alten Mantel")),
        (THINGS["lamp"], ("eine alte Lampe", "eine alte Lampe", "einer alten Lampe")),
        (THINGS["book"], ("ein altes Buch", "ein altes Buch", "einem alten Buch")),
        (
            PERSONS["student"],
            ("ein alter Student", "einen alten Studenten", "einem alten Studenten"),
        ),
    ],
)
def test_articles_and_adjectives_agree(noun, forms):
    cases = NOMINATIVE, ACCUSATIVE, DATIVE
    assert (
        tuple(lexicon.noun_phrase("ein", noun, case, ADJECTIVES["old"]) for case in cases) == forms
    )


def test_present_forms_of_regular_and_irregular_verbs():
    assert lexicon.HANDLE["find"].forms == ("finde", "findest", "findet", "finden")
    assert lexicon.HANDLE["draw"].forms == ("zeichne", "zeichnest", "zeichnet", "zeichnen")
    assert lexicon.MEET["invite"].forms == ("lade", "lädst", "lädt", "laden")
    assert lexicon.EAT["eat"].forms == ("esse", "isst", "isst", "essen")
    assert lexicon.JOURNEY["travel"].forms == ("reise", "reist", "reist", "reisen")


def test_templates_match_handwritten_sentences():
    coat, red = THINGS["coat"], ADJECTIVES["red"]
    buy = act(lexicon.HANDLE["buy"], "a", coat, red)
    fetch = act(lexicon.HANDLE["pick up"], "my", THINGS["bag"])
    help_ = grammar.serve(lexicon.SERVE["help"], PERSONS["doctor"])
    ride = grammar.journey(lexicon.JOURNEY["return"], VIENNA, "train")
    walk = grammar.go(lexicon.GO["walk"], PLACES["park"])
    brother, tomorrow = kin("my", "brother"), Phrase("tomorrow", "morgen")
    three, s, f = numbers.words(3), sentences, facts
    expected = [
        (s.habit(brother, fetch, Phrase("every day", "jeden Tag")),
         "My brother picks up my bag every day.", "Mein Bruder holt jeden Tag meine Tasche ab."),
        (s.done_fronted(YESTERDAY, PRONOUNS["I"], ride),
         "Yesterday, I returned to Vienna by train.", "Gestern bin ich mit dem Zug nach Wien zurückgekehrt."),
        (s.wish(MODALS["want to"], ANNA, walk, tomorrow),
         "Anna wants to walk to the park tomorrow.", "Anna will morgen in den Park gehen."),
        (s.done_denied(ANNA, buy, YESTERDAY),
         "Anna did not buy a red coat yesterday.", "Anna hat gestern keinen roten Mantel gekauft."),
        (s.habit_denied(ANNA, help_, Phrase("today", "heute")),
         "Anna does not help the doctor today.", "Anna hilft heute dem Arzt nicht."),
        (s.habit_asked(PRONOUNS["you"], help_, Phrase("today", "heute")),
         "Do you help the doctor today?", "Hilfst du heute dem Arzt?"),
        (s.because(ANNA, walk, brother, fetch),
         "Anna walked to the park because my brother picked up my bag.",
         "Anna ist in den Park gegangen, weil mein Bruder meine Tasche abgeholt hat."),
        (s.condition(brother, fetch, PRONOUNS["we"], buy),
         "If my brother picks up my bag, we will buy a red coat.",
         "Wenn mein Bruder meine Tasche abholt, werden wir einen roten Mantel kaufen."),
        (s.object_relative(coat, ANNA, lexicon.HANDLE["find"], YESTERDAY, red),
         "The coat that Anna found yesterday is red.", "Der Mantel, den Anna gestern gefunden hat, ist rot."),
        (s.attempt(PRONOUNS["they"], lexicon.INTEND["try"], fetch),
         "They tried to pick up my bag.", "Sie haben versucht, meine Tasche abzuholen."),
        (s.laid(ANNA, THINGS["book"], Phrase("on", "auf"), red, THINGS["table"]),
         "Anna laid the book on the red table.", "Anna hat das Buch auf den roten Tisch gelegt."),
        (s.lies(red, THINGS["book"], Phrase("on", "auf"), ADJECTIVES["small"], THINGS["table"]),
         "The red book lies on the small table.", "Das rote Buch liegt auf dem kleinen Tisch."),
        (s.trade("Anna", "teacher", VIENNA, three),
         "Anna has worked as a teacher in Vienna for three years.",
         "Anna arbeitet seit drei Jahren als Lehrerin in Wien."),
        (s.older("Peter", three, "Anna", "sister"),
         "Peter is three years older than Anna's sister.", "Peter ist drei Jahre älter als Annas Schwester."),
        (f.costs(red, coat, numbers.money(Decimal("1234.5"))),
         "The red coat costs €1,234.50.", "Der rote Mantel kostet 1.234,50 €."),
        (f.leaves(lexicon.CARRIERS["train"], VIENNA, Phrase("Monday", "Montag"), numbers.clock(15, 45)),
         "The train to Vienna leaves on Monday at 3:45 PM.", "Der Zug nach Wien fährt am Montag um 15:45 Uhr ab."),
        (f.born(ANNA, VIENNA, numbers.date(1981, 3, 5)),
         "Anna was born in Vienna on March 5, 1981.", "Anna wurde am 5. März 1981 in Wien geboren."),
        (f.chapter(PRONOUNS["she"], numbers.ordinal(23), lexicon.TEXTS["letter"], YESTERDAY),
         "She read the twenty-third letter yesterday.", "Sie hat gestern den dreiundzwanzigsten Brief gelesen."),
        (f.age(PRONOUNS["I"], numbers.words(31), VIENNA),
         "I am thirty-one years old and live in Vienna.", "Ich bin einunddreißig Jahre alt und wohne in Wien."),
        (f.moved(numbers.words(1984, "year"), brother, lexicon.JOURNEY["move"], VIENNA),
         "In nineteen eighty-four, my brother moved to Vienna.",
         "Neunzehnhundertvierundachtzig ist mein Bruder nach Wien umgezogen."),
    ]  # fmt: skip
    for pair, english, german in expected:
        assert pair == (english, german)


def test_relative_pronoun_follows_the_gender():
    deed = grammar.go(lexicon.GO["walk"], PLACES["school"])
    for person, start in (
        ("man", "Der Mann, der"),
        ("woman", "Die Frau, die"),
        ("girl", "Das Mädchen, das"),
    ):
        _, german = sentences.subject_relative(PERSONS[person], deed, VIENNA)
        assert german == f"{start} in die Schule gegangen ist, wohnt in Wien."
    assert the(PERSONS["girl"]) == Subject("the girl", "das Mädchen", ER)


def test_unknown_split_is_an_error():
    for call in (lambda: toy.pair("dev", 0), lambda: toy.pairs("dev", 1)):
        with pytest.raises(UserError, match="no split 'dev'; it has train, valid, test"):
            call()
    with pytest.raises(ValueError, match="index is -1"):
        toy.pair("train", -1)


def test_first_shipped_pairs_are_generated():
    for split in toy.SPLITS:
        assert list(shipped.pairs(split, 200)) == list(toy.pairs(split, 200))


@pytest.mark.slow
def test_shipped_files_are_generated_byte_for_byte(tmp_path):
    """Holds for the versions of babel and num2words that the files were made with."""
    installed = (f"toy {toy.VERSION}", *numbers.versions())
    if installed != shipped.GENERATOR:
        pytest.skip(
            f"the shipped files are of {', '.join(shipped.GENERATOR)}; installed: {', '.join(installed)}"
        )
    for split, count in shipped.COUNTS.items():
        with lzma.open(shipped.path_of(split)) as file:
            assert file.read() == generator.text(toy.pairs(split, count))
    assert lzma.decompress(generator.compressed("test")) == generator.text(
        toy.pairs("test", shipped.COUNTS["test"])
    )
