"""Labelled bracket scores by the rules of EVALB (Sekine and Collins) with its COLLINS.prm, but over all sentences."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from t2t_flax.tasks.trees import ROOT, Leaf, Node, leaves

DELETED_TAGS = (",", ":", "``", "''", ".")
"""Tags whose words do not count; so brackets that hold nothing else do not, either."""
EQUIVALENT = {"PRT": "ADVP"}
NAMES = ("matched", "gold", "found", "tags right", "words", "exact", "refused")
HOW = (
    "EVALB's rules with COLLINS.prm: labelled brackets over words, TOP and parts of speech left out, punctuation (by the "
    "reference's tags) deleted, ADVP and PRT the same; precision, recall and F1 over the whole set. EVALB itself leaves out "
    "of all sums the sentences whose punctuation the answer tags as something else, or the reverse; here none is left out, "
    "and evalb_f1 is F1 without them."
)
EXACT = "brackets all right; tags and punctuation are not looked at"


def bracket_counts(answer: Node, reference: Node) -> np.ndarray:
    """int64 [7], `NAMES`: of one sentence, both trees over the same words; refused: whether EVALB would leave it out, as
    the two trees' own tags delete different words. Raises ValueError where the words differ.
    """
    found, gold = leaves(answer), leaves(reference)
    if [leaf.word for leaf in found] != [leaf.word for leaf in gold]:
        raise ValueError("the trees are over different words")
    kept = [leaf.tag not in DELETED_TAGS for leaf in gold]
    a, b = brackets(answer, kept), brackets(reference, kept)
    matched = sum((a & b).values())
    tags = sum(x.tag == y.tag for x, y, keep in zip(found, gold, kept, strict=True) if keep)
    refused = kept != [leaf.tag not in DELETED_TAGS for leaf in found]
    return np.array([matched, sum(b.values()), sum(a.values()), tags, sum(kept), a == b, refused], np.int64)


def brackets(tree: Node, kept: Sequence[bool]) -> Counter[tuple[str, int, int]]:
    """(label, first word, last word + 1) of every constituent, words counted among those that are kept."""
    before = np.concatenate([[0], np.cumsum(kept)]).tolist()
    out: Counter[tuple[str, int, int]] = Counter()

    def visit(tree: Node | Leaf, start: int) -> int:
        if isinstance(tree, Leaf):
            return start + 1
        end = start
        for child in tree.children:
            end = visit(child, end)
        if tree.label != ROOT and before[end] > before[start]:
            out[EQUIVALENT.get(tree.label, tree.label), before[start], before[end]] += 1
        return end

    visit(tree, 0)
    return out


def f1(sums: np.ndarray) -> float:
    """F1 in percent of counts that are summed over sentences."""
    matched, gold, found = (float(n) for n in sums[:3])
    return 200.0 * matched / (gold + found) if gold + found else 100.0
