"""Utilities of a candidate given a reference: sentence scores of metrics, 0 to 100."""

import collections
import functools
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from t2t_flax.errors import require

_ORDERS = 4
"""The longest n-grams of BLEU."""


class Utility(Protocol):
    """FAMILY: the metrics, by their names in records, that share its bias: they score a translation that was chosen by it too
    well. signature: of the metric, as in sacreBLEU.
    """

    FAMILY: tuple[str, ...]
    signature: str

    def pairwise(self, hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """float64 [hypotheses, references]: the score of each with each."""

    def aggregated(self, hypotheses: Sequence[str], references: Sequence[str], counts: np.ndarray) -> np.ndarray:
        """float64 [hypotheses]: the score with one reference whose counts of n-grams are the mean of all (arXiv 2402.04251).
        counts: int [references], how often each occurs.
        """


class Chrf:
    """Sentence chrF, as sacreBLEU's."""

    FAMILY = ("chrf", "chrf++")

    def __init__(self) -> None:
        from sacrebleu.metrics import CHRF

        require("fastchrf", "mbr", "the utility chrf")
        self.signature = _signature(CHRF())

    def pairwise(self, hypotheses, references):
        """See `Utility`."""
        import fastchrf

        return np.array(fastchrf.pairwise_chrf([list(hypotheses)], [list(references)])[0], np.float64)

    def aggregated(self, hypotheses, references, counts):
        """See `Utility`."""
        import fastchrf

        repeated = np.repeat(np.array(references, object), counts).tolist()
        return np.array(fastchrf.aggregate_chrf([list(hypotheses)], [repeated])[0], np.float64)


class Bleu:
    """Sentence BLEU, as sacreBLEU's with its defaults for sentences (effective order, exponential smoothing). tokenize: the name
    of sacreBLEU's tokenizer.
    """

    FAMILY = ("sacrebleu", "tokenized_bleu", "paper_bleu")

    def __init__(self, tokenize: str = "13a") -> None:
        from sacrebleu.metrics import BLEU

        self._metric = BLEU(effective_order=True, tokenize=tokenize)
        self.signature = _signature(self._metric)

    def pairwise(self, hypotheses, references):
        """See `Utility`."""
        sides = [[self._counts(text) for text in texts] for texts in (hypotheses, references)]
        return np.array([[self._score(h, r) for r in sides[1]] for h in sides[0]], np.float64)

    def aggregated(self, hypotheses, references, counts):
        """See `Utility`."""
        mean: list[dict[tuple[str, ...], float]] = [collections.defaultdict(float) for _ in range(_ORDERS)]
        for text, weight in zip(references, counts / counts.sum(), strict=True):
            for order, ngrams in zip(mean, self._counts(text), strict=True):
                for ngram, count in ngrams.items():
                    order[ngram] += weight * count
        return np.array([self._score(self._counts(text), mean) for text in hypotheses], np.float64)

    def _score(self, hypothesis: "_Counts", reference: "_Counts") -> float:
        correct = [
            sum(min(count, theirs.get(ngram, 0)) for ngram, count in ours.items())
            for ours, theirs in zip(hypothesis, reference, strict=True)
        ]
        total = [sum(counts.values()) for counts in hypothesis]
        length, expected = total[0], sum(reference[0].values())  # which may be a fraction, unlike sacreBLEU's
        brevity = math.exp(1 - expected / length) if 0 < length < expected else 1.0
        return (
            brevity * self._metric.compute_bleu(correct, total, 1, 1, smooth_method="exp", effective_order=True).score
        )

    @functools.lru_cache(maxsize=2**14)  # noqa: B019 - one object a process
    def _counts(self, text: str) -> "_Counts":
        tokens = self._metric._preprocess_segment(text.rstrip()).split()
        return [
            collections.Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
            for n in range(1, _ORDERS + 1)
        ]


_Counts = Any
"""For each order the n-grams and how often they occur, or do on average."""


def _signature(metric: Any) -> str:
    metric.num_refs = 1
    return str(metric.get_signature())


UTILITIES = {"chrf": Chrf, "bleu": Bleu}
