"""Labelled F1 against hand-computed EVALB cases and a brute-force bracket count."""

import random

import numpy as np
import pytest
from helpers.random_trees import random_tree, with_other_words

from t2t_flax.extensions.parsing.evalb import bracket_counts, brackets, f1
from t2t_flax.extensions.parsing.trees import Leaf, Node, leaves, read_trees


def tree(text):
    ((_, parsed),) = read_trees([text], "x")
    return parsed


GOLD = "(TOP (S (NP (DT this)) (VP (VBZ is) (NP (DT a) (NN test))) (. .)))"
# S 0-4, NP 0-1, VP 1-4, NP 2-4: the full stop is deleted and S ends with the last word.


@pytest.mark.parametrize("answer, matched, predicted, tags", [
    (GOLD, 4, 4, 4),
    ("(TOP (S (NP (DT this)) (VP (VBZ is) (PP (DT a) (NN test))) (. .)))", 3, 4, 4),  # a wrong label
    ("(TOP (S (NP (DT this)) (VBZ is) (NP (DT a) (NN test)) (. .)))", 3, 3, 4),  # VP missing
    ("(TOP (S (NP (DT this)) (VP (VBZ is) (NP (NP (DT a)) (NN test))) (. .)))", 4, 5, 4),  # one too many
    ("(TOP (S (NP (NN this)) (VP (VBZ is) (NP (DT a) (JJ test))) (. .)))", 4, 4, 2),  # tags do not count for F1
    ("(TOP (S (NP (DT this)) (VP (VBZ is) (NP (DT a) (NN test)) (. .))))", 4, 4, 4),  # the parent of the full stop does not matter
    ("(TOP (S (NP (DT this)) (VP (VBZ is) (NP (DT a) (NN test))) (NP (. .))))", 4, 4, 4),  # brackets around it alone do not count
    ("(TOP (S (NP (DT this)) (VP (VBZ is) (NP (DT a) (NN test))) (NN .)))", 4, 4, 4),  # deleted by the reference's tag
    ("(TOP (S (S (NP (DT this)) (VP (VBZ is) (NP (DT a) (NN test))) (. .))))", 4, 5, 4),  # the same bracket twice counts once
    ("(TOP (X (DT this) (VBZ is) (DT a) (NN test) (. .)))", 0, 1, 4),
])  # fmt: skip
def test_counts_equal_hand_computed_cases(answer, matched, predicted, tags):
    counts = bracket_counts(tree(answer), tree(GOLD)).tolist()
    assert counts == [
        matched,
        4,
        predicted,
        tags,
        4,
        int(matched == predicted == 4),
        int("(NN .)" in answer),
    ]


def test_advp_equals_prt_and_top_does_not_count():
    gold, answer = "(TOP (VP (VB give) (PRT (RP up))))", "(S1 (VP (VB give) (ADVP (RP up))))"
    assert bracket_counts(tree(answer), tree(gold)).tolist()[:3] == [2, 2, 2]
    assert brackets(tree("(TOP (TOP (NP (NN a))))"), [True]) == {("NP", 0, 1): 1}


def test_repeated_unary_brackets_count_separately():
    gold = "(TOP (NP (NP (NN a))))"
    assert bracket_counts(tree("(TOP (NP (NN a)))"), tree(gold)).tolist()[:3] == [1, 2, 1]
    assert bracket_counts(tree(gold), tree(gold)).tolist()[:3] == [2, 2, 2]


def test_f1_uses_counts_of_the_whole_set():
    """Not the mean over sentences: 4 + 1 matched of 4 + 3 gold and 5 + 2 predicted."""
    sums = np.array([4, 4, 5, 0, 0, 0]) + np.array([1, 3, 2, 0, 0, 0])
    assert f1(sums) == pytest.approx(100 * 2 * (5 / 7) * (5 / 7) / (10 / 7))


def test_trees_over_different_words_raise():
    with pytest.raises(ValueError):
        bracket_counts(tree("(TOP (NP (NN a)))"), tree("(TOP (NP (NN b)))"))


def test_brackets_equal_brute_force_spans():
    """Spans computed from the yield of each node instead of by tree traversal."""
    rng = random.Random(3)
    for _ in range(100):
        root = Node("TOP", (random_tree(rng, 1), random_tree(rng, 1)))
        root = with_other_words(root, map(str, range(1000)))
        counted = [leaf.tag not in (",", ".") for leaf in leaves(root)]
        order = [leaf.word for leaf, counts in zip(leaves(root), counted, strict=True) if counts]

        def visit(node, order=order):
            if isinstance(node, Leaf):
                return []
            span = [leaf.word for leaf in leaves(node) if leaf.word in order]
            own = (
                [(node.label, order.index(span[0]), order.index(span[-1]) + 1)]
                if span and node.label != "TOP"
                else []
            )
            return own + [bracket for child in node.children for bracket in visit(child)]

        assert sorted(brackets(root, counted).elements()) == sorted(visit(root))
