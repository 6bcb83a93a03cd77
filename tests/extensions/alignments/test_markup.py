"""HTML, URLs and placeholders around translated words.

Nothing is lost or doubled, whatever is aligned to what.
"""

import collections
import html.parser
import random

import numpy as np
import pytest
from helpers.tracing import traced
from hypothesis import example, given
from hypothesis import strategies as st

from t2t_flax.extensions.alignments import markup
from t2t_flax.extensions.alignments.markup import (
    PROTECTED,
    Event,
    Fragment,
    aligned,
    carried_over,
    missing,
    parse,
    restored,
)
from t2t_flax.extensions.alignments.outputs import HtmlDocument

WORDS = st.sampled_from("red dog. (big) house, ok! a&b 3<4 x".split())
EMPTY = st.sampled_from(['<img src="a.png">', "<x/>", "<!-- c -->", "<b></b>", "<wbr>"])


def _inside(children):
    tags = st.sampled_from(
        [("<b>", "</b>"), ("<i>", "</i>"), ('<a href="?a=1&amp;b">', "</a>"), ("<Foo>", "</Foo>")]
    )
    return st.tuples(tags, st.lists(children, min_size=1, max_size=4)).map(
        lambda x: f"{x[0][0]}{' '.join(x[1])}{x[0][1]}"
    )


ITEMS = st.recursive(WORDS.map(lambda word: html.escape(word)) | EMPTY, _inside, max_leaves=8)
LINES = st.lists(ITEMS, max_size=5).map(" ".join)
JOINED = st.lists(ITEMS, max_size=5).map("".join)
"""Elements without spaces between them: several in a word."""
TRANSLATIONS = st.lists(
    st.sampled_from("rot Hund. (groß) Haus, ja! c&d <5".split()), max_size=6
).map(" ".join)


class Checker(html.parser.HTMLParser):
    """Fails for tags that are not nested properly; collects the text and the tags."""

    VOID = ("img", "wbr")

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.text, self.open, self.tags = "", [], collections.Counter()
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags[self.get_starttag_text()] += 1
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags[self.get_starttag_text()] += 1

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag

    def handle_comment(self, data):
        self.tags["comment"] += 1

    def handle_data(self, data):
        self.text += data


def fragment_of(line):
    return Fragment(parse(line))


def shape(fragment):
    """What each word is in, and what stands before it."""
    return (
        fragment.words,
        [[element.start for element in stack] for stack in fragment.stacks],
        [(piece.raw, piece.word) for piece in fragment.pieces],
    )


@given(LINES)
@example("A <b>red</b> <i>big <b>dog</b></i>.")
@example("(<b>big</b>) house, <b>dog.</b> <b></b> x <x/>")
def test_the_same_words_get_the_same_markup(line):
    fragment = fragment_of(line)
    out = carried_over(fragment, fragment.text, np.eye(len(fragment.words), dtype=np.float32))
    assert shape(fragment_of(out)) == shape(fragment)
    assert Checker(out).tags == Checker(line).tags


@given(LINES | JOINED, TRANSLATIONS, st.randoms(use_true_random=False))
@example("Press <u>Ctrl</u>+<u>Alt</u>+<u>C</u>.", "Drücken Sie x", random.Random(0))
@example("<i>aaaa<b>b c</b>dddd e</i>", "z y x", random.Random(1))
@example("<i>" * 100 + "red" + "</i>" * 100, "rot", random.Random(0))
def test_nothing_is_lost_and_all_is_nested_for_any_alignment(line, translation, draws):
    fragment = fragment_of(line)
    size = len(translation.split()), len(fragment.words)
    weights = np.array([draws.random() for _ in range(size[0] * size[1])], np.float32).reshape(size)
    if not fragment.words:
        translation, weights = "", np.zeros((0, 0), np.float32)
    before, after = Checker(line), Checker(carried_over(fragment, translation, weights))
    assert after.text.split() == translation.split()
    assert before.tags.keys() == after.tags.keys()
    for tag in ('<img src="a.png">', "<x/>", "comment", "<wbr>"):
        assert after.tags[tag] == before.tags[tag], "markup without words is not repeated"


LITERAL = ["code", "kbd", "samp", "var", "pre", "textarea"]


@pytest.mark.parametrize("name", LITERAL)
def test_code_is_left_as_it_is_unless_it_is_to_be_translated(name):
    kept = f"<{name}>dog  =  1 &lt;</{name}>"
    line = f"A {kept} dog."
    assert fragment_of(line).words == ["A", "dog."]
    assert kept in carried_over(fragment_of(line), "Ein Hund.", np.eye(2, dtype=np.float32))
    for attribute in ('translate="yes"', "translate=YES"):
        assert "=" in fragment_of(line.replace(f"<{name}", f"<{name} {attribute}")).words
    assert fragment_of(line.replace(name, "b")).words == ["A", "dog", "=", "1", "<", "dog."]
    for attribute in ('translate="no"', "translate='NO'", 'class="x notranslate"'):
        assert fragment_of(line.replace(name, "b").replace("<b", f"<b {attribute}")).words == [
            "A",
            "dog.",
        ]


def test_blocks_of_code_divide_a_document():
    document = HtmlDocument("A dog.<pre>x  = 1</pre>A <code>y</code> cat.<script>z</script>")
    assert document.lines == ["A dog.", "A cat."]


def test_keys_that_signs_join_stay_together():
    line = "Press <kbd>Ctrl</kbd>+<kbd>Alt</kbd> now."
    out = carried_over(fragment_of(line), "Jetzt drücken.", np.eye(2, dtype=np.float32)[::-1])
    assert "<kbd>Ctrl</kbd>+<kbd>Alt</kbd>" in out


REPEATED = [
    "<a ", "<", "<!", "<!--", "</", "<?", "<![CDATA[", "&", "<a x='", "<a x='>' ", "<b>", "<b>x", "<b>x ", "<b>x</b>",
    "<b>x</b> ", "</b>", "<b></i>", "<p translate=no>", "<code>", "<script>", "<textarea>", "x <wbr>", "a@", "{}",
]  # fmt: skip


def steps_of(function, *arguments):
    """Steps of the interpreter in a call."""
    steps = 0

    def trace(frame, event, _):
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return trace

    traced(trace, function, *arguments)
    return steps


@pytest.mark.parametrize("part", REPEATED)
@pytest.mark.parametrize("end", ["", "x>", "</b>" * 40])
def test_steps_grow_as_the_text_does(part, end, monkeypatch):
    failed, tag = [], markup._TAG

    class Counted:
        def match(self, text, at):
            found = tag.match(text, at)
            failed.extend([at] if found is None and text[at + 1 : at + 2].isalpha() else [])
            return found

    monkeypatch.setattr(markup, "_TAG", Counted())

    def work(count):
        fragment = fragment_of(part * count + end)
        words = fragment.words[:40]
        weights = np.ones((len(words), len(fragment.words)), np.float32)
        carried_over(fragment, " ".join(words), weights)

    few, many = (steps_of(work, count) for count in (150, 300))
    assert many < 2.3 * few + 500
    assert len(failed) <= 2, "a tag that never ends is read once in each text"


@given(st.text(alphabet="ab <>/!-\"='&;#x", max_size=40))
@example("<b>a</i></b> </b> <i>")
@example("<b> a <i> b </b> c </i>")
@example("foo<b>b</b>ar <script>a < b</script> <p translate=no>x</p>")
@example("a <b")
@example("a <![if x]> b <![endif]> c")
@example("a <![x[ b ]]> c <![ d <![1[")
def test_malformed_html_keeps_its_words_and_its_tags(line):
    fragment = fragment_of(line)
    out = carried_over(fragment, fragment.text, np.eye(len(fragment.words), dtype=np.float32))
    again = fragment_of(out)
    assert again.words == fragment.words
    kinds = [
        collections.Counter(e.kind for e in parse(text) if e.kind != "text") for text in (line, out)
    ]
    assert kinds[0] == kinds[1]


def weights_of(links, targets, sources):
    weights = np.zeros((targets, sources), np.float32)
    for source, target in links:
        weights[target, source] = 1.0
    return weights


@pytest.mark.parametrize(
    ("line", "translation", "links", "expected"),
    [
        (
            "He has <b>bought</b> it.",
            "Er hat es gekauft.",
            [(0, 0), (1, 1), (3, 2), (2, 3)],
            "Er hat es <b>gekauft</b>.",
        ),
        ("a <b>b</b> c", "y x y", [(1, 0), (0, 1), (1, 2)], "<b>y</b> x <b>y</b>"),
        ("<i>red <b>dog</b></i> x", "hund rot", [(1, 0), (0, 1)], "<i><b>hund</b> rot</i>"),
        ("one <br> two", "zwei eins", [(1, 0), (0, 1)], "<br>zwei eins"),
        (
            "Mr &amp; <a href='x'>Mrs</a>",
            "Herr & Frau",
            [(0, 0), (1, 1), (2, 2)],
            "Herr &amp; <a href='x'>Frau</a>",
        ),
        ("<b>a</b> b", "y z", [(1, 0), (1, 1)], "<b>y</b> z"),
    ],
)
def test_words_take_the_tags_of_what_they_are_aligned_to(line, translation, links, expected):
    fragment = fragment_of(line)
    weights = weights_of(links, len(translation.split()), len(fragment.words))
    assert carried_over(fragment, translation, weights) == expected


ITEMS_KEPT = ["{0}", "https://a.org/x?y=1", "%1$s", "${name}", "me@x.org", "{{a.b}}", "%(n)d"]


@pytest.mark.parametrize("item", ITEMS_KEPT)
def test_urls_and_placeholders_are_recognised_without_punctuation(item):
    for text in (item, f"({item})", f"{item}.", f"see {item}, or"):
        assert PROTECTED.findall(text) == [item]


@given(
    st.lists(st.sampled_from([*ITEMS_KEPT, "word", "a"]), max_size=6),
    TRANSLATIONS,
    st.randoms(use_true_random=False),
)
def test_each_url_and_placeholder_is_in_the_translation(sources, translation, random):
    targets = translation.split()
    weights = np.array([random.random() for _ in range(len(targets) * len(sources))], np.float32)
    weights = weights.reshape(len(targets), len(sources))
    out = " ".join(
        t.text for t in restored(sources, aligned(targets, weights) if sources else [], weights)
    )
    for item in ITEMS_KEPT:
        assert out.count(item) >= sources.count(item)
    assert not missing(" ".join(sources), out)


def test_a_damaged_placeholder_is_replaced_where_it_is_aligned():
    fragment = Fragment([Event("text", "Delete {0} files?")])
    weights = weights_of([(1, 0), (2, 1), (0, 2)], 3, 3)
    for damaged in ("0", "\u2047", "{ 0"):
        targets = aligned([damaged, "Dateien", "löschen?"], weights)
        assert [t.text for t in restored(fragment.words, targets, weights)] == [
            "{0}",
            "Dateien",
            "löschen?",
        ]
