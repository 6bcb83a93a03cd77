"""Uncertainty of a score over test sentences, by bootstrap resampling (Koehn 2004)."""

from typing import Any

import numpy as np

from t2t_flax.tasks.metrics import SentenceStatistics

SEED = 12345
"""The default of sacreBLEU's command line."""


def draw_sentences(sentences: int, resamples: int, seed: int = SEED) -> np.ndarray:
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
