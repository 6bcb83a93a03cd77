"""An evaluation metric: words of the references that are missing from the outputs."""

from collections import Counter

import numpy as np

from t2t_flax.tasks import Metric, SentenceStatistics
from t2t_flax.tasks.translation import METRICS


def missing_words(predictions, config):
    """In percent. Each sentence has two numbers, whose sums give the score of a corpus."""
    pairs = zip(predictions.hypotheses, predictions.references[0], strict=True)
    words = [
        (Counter(hypothesis.split()), Counter(reference.split())) for hypothesis, reference in pairs
    ]
    values = np.array([((r - h).total(), r.total()) for h, r in words], float)
    return SentenceStatistics(
        values, lambda sums: 100 * sums[0] / max(1, sums[1]), method="missing words"
    )


how = dict(statistics=missing_words, higher_is_better=False, confidence_interval=True)
METRICS.append(Metric("missing_words", "missing words", **how))
