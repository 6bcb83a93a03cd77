"""Markup, URLs and placeholders through real translations.

`translate --tags`, and documents of HTML for the server.
"""

import html
import re

import pytest
from helpers.refusals import refused, refused_command

from t2t_flax.__main__ import main
from t2t_flax.data.sources import toy
from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.alignments.outputs import HtmlDocument

RUN = "pretrained:toy"
KEYS = ["--config.alignments.layer=2", "--config.mesh.cpu_devices=1"]
SOURCES = [source for source, _ in toy.pairs("test", 40)]


def translated(capsys, tmp_path, lines, *flags):
    (tmp_path / "lines").write_text("".join(line + "\n" for line in lines))
    capsys.readouterr()
    assert main(["translate", f"--workdir={RUN}", *KEYS, f"--input={tmp_path}/lines", *flags]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.fixture(scope="module")
def run():
    return load(RUN, overrides={"alignments.layer": "2"})


@pytest.mark.smoke
def test_a_word_keeps_its_tag_where_the_word_order_differs(tmp_path, capsys):
    lines = [
        "On Monday, my <b>uncle</b> meets the farmer.",
        "Does the <a href='x?a&amp;b'>market</a> open on the weekend?",
        "The <i>pillow</i> that the <b>lawyer</b> described nine weeks ago is new.<br>",
    ]
    out = translated(capsys, tmp_path, lines, "--tags=html")
    assert out[0] == "Am Montag trifft mein <b>Onkel</b> den Bauern."
    assert "<a href='x?a&amp;b'>Markt</a>" in out[1]
    assert "<i>Kissen</i>," in out[2] and "<b>Anwalt</b>" in out[2] and out[2].endswith(".<br>")


def test_the_words_are_those_of_the_line_without_markup(tmp_path, capsys):
    marked = [re.sub(r"(\w+)( \w+)", r"<b>\1</b>\2", source, count=2) for source in SOURCES[:12]]
    plain = translated(capsys, tmp_path, SOURCES[:12])
    out = translated(capsys, tmp_path, marked, "--tags=html")
    assert [html.unescape(re.sub("<[^>]+>", "", line)) for line in out] == plain
    assert all(line.count("<b>") >= 1 and line.count("<b>") == line.count("</b>") for line in out)


def test_elements_within_a_word_are_all_in_the_output(tmp_path, capsys):
    lines = [
        "It is late.",
        "Press <u>Ctrl</u>+<u>Alt</u>+<u>C</u>.",
        "<kbd>Ctrl</kbd>+<kbd>C</kbd>",
        "<p>My <code>dog = 1</code>.</p>",
    ]
    out = translated(capsys, tmp_path, lines, "--tags=html")
    assert len(out) == 4 and out[1].count("<u>") == out[1].count("</u>") == 3
    assert out[2] == lines[2] and "<code>dog = 1</code>" in out[3]


def test_a_line_stays_a_line_where_a_character_reference_is_a_newline(tmp_path, capsys):
    (out,) = translated(capsys, tmp_path, ["&#10;<b>It is late.</b>&NewLine;"], "--tags=html")
    assert out.startswith("&#10;<b>") and out.endswith("</b>&#10;")


@pytest.mark.parametrize("flag", ["--tags=html", "--tags=text", "--alignments=hard"])
def test_a_head_that_cannot_be_chosen_is_an_error_of_the_command(tmp_path, flag):
    (tmp_path / "lines").write_text("It is late.\n<b>It is late.</b>\n")
    words = [
        "translate",
        f"--workdir={RUN}",
        KEYS[1],
        f"--input={tmp_path}/lines",
        f"--output={tmp_path}/out",
    ]
    refused_command(
        [*words, "--config.data.valid=none.en,none.de", flag], "config.alignments.layer", "none.en"
    )
    assert not (tmp_path / "out").exists()


def test_lines_without_markup_are_translated_as_ever(tmp_path, capsys):
    plain = translated(capsys, tmp_path, [*SOURCES[:8], ""], "--n-best=2", "--scores")
    assert (
        translated(capsys, tmp_path, [*SOURCES[:8], ""], "--n-best=2", "--scores", "--tags=text")
        == plain
    )
    assert (
        translated(capsys, tmp_path, [*SOURCES[:8], ""], "--n-best=2", "--scores", "--tags=html")
        == plain
    )


def test_urls_and_placeholders_arrive_as_they_were(tmp_path, capsys):
    lines = [
        "The boy paid {0} for the knife.",
        "I work at https://example.org/a?b=1 today.",
        "My name is %1$s.",
    ]
    for form in ("text", "html"):
        out = translated(capsys, tmp_path, lines, f"--tags={form}")
        assert ["{0}" in out[0], "https://example.org/a?b=1" in out[1], "%1$s" in out[2]] == [
            True
        ] * 3


DOCUMENT = """<!DOCTYPE html>
<html><head><title>It is late.</title><style>p { color: red }</style></head>
<body class="x"><h1>The <em>hospital</em> is ugly.</h1>
<p>I have <b>milk</b>.<br>Robert &amp; Anna needed him.</p>
<script>var a = "It is late." < 1;</script><!-- It is late. -->
<ul><li>Is this water loud?</li><li></li></ul><code translate="no">It is late.</code>
</body></html>
"""


def test_a_document_is_translated_block_by_block(run):
    document = HtmlDocument(DOCUMENT)
    assert document.lines == [
        "It is late.",
        "The hospital is ugly.",
        "I have milk.",
        "Robert & Anna needed him.",
        "Is this water loud?",
    ]
    same = document.translated(run, document.lines, document.lines)
    assert re.sub(r"\s+", " ", html.unescape(re.sub("<[^>]+>", "|", same))) == re.sub(
        r"\s+", " ", html.unescape(re.sub("<[^>]+>", "|", DOCUMENT))
    ), "without translating, the document stays"
    texts = [translation.text for translation in run.translate(document.lines)]
    out = document.translated(run, document.lines, texts)
    assert "<em>Krankenhaus</em>" in out and "<b>Milch</b>." in out and "Robert hat " in out
    for kept in (
        "<!DOCTYPE html>",
        '<body class="x">',
        "p { color: red }",
        '"It is late." < 1',
        "<!-- It is late. -->",
    ):
        assert kept in out
    assert '<code translate="no">It is late.</code>' in out


@pytest.mark.parametrize(
    "text", ["", " ", "<p></p>", "no tags", "a <b>", "</p>", "<script>x", "<!--"]
)
def test_any_text_is_a_document(run, text):
    document = HtmlDocument(text)
    assert isinstance(document.translated(run, document.lines, document.lines), str)


def test_other_tasks_have_no_alignments(run):
    from t2t_flax.extensions.alignments.attention import require_translation

    class Parsing:
        class config:  # noqa: N801
            class data:  # noqa: N801
                task = "parsing"

    with refused("data.task", "parsing"):
        require_translation(Parsing)
