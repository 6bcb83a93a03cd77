"""Pharaoh's form, and alignment errors against a definition by sets and against bounds."""

import numpy as np
import pytest
from helpers.refusals import refused
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from t2t_flax.extensions.alignments.links import (
    Gold,
    check_words,
    errors,
    hard_links,
    links_from,
    parse_gold,
    pharaoh,
    soft,
)

LINKS = st.frozensets(st.tuples(st.integers(0, 5), st.integers(0, 5)))
WEIGHTS = arrays(
    np.float32, st.tuples(st.integers(1, 5), st.integers(1, 5)), elements=st.floats(0, 1, width=32)
)


@given(LINKS, LINKS, st.integers(0, 1))
def test_gold_lines_are_read_as_they_are_written(sure, possible, first):
    """From 0 or from 1, in any order; sure links are possible."""
    words = [f"{s + first}-{t + first}" for s, t in sure] + [
        f"{s + first}p{t + first}" for s, t in possible
    ]
    assert parse_gold(" ".join(words), "gold", first) == Gold(sure, sure | possible)
    assert parse_gold(pharaoh(sure), "gold").sure == sure


@pytest.mark.parametrize("line", ["0-", "0-0,1-1", "a-b", "0-0-0", "-1-0", "0 - 0"])
def test_other_text_is_no_link(line):
    with refused("gold.txt", "line 3"):
        parse_gold(line, "gold.txt line 3")


def test_words_are_counted_from_one_where_the_file_does():
    with refused("line 1", "0-1"):
        parse_gold("0-1", "line 1", 1)


def test_links_beyond_the_words_of_a_pair_are_refused():
    check_words(frozenset({(1, 2)}), 2, 3, "line 1")
    for pair, name in (((2, 0), "2-0"), ((0, 3), "0-3")):
        with refused("line 1", name):
            check_words(frozenset({pair}), 2, 3, "line 1")


@given(st.lists(st.tuples(LINKS, LINKS, LINKS), min_size=1))
def test_errors_are_those_of_the_definition(pairs):
    alignments = [a for a, _, _ in pairs]
    gold = [Gold(s, s | p) for _, s, p in pairs]

    def numbered(sets):
        return {(i, link) for i, links in enumerate(sets) for link in links}

    a, s, p = (
        numbered(alignments),
        numbered(g.sure for g in gold),
        numbered(g.possible for g in gold),
    )
    if not s:
        with refused("gold"):
            errors(alignments, gold)
        return
    found = errors(alignments, gold)
    assert found.recall == len(a & s) / len(s) and 0 <= found.error_rate <= 1
    assert found.precision == (len(a & p) / len(a) if a else 0)
    assert found.error_rate == pytest.approx(1 - (len(a & s) + len(a & p)) / (len(a) + len(s)))
    between = errors(
        [g.sure | (g.possible & a) for g, a in zip(gold, alignments, strict=True)], gold
    )
    assert between.error_rate == 0, "all sure links and some possible ones are no error"


@given(WEIGHTS)
def test_hard_links_are_the_heaviest_of_each_target_word(weights):
    links = hard_links(weights)
    assert len(links) == sum(row.any() for row in weights)
    for source, target in links:
        assert weights[target, source] == weights[target].max()


@given(WEIGHTS, st.floats(0.01, 1))
def test_a_lower_threshold_keeps_the_links_of_a_higher_one(weights, threshold):
    links = links_from(weights, threshold)
    assert all(weights[t, s] >= threshold for s, t in links) and links <= links_from(
        weights, threshold / 2
    )


@given(WEIGHTS)
def test_soft_alignments_are_the_weights_of_all_source_words_for_each_target_word(weights):
    read = [[float(x) for x in word.split(",")] for word in soft(weights).split(" ")]
    np.testing.assert_allclose(read, weights, rtol=0, atol=6e-5)
