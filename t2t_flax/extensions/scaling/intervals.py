"""Bootstrap intervals of a fitted law.

The law is fitted again to its predictions with drawn residuals, each estimate in units of its
standard error.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

LEVEL = 0.95


class Estimates(NamedTuple):
    """Estimates of M data sets: values and standard errors [M, K].

    Args:
        spread: spread of a point's noise [M].
        start: starting point for fits to nearby data [M, P].
    """

    values: np.ndarray
    errors: np.ndarray
    spread: np.ndarray
    start: np.ndarray


Estimate = Callable[[np.ndarray, np.ndarray], Estimates]
"""Maps (data sets [M, n], start of each [M, P]) to `Estimates`."""


@dataclasses.dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float


def bootstrap(
    estimate: Estimate,
    found: Estimates,
    fitted: np.ndarray,
    residuals: np.ndarray,
    leverages: np.ndarray,
    *,
    draws: int,
    seed: int = 0,
    new: int = 0,
) -> list[Interval]:
    """Return an interval for each value of `found` (M = 1).

    It is fitted to n points with these predictions and residuals. Each point counts once, however
    many seeds are averaged in it: a size's deviation from the law is common to its seeds.

    Args:
        new: how many values, the last ones, are losses of points that are yet to be measured; their
            noise joins the interval.
    """
    rng = np.random.default_rng(seed)
    noise = residuals / np.sqrt(np.maximum(1 - leverages, 1e-3))
    noise = (
        (noise - noise.mean())
        * found.spread[0]
        / max(float(np.sqrt(np.mean((noise - noise.mean()) ** 2))), 1e-300)
    )
    drawn = _drawn(rng, noise, (draws, len(noise)))
    again = estimate(fitted + drawn, np.broadcast_to(found.start, (draws, found.start.shape[-1])))
    count = found.values.shape[-1]
    is_new = np.arange(count) >= count - new
    errors = np.where(is_new, np.hypot(found.errors, found.spread[:, None]), found.errors)
    of_draws = np.where(is_new, np.hypot(again.errors, again.spread[:, None]), again.errors)
    fresh = np.where(is_new, _drawn(rng, noise, (draws, count)), 0.0)
    ratios = (again.values - found.values - fresh) / np.maximum(of_draws, 1e-300)
    low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    value, error = found.values[0], errors[0]
    return [
        Interval(*map(float, row))
        for row in zip(value, value - high * error, value - low * error, strict=True)
    ]


def _drawn(rng: np.random.Generator, noise: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return residuals drawn with replacement."""
    return noise[rng.integers(0, len(noise), shape)]
