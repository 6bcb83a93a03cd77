"""Labelled bracket scores over all sentences.

They follow EVALB's rules (Sekine and Collins) and COLLINS.prm.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from t2t_flax.extensions.parsing.trees import ROOT, Leaf, Node, leaves

DELETED_TAGS = (",", ":", "``", "''", ".")
"""Tags of deleted words; brackets that contain nothing else are deleted, too."""
EQUIVALENT = {"PRT": "ADVP"}
COUNTS = ("matched", "gold", "predicted", "correct_tags", "words", "exact", "skipped_by_evalb")
METHOD = (
    "EVALB's rules with COLLINS.prm: labelled brackets over words, without TOP and part-of-speech"
    " tags, punctuation (by the reference's tags) deleted, ADVP and PRT equal; precision, recall"
    " and F1 over the whole set. EVALB itself skips sentences in which prediction and reference"
    " disagree on which words are punctuation; here they are included, and evalb_f1 is F1 without"
    " them."
)
EXACT_MATCH = "all brackets match; tags and punctuation are not compared"


def bracket_counts(prediction: Node, reference: Node) -> np.ndarray:
    """Return the `COUNTS` of one sentence, int64 [7].

    They come from two trees over the same words. skipped_by_evalb: 1 if EVALB would skip the
    sentence, because the tags of the two trees delete different words. Raises ValueError if the
    words differ.
    """
    predicted, gold = leaves(prediction), leaves(reference)
    if [leaf.word for leaf in predicted] != [leaf.word for leaf in gold]:
        raise ValueError("the trees are over different words")
    counted = [leaf.tag not in DELETED_TAGS for leaf in gold]
    a, b = brackets(prediction, counted), brackets(reference, counted)
    matched = sum((a & b).values())
    pairs = zip(predicted, gold, counted, strict=True)
    tags = sum(x.tag == y.tag for x, y, counts in pairs if counts)
    skipped = counted != [leaf.tag not in DELETED_TAGS for leaf in predicted]
    return np.array(
        [matched, sum(b.values()), sum(a.values()), tags, sum(counted), a == b, skipped], np.int64
    )


def brackets(tree: Node, counted: Sequence[bool]) -> Counter[tuple[str, int, int]]:
    """Count (label, first word, last word + 1) of every constituent.

    Positions are among the counted words.
    """
    before = np.concatenate([[0], np.cumsum(counted)]).tolist()
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
    """Return F1 in percent from `COUNTS` summed over sentences."""
    matched, gold, predicted = (float(n) for n in sums[:3])
    return 200.0 * matched / (gold + predicted) if gold + predicted else 100.0
