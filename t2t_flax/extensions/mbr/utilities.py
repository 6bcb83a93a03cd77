"""Utilities of a candidate given a reference: sentence scores of metrics; higher is better."""

import collections
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from t2t_flax.config import Config
from t2t_flax.errors import require
from t2t_flax.registry import METRICS
from t2t_flax.tasks import Predictions

_RELATIVES = (("comet", "kiwi"),)
"""Metrics of extensions that share their bias: both are trained on the same judgements, from the same language model."""
_ORDERS = 4
"""The longest n-grams of BLEU."""


class Question(NamedTuple):
    """The candidates of a source, what they are compared with, and the source, where it is known."""

    candidates: Sequence[str]
    references: Sequence[str]
    source: str = ""


class Utility(Protocol):
    """FAMILY: the metrics, by their names in records, that share its bias: they score a translation that was chosen by it too
    well. signature: of the metric, as in sacreBLEU. reads_sources: whether questions need theirs.
    """

    FAMILY: tuple[str, ...]
    signature: str
    reads_sources: bool

    def pairwise(self, questions: Sequence[Question]) -> Iterable[np.ndarray]:
        """For each question float64 [candidates, references]: the score of each with each."""

    def aggregated(self, hypotheses: Sequence[str], references: Sequence[str], counts: np.ndarray) -> np.ndarray:
        """float64 [hypotheses]: the score with one reference whose counts of n-grams are the mean of all (arXiv 2402.04251).
        counts: int [references], how often each occurs.
        """


class Chrf:
    """Sentence chrF, as sacreBLEU's."""

    FAMILY = ("chrf", "chrf++")
    reads_sources = False

    def __init__(self) -> None:
        from sacrebleu.metrics import CHRF

        require("fastchrf", "mbr", "the utility chrf")
        self.signature = _signature(CHRF())

    def pairwise(self, questions):
        """See `Utility`."""
        import fastchrf

        for candidates, references, _ in questions:
            yield np.array(fastchrf.pairwise_chrf([list(candidates)], [list(references)])[0], np.float64)

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
    reads_sources = False

    def __init__(self, tokenize: str = "13a") -> None:
        from sacrebleu.metrics import BLEU

        self._metric = BLEU(effective_order=True, tokenize=tokenize)
        self.signature = _signature(self._metric)

    def pairwise(self, questions):
        """See `Utility`."""
        for candidates, references, _ in questions:
            sides = [[self._counts(text) for text in texts] for texts in (candidates, references)]
            yield np.array([[self._score(h, r) for r in sides[1]] for h in sides[0]], np.float64)

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


class OfExtension:
    """A metric of `registry.METRICS`, such as a learned one: the pairs of all questions are scored at once. One of which lower is
    better counts with a minus. coarse: scores with the mean of references in its place, and so chooses what is scored pairwise.
    Raises UserError for a metric that cannot be computed.
    """

    def __init__(self, name: str, config: Config, coarse: Utility | None = None) -> None:
        self._metric, self._config, self._coarse = METRICS.load(name), config, coarse
        own = next((names for names in _RELATIVES if name in names), (name,))
        self.FAMILY = (*own, *(coarse.FAMILY if coarse else ()))
        self.reads_sources, self.signature = self._metric.reads_sources, ""
        if self._metric.check:
            self._metric.check(config)

    def pairwise(self, questions):
        """See `Utility`."""
        pairs = [(h, r, source) for candidates, references, source in questions for h in candidates for r in references]
        if not pairs:
            return []
        hypotheses, references, sources = zip(*pairs, strict=True)
        statistics = self._metric.statistics(Predictions(hypotheses, [references], sources), self._config)
        self.signature = statistics.signature()
        scores = np.array([statistics.score(row) for row in statistics.values], np.float64)
        scores = scores if self._metric.higher_is_better else -scores
        sizes = [(len(question.candidates), len(question.references)) for question in questions]
        parts = np.split(scores, np.cumsum([rows * columns for rows, columns in sizes])[:-1])
        return [part.reshape(size) for part, size in zip(parts, sizes, strict=True)]

    def aggregated(self, hypotheses, references, counts):
        """See `Utility`."""
        assert self._coarse
        return self._coarse.aggregated(hypotheses, references, counts)


def _signature(metric: Any) -> str:
    metric.num_refs = 1
    return str(metric.get_signature())


UTILITIES = {"chrf": Chrf, "bleu": Bleu}
