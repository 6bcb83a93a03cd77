"""Best size for a budget of FLOPs (approach 2 of Hoffmann et al. 2022).

Parabolas are fitted to the losses by size of runs with equal FLOPs.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from t2t_flax.errors import UserError
from t2t_flax.extensions.scaling.intervals import Estimates, Interval, bootstrap
from t2t_flax.extensions.scaling.points import Point

_SAME_BUDGET = 0.1
"""Relative difference within which runs have the same FLOPs."""


@dataclasses.dataclass(frozen=True)
class Optimum:
    """N_opt = k * FLOPs^exponent.

    Args:
        best: (FLOPs, N_opt) of each budget.
    """

    exponent: Interval
    best: list[tuple[float, float]]


def iso_flop(points: Sequence[Point], *, draws: int, seed: int = 0) -> Optimum:
    """Fit parabolas of log loss over log parameters, one for each budget.

    Raises UserError for fewer than two budgets, for one with fewer than four sizes, and for a
    parabola without lowest point.

    Args:
        points: points with inputs (parameters, FLOPs).
    """
    budgets: list[list[Point]] = []
    for point in sorted(points, key=lambda point: point.inputs[1]):
        if budgets and math.isclose(
            budgets[-1][0].inputs[1], point.inputs[1], rel_tol=_SAME_BUDGET
        ):
            budgets[-1].append(point)
        else:
            budgets.append([point])
    if len(budgets) < 2 or min(map(len, budgets)) < 4:
        sizes = ", ".join(f"{len(b)} at {b[0].inputs[1]:.2e}" for b in budgets)
        raise UserError(
            "iso-FLOP profiles need two budgets or more with four sizes or more each; here are"
            f" sizes: {sizes}."
        )
    flops = np.array([np.mean([point.inputs[1] for point in budget]) for budget in budgets])
    ordered = [point for budget in budgets for point in budget]
    y = np.array([point.log_loss for point in ordered])
    of_budget = np.repeat(np.arange(len(budgets)), list(map(len, budgets)))
    log_n = np.log([point.inputs[0] for point in ordered])
    middle = np.array([log_n[of_budget == b].mean() for b in range(len(budgets))])
    z = log_n - middle[of_budget]
    design = np.zeros((len(y), 3 * len(budgets)))
    for power in range(3):
        design[np.arange(len(y)), 3 * of_budget + power] = z**power
    inverse = np.linalg.pinv(design)
    log_c = np.log(flops) - np.log(flops).mean()
    weights = log_c / (log_c**2).sum()

    def estimate(data: np.ndarray, start: np.ndarray) -> Estimates:
        theta = data @ inverse.T
        b, c = theta[:, 1::3], theta[:, 2::3]
        lowest = middle - b / (2 * c)
        slope = np.zeros((len(theta), design.shape[1]))
        slope[:, 1::3], slope[:, 2::3] = -weights / (2 * c), weights * b / (2 * c**2)
        spread = np.sqrt(((data - theta @ design.T) ** 2).sum(-1) / (len(y) - design.shape[1]))
        error = np.sqrt(((slope @ inverse) ** 2).sum(-1)) * spread
        return Estimates((lowest @ weights)[:, None], error[:, None], spread, theta)

    found = estimate(y[None], np.zeros((1, 0)))
    if (found.start[0, 2::3] <= 0).any():
        raise UserError(
            "the losses at one of the budgets have no lowest point between the sizes: add sizes on"
            " both sides."
        )
    fitted = found.start @ design.T
    leverages = np.einsum("np,pn->n", design, inverse)
    (exponent,) = bootstrap(
        estimate, found, fitted, y - fitted[0], leverages, draws=draws, seed=seed
    )
    lowest = np.exp(middle - found.start[0, 1::3] / (2 * found.start[0, 2::3]))
    return Optimum(exponent, list(zip(flops.tolist(), lowest.tolist(), strict=True)))
