"""Which candidate has the highest expected utility."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from t2t_flax.extensions.mbr.utilities import Utility

METHODS = ("pairwise", "aggregate", "aggregate_to_fine")


@dataclasses.dataclass(frozen=True)
class Decision:
    """index: of the chosen candidate, the first of equal ones. utility: expected, of its last exact or aggregated scoring."""

    index: int
    utility: float


def decide(
    candidates: Sequence[str], references: Sequence[str], utility: Utility, method: str = "pairwise", fine: int = 20
) -> Decision:
    """The candidate with the highest mean utility over the references, which repeat as often as they were sampled.

    method: "pairwise" scores each candidate with each reference; "aggregate" with the mean of all references, in linear time;
    "aggregate_to_fine" the `fine` best by that pairwise. Equal texts are scored once. Raises ValueError without candidates or
    references.
    """
    first: dict[str, int] = {}
    for index, text in enumerate(candidates):
        first.setdefault(text, index)
    hypotheses = list(first)
    texts, counts = np.unique(np.array(references, object), return_counts=True)
    if method != "pairwise":
        scores = utility.aggregated(hypotheses, list(texts), counts)
        if method == "aggregate" or len(hypotheses) == 1:
            best = int(np.argmax(scores))
            return Decision(first[hypotheses[best]], float(scores[best]))
        kept = np.sort(np.argsort(-scores, kind="stable")[:fine])
        hypotheses = [hypotheses[i] for i in kept]
    scores = utility.pairwise(hypotheses, list(texts)) @ (counts / counts.sum())
    best = int(np.argmax(scores))
    return Decision(first[hypotheses[best]], float(scores[best]))
