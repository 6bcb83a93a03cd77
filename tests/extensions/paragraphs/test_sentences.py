"""Sentences of paragraphs: nothing is lost between them."""

import importlib
import sys

import pytest
from helpers.refusals import refused
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("sentencex", reason="needs the extra paragraphs")
from t2t_flax.extensions.shared.sentences import split  # noqa: E402

TEXTS = st.text(max_size=60).map(lambda text: text.replace("\n", "")) | st.text(
    alphabet="ab .!?\t\u00a0\u3000。\"'()1Dr\u2028é😀", max_size=60
)


@given(TEXTS, st.sampled_from(["en", "de", "zh", "", "und"]))
def test_joining_the_sentences_themselves_gives_the_paragraph(text, language):
    """Exactly, but for a space after a sentence that ends as Chinese ones do."""
    made = split(text, language)
    joined = made.join(made.sentences)
    assert (
        joined == text
        or set("。！？｡") & set(text)
        and "".join(joined.split()) == "".join(text.split())
    )
    assert len(made.gaps) == len(made.sentences) + 1
    assert (
        all(sentence == sentence.strip() != "" for sentence in made.sentences) or not text.strip()
    )


@pytest.mark.parametrize(
    "text, language, sentences",
    [
        (
            "Dr. Smith came, e.g. by train. He left.",
            "en",
            ("Dr. Smith came, e.g. by train.", "He left."),
        ),
        (
            "Am 3. Oktober kam Dr. Müller. Er blieb.",
            "de",
            ("Am 3. Oktober kam Dr. Müller.", "Er blieb."),
        ),
        (
            "Am 3. Oktober kam Dr. Müller. Er blieb.",
            "deu",
            ("Am 3. Oktober kam Dr. Müller.", "Er blieb."),
        ),
        ('He said "It works!" Then he left.', "en", ('He said "It works!"', "Then he left.")),
        ("你好。我是学生！", "zh_CN", ("你好。", "我是学生！")),
        ("no end", "en", ("no end",)),
        ("Le plan B\u00a0. Voilà.\u3000Il part.", "fr", ("Le plan B\u00a0. Voilà.", "Il part.")),
    ],
)
def test_sentences_are_those_of_the_language(text, language, sentences):
    assert split(text, language).sentences == sentences


def test_spaces_between_sentences_are_those_of_the_paragraph():
    made = split("  One.\t Two.  Three. \u00a0", "en", "de")
    assert made.join(["Eins.", "Zwei.", "Drei."]) == "  Eins.\t Zwei.  Drei. \u00a0"
    assert split(" \t ", "en").join([""]) == " \t "
    assert split("", "en").join([""]) == ""


def test_languages_without_spaces_between_sentences():
    assert split("你好。再见。", "zh", "en").join(["Hello.", "Goodbye."]) == "Hello. Goodbye."
    assert split("Hello. Goodbye.", "en", "zh_Hans").join(["你好。", "再见。"]) == "你好。再见。"


def test_a_sentence_without_a_translation_leaves_no_gap_behind():
    assert split("One. Two. Three.", "en", "de").join(["Eins.", "", "Drei."]) == "Eins. Drei."
    assert split("One. Two.", "en", "de").join(["", "Zwei."]) == "Zwei."


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    monkeypatch.delitem(sys.modules, "t2t_flax.extensions.shared.sentences")
    with refused("sentencex", ".[paragraphs]"):
        importlib.import_module("t2t_flax.extensions.shared.sentences")
