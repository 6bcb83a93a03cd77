"""Statistical significance of scores: bootstrap resampling, p-values, intervals and their correction.

Every comparison is a set of resampled differences. With one run per system they come from a paired
bootstrap over sentences (Koehn 2004). With several seeds the uncertainty over seeds is added to it
(`add_seed_variance`). One rule then gives the p-value and the interval, so that p < 0.05 exactly
where the 95 % interval excludes zero, in a table of several comparisons too.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from t2t_flax.tasks.metrics import SentenceStatistics

LEVEL = 0.05
"""Significance level of all tests."""
RESAMPLES = 1000
SEED = 12345
"""With RESAMPLES the defaults of sacreBLEU's command line."""
SEED_DRAWS = 100_000
"""Minimum number of draws with uncertainty over seeds: resolves p-values down to 2e-5."""


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


def seed_variance(scores: Mapping[tuple[Any, Any], float]) -> tuple[float, int]:
    """(variance of one run over seeds, degrees of freedom) from the scores of (system, seed).

    The residual mean square of the two-way layout without interaction: each system and each seed has
    its own level, and all systems have the same variance. (0, 0) if no system shares two seeds with another.
    """
    if not scores:
        return 0.0, 0
    systems, seeds = (list(dict.fromkeys(key[i] for key in scores)) for i in (0, 1))
    design = [[s == system for system in systems] + [k == seed for seed in seeds] for s, k in scores]
    design, values = np.array(design, float), np.array(list(scores.values()), float)
    solution, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    freedom = len(values) - int(rank)
    if not freedom:
        return 0.0, 0
    return float(((values - design @ solution) ** 2).sum()) / freedom, freedom


def add_seed_variance(differences: np.ndarray, variance: float, freedom: int) -> np.ndarray:
    """Resampled differences with the uncertainty over seeds added.

    differences: [resamples] of the mean over pairs of runs; the same number each where sentences are
    not resampled. variance: of that mean over seeds, estimated with `freedom` degrees of freedom.
    Each result is a resampled difference plus a draw of Student's t with that many degrees of freedom
    times the standard error: the distribution of Behrens and Fisher (Fisher 1935) of a sum of two
    independent errors. Its tests reject a true null hypothesis at most as often as they claim.
    """
    if not freedom:
        return differences
    repeats = -(-SEED_DRAWS // len(differences))
    draws = repeats * len(differences)
    return np.tile(differences, repeats) + np.sqrt(variance) * _student_t(freedom, draws)


@functools.lru_cache(maxsize=4)
def _student_t(freedom: int, draws: int) -> np.ndarray:
    """Draws of Student's t in random order, one from each of equally likely intervals."""
    quantiles = special.stdtrit(freedom, (np.arange(draws) + 0.5) / draws)
    return np.random.default_rng(SEED).permutation(quantiles)


def two_sided_p(differences: np.ndarray) -> float:
    """Two-sided bootstrap p-value: twice the smaller share of resampled differences on either side of zero.

    Never 0: the observed data count as one more resample.
    """
    smaller = min((differences <= 0).sum(), (differences >= 0).sum())
    return min(1.0, _tail_p(int(smaller), len(differences)))


def interval(differences: np.ndarray, comparisons: float = 1.0) -> tuple[float, float]:
    """(low, high): the central range of resampled differences that excludes zero exactly where
    `two_sided_p` times `comparisons` is below LEVEL.

    With too few resamples to reach that level it is their full range, extended to zero.
    """
    ordered = np.sort(differences)
    outside = int((_tail_p(np.arange(len(ordered)), len(ordered)) * comparisons < LEVEL).sum())
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


def multipliers(p_values: Sequence[float], *, holm: bool) -> list[float]:
    """The factor by which each p-value of a table is corrected for the number of comparisons.

    holm: Holm's step-down, for comparisons with a baseline that was named beforehand. Otherwise
    Bonferroni over all pairs of rows, for comparisons with the best row, which was chosen after seeing
    the scores.
    """
    count, factors, largest = len(p_values), [1.0] * len(p_values), 0.0
    for i, n in enumerate(np.argsort(p_values, kind="stable")):
        factor = count - i if holm else count * (count + 1) // 2
        largest = max(largest, p_values[n] * factor)  # corrected p-values keep their order
        factors[n] = max(float(factor), largest / p_values[n]) if p_values[n] else float(factor)
    return factors


def resamples_for(comparisons: int) -> int:
    """Enough resamples that a corrected p-value can be well below LEVEL."""
    return max(RESAMPLES, min(20_000, 200 * comparisons))


def corrected(p_values: Sequence[float], *, holm: bool) -> list[float]:
    """p-values times their `multipliers`, at most 1."""
    return [min(1.0, p * m) for p, m in zip(p_values, multipliers(p_values, holm=holm), strict=True)]


def format_difference(difference: float, low: float, high: float, p_value: float, digits: int = 2) -> str:
    """A table cell: `-0.41 [-0.92, +0.08] p 0.1`. Below 0.001 a p-value mostly reflects the assumed distribution."""
    p = f"p {p_value:.3g}" if p_value >= 0.001 else "p < 0.001"
    return f"{difference:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}] {p}"
