"""Which candidate has the highest expected utility."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from t2t_flax.extensions.mbr.utilities import Question, Utility

METHODS = ("pairwise", "aggregate", "aggregate_to_fine")


@dataclasses.dataclass(frozen=True)
class Decision:
    """index: of the chosen candidate, the first of equal ones. utility: expected, of its last exact or aggregated scoring."""

    index: int
    utility: float


def decide(questions: Sequence[Question], utility: Utility, method: str = "pairwise", fine: int = 20) -> list[Decision]:
    """For each source the candidate with the highest mean utility over its references, which repeat as often as they were
    sampled.

    method: "pairwise" scores each candidate with each reference; "aggregate" with the mean of all references, in linear time;
    "aggregate_to_fine" the `fine` best by that pairwise. Equal texts are scored once. Raises ValueError without candidates or
    references.
    """
    decisions: dict[int, Decision] = {}
    asked: dict[int, Question] = {}
    shares: dict[int, np.ndarray] = {}
    for i, (candidates, references, source) in enumerate(questions):
        hypotheses = list(dict.fromkeys(candidates))
        texts, counts = np.unique(np.array(references, object), return_counts=True)
        if method != "pairwise":
            scores = utility.aggregated(hypotheses, list(texts), counts)
            if method == "aggregate":
                best = int(np.argmax(scores))
                decisions[i] = Decision(candidates.index(hypotheses[best]), float(scores[best]))
                continue
            hypotheses = [hypotheses[n] for n in np.sort(np.argsort(-scores, kind="stable")[:fine])]
        asked[i], shares[i] = Question(hypotheses, list(texts), source), counts / counts.sum()
    for (i, question), scores in zip(asked.items(), utility.pairwise(list(asked.values())), strict=True):
        scores = scores @ shares[i]
        best = int(np.argmax(scores))
        decisions[i] = Decision(questions[i].candidates.index(question.candidates[best]), float(scores[best]))
    return [decisions[i] for i in range(len(questions))]
