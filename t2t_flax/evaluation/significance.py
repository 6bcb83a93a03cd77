"""Uncertainty over test sentences: bootstrap resampling of one score and of two systems' difference (Koehn 2004).

Tables of several systems or seeds are compared in `row_differences`.
"""

from typing import Any

import numpy as np

from t2t_flax.tasks.metrics import SentenceStatistics

LEVEL = 0.05
"""Significance level of all tests."""
RESAMPLES = 1000
SEED = 12345
"""With RESAMPLES the defaults of sacreBLEU's command line."""


def draw_sentences(sentences: int, resamples: int = RESAMPLES, seed: int = SEED) -> np.ndarray:
    """int32 [resamples, sentences]: how often each resample contains each sentence.

    The resamples are those of sacreBLEU.
    """
    rng, counts = np.random.default_rng(seed), np.empty((resamples, sentences), np.int32)
    for row in counts:
        row[:] = np.bincount(rng.choice(sentences, size=sentences), minlength=sentences)
    return counts


def resampled_scores(statistics: SentenceStatistics, counts: np.ndarray) -> np.ndarray:
    """float64 [resamples]: the score of each resample; counts as from `draw_sentences`."""
    sums = (row.astype(statistics.values.dtype) @ statistics.values for row in counts)
    return np.array([statistics.score(row) for row in sums], np.float64)


def confidence_interval(statistics: SentenceStatistics, resamples: int, seed: int = SEED) -> dict[str, Any]:
    """The 95 % bootstrap interval of one score as a record stores it; mean and half width as sacreBLEU's."""
    counts = draw_sentences(len(statistics.values), resamples, seed)
    scores = np.sort(resampled_scores(statistics, counts))
    outside = resamples // 40
    low, high = float(scores[outside]), float(scores[resamples - outside - 1])
    return {
        "level": 0.95,
        "samples": resamples,
        "mean": round(float(scores.mean()), 4),
        "half_width": round((high - low) / 2, 4),
        "low": round(low, 4),
        "high": round(high, 4),
    }


def paired_bootstrap(
    a: SentenceStatistics, b: SentenceStatistics, resamples: int = RESAMPLES, seed: int = SEED
) -> np.ndarray:
    """float64 [resamples]: score of a minus score of b on the same resampled sentences."""
    counts = draw_sentences(len(a.values), resamples, seed)
    return resampled_scores(a, counts) - resampled_scores(b, counts)


def influence(statistics: SentenceStatistics) -> np.ndarray:
    """float64 [sentences]: how much each sentence moves the score, with mean 0 (Efron's jackknife).

    On another sample of sentences the score changes by about the mean of these values over it.
    """
    count, total = len(statistics.values), statistics.values.sum(0)
    without = np.array([statistics.score(total - row) for row in statistics.values], np.float64)
    return (count - 1) * (without.mean() - without)


def two_sided_p(differences: np.ndarray) -> float:
    """Two-sided bootstrap p-value: twice the smaller share of resampled differences on either side of zero.

    Never 0: the observed data count as one more resample.
    """
    smaller = min((differences <= 0).sum(), (differences >= 0).sum())
    return min(1.0, _tail_p(int(smaller), len(differences)))


def interval(differences: np.ndarray) -> tuple[float, float]:
    """(low, high): the central range of resampled differences that excludes zero exactly where `two_sided_p` is below LEVEL.

    With too few resamples to reach that level it is their full range, extended to zero.
    """
    ordered = np.sort(differences)
    outside = int((_tail_p(np.arange(len(ordered)), len(ordered)) < LEVEL).sum())
    if not outside:
        return float(min(ordered[0], 0.0)), float(max(ordered[-1], 0.0))
    return float(ordered[outside - 1]), float(ordered[-outside])


def _tail_p(count, resamples: int):
    return 2 * (count + 1) / (resamples + 1)


def sacrebleu_p(differences: np.ndarray, observed: float) -> float:
    """The p-value printed by sacreBLEU's paired bootstrap for these differences.

    It is one-sided in effect where small, so about half of `two_sided_p`. 1 if no resample differs.
    """
    size = np.abs(differences)
    if not size.any():
        return 1.0
    return (int((size - size.mean() > abs(observed)).sum()) + 1) / (len(differences) + 1)


def format_difference(difference: float, low: float, high: float, p_value: float, digits: int = 2) -> str:
    """A table cell: `-0.41 [-0.92, +0.08] p 0.1`. Below 0.001 a p-value mostly reflects the assumed distribution."""
    p = f"p {p_value:.3g}" if p_value >= 0.001 else "p < 0.001"
    return f"{difference:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}] {p}"
