"""Whether one recipe is better than another, when each was trained with several seeds: what was translated is one source
of chance, which seeds were drawn another.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from t2t_flax.evaluation.compare import RESAMPLES, SEED, check_comparable, paired_statistics, read_record, two_sided

HOW = (
    "The difference is the mean over pairs of runs of the same seed. Its variance is that of the pairs' differences over "
    "their number, plus that of a paired bootstrap over sentences (the same ones for every system); interval (95 %) and "
    "two-sided p_value are of Student's t with Satterthwaite's degrees of freedom."
)
HOW_ONE_SEED = (
    "One pair of runs: paired bootstrap over sentences. What another seed would change is not in the interval (the middle "
    "95 % of the resampled differences), nor in the two-sided p_value."
)


def compare_seeds(
    pairs: Sequence[tuple[str | os.PathLike, str | os.PathLike]],
    *,
    score: str = "",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> dict[str, Any]:
    """The mean difference a - b of `score` over pairs of evaluation records, its 95 % interval and a two-sided p-value.

    Raises UserError for a record that is missing, changed, or of another test set than the others.
    """
    first = read_record(pairs[0][0])
    for a, _ in pairs:  # each pair's own two are compared with one another below
        score = check_comparable(first, read_record(a), pairs[0][0], a, score)
    told = [paired_statistics(a, b, score) for a, b in pairs]
    sentences = len(told[0][0][0])
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(sentences, np.full(sentences, 1 / sentences), size=resamples)
    resampled = np.mean([_differences(statistics, of, drawn) for statistics, of in told], axis=0)
    own = np.array([[of(side.sum(0)) for side in statistics] for statistics, of in told])
    a, b = own.mean(axis=0)
    if len(pairs) == 1:
        low, high = np.percentile(resampled, (2.5, 97.5))
        p_value = two_sided(resampled)
    else:
        low, high, p_value = over_seeds(own[:, 0] - own[:, 1], float(resampled.var(ddof=1)))
    return {
        "score": score,
        "a": round(float(a), 4),
        "b": round(float(b), 4),
        "difference": round(float(a - b), 4),
        "interval": {"level": 0.95, "low": round(float(low), 4), "high": round(float(high), 4)},
        "p_value": round(float(p_value), 6),
        "pairs": own.round(4).tolist(),
        "sentences": sentences,
        "resamples": resamples,
        "seed": seed,
        "how": HOW_ONE_SEED if len(pairs) == 1 else HOW,
    }


def over_seeds(differences: np.ndarray, sentence_variance: float) -> tuple[float, float, float]:
    """(low, high, p): the 95 % interval of the mean of at least two seeds' differences, and its two-sided p-value against
    zero, where drawing sentences alone gives the mean this variance. Two seeds know little of their own spread: then the
    interval is as wide as Student's t makes it.
    """
    n, middle = len(differences), float(differences.mean())
    seeds = float(differences.var(ddof=1)) / n
    variance = seeds + sentence_variance
    if variance == 0:
        return middle, middle, float(middle == 0)
    freedom = variance**2 / (seeds**2 / (n - 1)) if seeds else np.inf
    half = stats.t.ppf(0.975, freedom) * variance**0.5
    return middle - half, middle + half, 2 * stats.t.sf(abs(middle) / variance**0.5, freedom)


def _differences(statistics, of, drawn: np.ndarray) -> list[float]:
    a, b = (drawn @ side for side in statistics)
    return [of(x) - of(y) for x, y in zip(a, b, strict=True)]
