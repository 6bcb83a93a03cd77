"""Gold alignments of the corpus.

Links of words that mean the same, by the lexicon and by known sentences.
"""

import pytest

from tools.toy_corpus import corpus, lexicon
from tools.toy_corpus.alignments import gold


@pytest.fixture(scope="module")
def pairs():
    return [(*corpus.pair("test", i), gold("test", i)) for i in range(150)]


def linked(english, german, line, mark="-"):
    """The linked words, without punctuation."""
    sides = (
        [word.strip(".,?!") for word in english.split()],
        [word.strip(".,?!") for word in german.split()],
    )
    return {
        (sides[0][int(s)], sides[1][int(t)])
        for s, t in (x.split(mark) for x in line.split() if mark in x)
    }


def test_sure_links_are_one_to_one(pairs):
    for *_, line in pairs:
        sure = [x.split("-") for x in line.split() if "-" in x]
        assert len({s for s, _ in sure}) == len({t for _, t in sure}) == len(sure)


def test_names_are_linked_with_themselves(pairs):
    names = {name for names in lexicon.NAMES.values() for name in names}
    seen = [pair for each in pairs for pair in linked(*each) if set(pair) & names]
    assert len(seen) > 20 and all(english == german for english, german in seen)


def test_a_known_sentence():
    pair = corpus.pair("test", 7)
    assert pair[0] == "Oliver is sixty-eight years older than my colleague."
    assert linked(*pair, gold("test", 7)) == {
        ("Oliver", "Oliver"),
        ("sixty-eight", "achtundsechzig"),
        ("my", "mein"),
        ("colleague", "Kollege"),
    }
    assert ("older", "älter") in linked(*pair, gold("test", 7), "p")
    assert ("older", "Oliver") not in linked(*pair, gold("test", 7), "p")
