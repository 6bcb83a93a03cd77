"""Differences between the rows of a sweep, tested over seeds.

The method is Games and Howell's (1976). Each pair of rows is compared by Welch's t with its degrees
of freedom, so rows may differ in their spread and number of seeds. The distribution of the
studentized range makes intervals and p-values simultaneous for all pairs: they also hold for the
best row as reference, which is chosen by the same scores.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from t2t_flax.errors import require
from t2t_flax.extensions.sweeps.compare import LEVEL

_SMALLEST = 1e-18


@dataclasses.dataclass(frozen=True)
class Difference:
    """Difference of a row's mean score to the reference row's.

    Its 95 % interval and two-sided p hold for the whole table. The interval excludes zero exactly
    where p is below LEVEL.
    """

    difference: float
    low: float
    high: float
    p: float


def compare_rows(scores: Sequence[Sequence[float]], reference: int) -> list[Difference | None]:
    """Compare each row with the row `reference`.

    Args:
        scores: scores of each row, one for each seed.

    Returns:
        None for the reference row, and for rows that have fewer than two seeds, or all of them if
        the reference has.
    """
    require("scipy", "sweep", "a sweep with several seeds")
    from scipy.stats import studentized_range

    tested = [len(row) > 1 for row in scores]
    if not tested[reference]:
        return [None] * len(scores)
    rows = [np.asarray(row, float) for row in scores]
    variances = np.array(
        [row.var(ddof=1) if many else 0.0 for row, many in zip(rows, tested, strict=True)]
    )
    # Scores are rounded when stored: two seeds that agree to the last digit do not show that there
    # is no spread.
    variances = np.maximum(variances, max(1e-6 * variances[tested].mean(), _SMALLEST))
    found: list[Difference | None] = []
    for row, variance, many in zip(rows, variances, tested, strict=True):
        if row is rows[reference] or not many:
            found.append(None)
            continue
        parts = np.array([variance / len(row), variances[reference] / len(rows[reference])])
        freedom = float(
            parts.sum() ** 2 / (parts**2 / [len(row) - 1, len(rows[reference]) - 1]).sum()
        )
        # Rounded down, so that rows share quantiles, which take up to a second.
        freedom = max(1.0, freedom // 0.1 / 10)
        error = np.sqrt(parts.sum() / 2)
        difference = float(row.mean() - rows[reference].mean())
        half = _critical(sum(tested), freedom) * float(error)
        p = float(studentized_range.sf(abs(difference) / error, sum(tested), freedom))
        found.append(Difference(difference, difference - half, difference + half, p))
    return found


@functools.cache
def _critical(rows: int, freedom: float) -> float:
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(1 - LEVEL, rows, freedom))
