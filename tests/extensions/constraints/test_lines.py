"""What is asked of translations: forms of lines, files of terms, and their tokens."""

import json
import unicodedata

import pytest
from helpers.refusals import refused
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.config import Config, Data
from t2t_flax.data.sources import toy
from t2t_flax.data.tokenizers import SentencePieceTokenizer
from t2t_flax.extensions.constraints.avoid import edges
from t2t_flax.extensions.constraints.lines import (
    Wanted,
    contains,
    read_glossary,
    read_line,
    read_phrases,
)
from t2t_flax.extensions.constraints.segmentation import begins_word, forms
from t2t_flax.extensions.shared.list_tokenizer import SymbolTokenizer
from t2t_flax.tasks import Predictions, task_of

TEXT = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1).filter(
    str.strip
)


@given(TEXT, st.lists(st.one_of(TEXT, st.lists(TEXT, min_size=1))), st.lists(TEXT))
def test_json_lines_are_read(text, phrases, avoid):
    line = json.dumps({"text": text, "constraints": phrases, "avoid": avoid}, ensure_ascii=False)
    alternatives = tuple(
        tuple(phrase) if isinstance(phrase, list) else (phrase,) for phrase in phrases
    )
    assert read_line(line, "json", "line 1") == Wanted(text, alternatives, tuple(avoid))


def test_phrases_follow_the_source_after_tabs():
    assert read_line("A dog runs.\tder Hund\t\tläuft ", "tabs", "") == Wanted(
        "A dog runs.", (("der Hund",), ("läuft",))
    )
    assert read_line("A dog.", "tabs", "") == Wanted("A dog.")
    assert read_line("A\tdog.", "", "") == Wanted("A\tdog.")


def test_a_line_that_begins_with_no_brace_is_text_alone():
    assert read_line("A dog.", "json", "") == Wanted("A dog.")
    assert read_line("", "json", "") == Wanted("")


@pytest.mark.parametrize(
    "line",
    ["{A dog.}", "{}", '{"text": 1}', '{"text": "a", "avoid": "b"}', '{"text": "a", "constraints": [[]]}',
     '{"text": "a", "constraints": [3]}', '{"text": "a", "constraint": ["b"]}', '{"text": "a", "avoid": [" "]}',
     '{"text": "a \\ud83d b"}'],
)  # fmt: skip
def test_a_line_of_another_form_is_named(line):
    with refused("line 7"):
        read_line(line, "json", "line 7")


def test_terms_are_found_as_whole_words_in_any_case_longest_first(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text(
        "\ufeffdog\tHund\tHündin\n\nhot dog\tHotdog\nC++\tC++\n犬\tHund\nµm\tMikrometer\nİstanbul\tIstanbul\n"
    )
    glossary = read_glossary(str(path))
    assert glossary.find("A Dog, a hot dog and dogs.") == [("Hund", "Hündin"), ("Hotdog",)]
    assert glossary.find("C++ und (dog) 子犬が") == [("C++",), ("Hund", "Hündin"), ("Hund",)]
    assert glossary.find("doghouse") == []
    # With the sign for micro and with the letter; a phrase whose lower case is longer.
    assert glossary.find("5 μm, 5 µm, İstanbul") == [
        ("Mikrometer",),
        ("Mikrometer",),
        ("Istanbul",),
    ]
    assert contains("Der Hund bellt.", "Hund") and not contains("Hundert", "Hund")


@pytest.mark.parametrize(
    "text, line",
    [
        ("dog\n", "line 1"),
        ("dog\t\n", "line 1"),
        ("\tHund\n", "line 1"),
        ("dog\tHund\nDog\tKöter\n", "line 2"),
    ],
)
def test_a_line_of_a_glossary_that_is_no_term_is_named(tmp_path, text, line):
    (tmp_path / "terms.tsv").write_text(text)
    with refused("terms.tsv", line):
        read_glossary(str(tmp_path / "terms.tsv"))


def test_only_a_newline_ends_a_phrase(tmp_path):
    (tmp_path / "avoid").write_bytes("a\rb\x0bc\u2028d\r\ne\n".encode())
    assert read_phrases(str(tmp_path / "avoid")) == ("a\rb\x0bc\u2028d", "e")


@pytest.fixture(scope="module")
def tokenizer():
    sentences = [s for pair in toy.pairs("train", 300) for s in pair]
    return SentencePieceTokenizer.train(sentences, Data(tokenizer="bpe", vocab_size=420))


def test_phrases_are_segmented_as_the_model_segments_them(tokenizer):
    assert forms(tokenizer, "train") == [tuple(tokenizer.encode_text("train"))]
    # Punctuation follows a word with and without a space.
    assert {
        tokenizer.decode((*tokenizer.encode_text("a"), *form)) for form in forms(tokenizer, ", and")
    } == {
        "a , and",
        "a, and",
    }
    assert forms(SymbolTokenizer.of(["a b"]), "b a") == [
        tuple(SymbolTokenizer.of(["a b"]).encode_text("b a"))
    ]


def test_a_phrase_that_the_vocabulary_cannot_write_has_no_form():
    tokenizer = SymbolTokenizer.of(["a b"])
    assert forms(tokenizer, "a c") == edges(tokenizer, ["c"]) == []


def test_what_begins_a_word(tokenizer):
    table = begins_word(tokenizer)
    assert len(table) == tokenizer.vocab_size
    for piece, begins in zip(tokenizer.pieces(range(tokenizer.vocab_size)), table, strict=True):
        letter = (
            unicodedata.category(piece[0])[0] in "LN" and unicodedata.category(piece[0]) != "Lo"
        )
        assert begins == (not letter), piece
    assert begins_word(SymbolTokenizer.of(["a b"])) == b""


def test_the_use_of_terms_is_counted_in_evaluations(tmp_path):
    (tmp_path / "terms.tsv").write_text("dog\tHund\tHunde\ncat\tKatze\n")
    config = Config().with_values({"constraints.counted_terms": str(tmp_path / "terms.tsv")})
    task = task_of(config)
    (metric,) = [metric for metric in task.metrics if metric.name == "term_use"]
    predictions = Predictions(
        ["Der Hund und ein Kater.", "Katze", "nichts"], [["Der Hund, die Katze", "Katze", "-"]],
        sources=["The dog and the cat.", "Cat, dog", "nothing"],
    )  # fmt: skip
    entry = metric.statistics(predictions, config).entry()
    assert (entry["score"], entry["used"], entry["terms"], entry["used_by_references"]) == (
        50.0,
        2,
        4,
        [3],
    )
    assert "term_use" not in [metric.name for metric in task_of(Config()).metrics]


def test_a_missing_file_is_named_before_anything_is_decoded(tmp_path):
    config = Config().with_values({"constraints.counted_terms": str(tmp_path / "absent")})
    with refused(str(tmp_path / "absent")):
        task_of(config).check_requirements()
    with refused("constraints.avoid"):
        read_phrases(str(tmp_path / "none"))
