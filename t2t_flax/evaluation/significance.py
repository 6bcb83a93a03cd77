"""One meaning of p: two-sided, and below 5 % exactly where its 95 % interval leaves out zero, also in a table, where both
are corrected for the number of comparisons.
"""

from collections.abc import Sequence

import numpy as np

LEVEL = 0.05
"""Of every verdict."""


def two_sided(differences: np.ndarray) -> float:
    """Two-sided bootstrap p-value: twice the smaller share of resampled differences on either side of zero; never 0, as the
    test itself is counted as one more.
    """
    smaller = min((differences <= 0).sum(), (differences >= 0).sum())
    return min(1.0, _share(int(smaller), len(differences)))


def interval(differences: np.ndarray, comparisons: float = 1.0) -> tuple[float, float]:
    """(low, high): the middle of the resampled differences that leaves out zero exactly where `two_sided` times
    `comparisons` is below LEVEL. With too few resamples for that ever to be so, all of them and zero.
    """
    ordered = np.sort(differences)
    outside = int((_share(np.arange(len(ordered)), len(ordered)) * comparisons < LEVEL).sum())
    if not outside:
        return float(min(ordered[0], 0.0)), float(max(ordered[-1], 0.0))
    return float(ordered[outside - 1]), float(ordered[-outside])


def _share(count, resamples: int):
    return 2 * (count + 1) / (resamples + 1)


def sacrebleu_p(differences: np.ndarray, observed: float) -> float:
    """The p-value that sacreBLEU's paired bootstrap prints for these differences: where small in effect one-sided, so about
    half of `two_sided`. 1 where no resample differs.
    """
    size = np.abs(differences)
    if not size.any():
        return 1.0
    return (int((size - size.mean() > abs(observed)).sum()) + 1) / (len(differences) + 1)


def multipliers(p_values: Sequence[float], *, named: bool) -> list[float]:
    """What each p-value of a table is multiplied by for its number of comparisons: Holm's step-down for comparisons with a
    named row; with the best row, which was chosen among all pairs, Bonferroni's for all pairs.
    """
    count, found, largest = len(p_values), [1.0] * len(p_values), 0.0
    for i, n in enumerate(np.argsort(p_values, kind="stable")):
        own = count - i if named else count * (count + 1) // 2
        largest = max(largest, p_values[n] * own)  # a larger p-value never becomes the smaller one
        found[n] = max(float(own), largest / p_values[n]) if p_values[n] else float(own)
    return found


def corrected(p_values: Sequence[float], *, named: bool) -> list[float]:
    """p-values times their `multipliers`, at most 1."""
    return [min(1.0, p * m) for p, m in zip(p_values, multipliers(p_values, named=named), strict=True)]
