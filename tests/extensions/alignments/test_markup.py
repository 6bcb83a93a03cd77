"""HTML, URLs and placeholders around translated words: nothing is lost or doubled, whatever is aligned to what."""

import collections
import html.parser

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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

WORDS = st.sampled_from("red dog. (big) house, ok! a&b 3<4 x".split())
EMPTY = st.sampled_from(['<img src="a.png">', "<x/>", "<!-- c -->", "<b></b>", "<wbr>"])


def _inside(children):
    tags = st.sampled_from([("<b>", "</b>"), ("<i>", "</i>"), ('<a href="?a=1&amp;b">', "</a>"), ("<Foo>", "</Foo>")])
    return st.tuples(tags, st.lists(children, min_size=1, max_size=4)).map(
        lambda x: f"{x[0][0]}{' '.join(x[1])}{x[0][1]}"
    )


ITEMS = st.recursive(WORDS.map(lambda word: html.escape(word)) | EMPTY, _inside, max_leaves=8)
LINES = st.lists(ITEMS, max_size=5).map(" ".join)
TRANSLATIONS = st.lists(st.sampled_from("rot Hund. (groß) Haus, ja! c&d <5".split()), max_size=6).map(" ".join)


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


@given(LINES, TRANSLATIONS, st.randoms(use_true_random=False))
def test_nothing_is_lost_and_all_is_nested_for_any_alignment(line, translation, random):
    fragment = fragment_of(line)
    size = len(translation.split()), len(fragment.words)
    weights = np.array([random.random() for _ in range(size[0] * size[1])], np.float32).reshape(size)
    if not fragment.words:
        translation, weights = "", np.zeros((0, 0), np.float32)
    before, after = Checker(line), Checker(carried_over(fragment, translation, weights))
    assert after.text.split() == translation.split()
    assert before.tags.keys() == after.tags.keys()
    for tag in ('<img src="a.png">', "<x/>", "comment", "<wbr>"):
        assert after.tags[tag] == before.tags[tag], "markup without words is not repeated"


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
    kinds = [collections.Counter(e.kind for e in parse(text) if e.kind != "text") for text in (line, out)]
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
        ("Mr &amp; <a href='x'>Mrs</a>", "Herr & Frau", [(0, 0), (1, 1), (2, 2)], "Herr &amp; <a href='x'>Frau</a>"),
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
    st.lists(st.sampled_from([*ITEMS_KEPT, "word", "a"]), max_size=6), TRANSLATIONS, st.randoms(use_true_random=False)
)
def test_each_url_and_placeholder_is_in_the_translation(sources, translation, random):
    targets = translation.split()
    weights = np.array([random.random() for _ in range(len(targets) * len(sources))], np.float32)
    weights = weights.reshape(len(targets), len(sources))
    out = " ".join(t.text for t in restored(sources, aligned(targets, weights) if sources else [], weights))
    for item in ITEMS_KEPT:
        assert out.count(item) >= sources.count(item)
    assert not missing(" ".join(sources), out)


def test_a_damaged_placeholder_is_replaced_where_it_is_aligned():
    fragment = Fragment([Event("text", "Delete {0} files?")])
    weights = weights_of([(1, 0), (2, 1), (0, 2)], 3, 3)
    for damaged in ("0", "\u2047", "{ 0"):
        targets = aligned([damaged, "Dateien", "löschen?"], weights)
        assert [t.text for t in restored(fragment.words, targets, weights)] == ["{0}", "Dateien", "löschen?"]
