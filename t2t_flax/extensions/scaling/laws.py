"""Laws of the loss in sizes and data, fitted to its logarithm.

Many data sets are fitted at a time, by Levenberg and Marquardt. Inputs are divided by their
geometric means over the points, so that factors are losses in the middle of them.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np

Terms = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
_ITERATIONS, _CONVERGED = 60, 1e-10
_NEGLIGIBLE = 7.0
"""Negative log of a part that counts as none.

That is exp(-7) of the lowest loss, or of the inverse of the most data.
"""
_LARGEST_STEP = 2.0
"""Largest update of a parameter, in logarithms or exponents."""


@dataclasses.dataclass(frozen=True)
class Law:
    """A law of the loss.

    Args:
        inputs: names of the inputs of each point.
        parameters: fitted parameters; a name that ends in "*" stands for its logarithm.
        grid: start values of each parameter for the search; for logarithms other than C, offsets to
            the median log loss.
        terms: (theta [..., P], log of the centred inputs [..., n, I]) -> (log loss [..., n], its
            derivatives [..., n, P]).
    """

    name: str
    formula: str
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    grid: tuple[tuple[float, ...], ...]
    terms: Terms

    def lowest(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the least useful value of the last parameter, [M].

        The parameter is the part of the loss that remains with all the sizes or data there are. At
        this value it makes no difference.

        Args:
            x: [M, n, I].
            y: [M, n].
        """
        return (-x[..., 0].max(-1) if self.parameters[-1] == "C*" else y.min(-1)) - _NEGLIGIBLE

    @property
    def names(self) -> list[str]:
        """Parameter names without marks."""
        return [name.rstrip("*") for name in self.parameters]

    def values(self, theta: np.ndarray) -> np.ndarray:
        """Return the parameters [..., P] as in the formula."""
        logs = [name.endswith("*") for name in self.parameters]
        return np.where(logs, np.exp(np.where(logs, theta, 0.0)), theta)

    def starts(self, y: np.ndarray) -> np.ndarray:
        """Return start points [S, P] of the searches for a fit to log losses y [n]."""
        middle = float(np.median(y))
        grids = [
            [middle + value for value in values]
            if name.endswith("*") and name != "C*"
            else list(values)
            for name, values in zip(self.parameters, self.grid, strict=True)
        ]
        return np.array(list(itertools.product(*grids)))


def _of_sizes(theta: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute a prod_i x_i^-p_i + L_inf; theta: log a, p_1 ..., log L_inf."""
    log_a, powers, log_rest = theta[..., :1], theta[..., 1:-1], theta[..., -1:]
    term = log_a - (x * powers[..., None, :]).sum(-1)
    y = np.logaddexp(term, log_rest)
    share = np.exp(term - y)
    return y, np.concatenate([share[..., None], -share[..., None] * x, 1 - share[..., None]], -1)


def _of_data(theta: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute a (1 / D + C)^p; theta: log a, p, log C."""
    log_a, power, log_c = theta[..., :1], theta[..., 1:2], theta[..., 2:]
    base = np.logaddexp(-x[..., 0], log_c)
    share = np.exp(log_c - base)
    return log_a + power * base, np.stack([np.ones_like(base), base, power * share], -1)


def _of_size_and_data(theta: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute A N^-alpha + B D^-beta + E; theta: log A, alpha, log B, beta, log E."""
    n = theta[..., 0:1] - theta[..., 1:2] * x[..., 0]
    d = theta[..., 2:3] - theta[..., 3:4] * x[..., 1]
    y = np.logaddexp(np.logaddexp(n, d), theta[..., 4:])
    n, d, e = np.exp(n - y), np.exp(d - y), np.exp(theta[..., 4:] - y)
    return y, np.stack([n, -n * x[..., 0], d, -d * x[..., 1], e], -1)


_POWERS, _FACTORS, _RESTS = (0.1, 0.3, 0.7), (-2.0, -0.7), (-3.0, -0.7, -0.1)
LAWS = {
    law.name: law
    for law in (
        Law(
            "size",
            "L = a N^-p + L_inf",
            ("parameters",),
            ("a*", "p", "L_inf*"),
            (_FACTORS, _POWERS, _RESTS),
            _of_sizes,
        ),
        Law(
            "sizes",
            "L = a N_e^-p_e N_d^-p_d + L_inf (Ghorbani et al. 2021)",
            ("encoder parameters", "decoder parameters"),
            ("a*", "p_e", "p_d", "L_inf*"),
            (_FACTORS, _POWERS, _POWERS, _RESTS),
            _of_sizes,
        ),
        Law(
            "data",
            "L = a (1/D + C)^p (Bansal et al. 2022)",
            ("corpus tokens",),
            ("a*", "p", "C*"),
            ((-0.5, 0.5), _POWERS, (-4.0, -2.0, 0.0)),
            _of_data,
        ),
        Law(
            "size_data",
            "L = A N^-alpha + B D^-beta + E (Hoffmann et al. 2022)",
            ("parameters", "tokens"),
            ("A*", "alpha", "B*", "beta", "E*"),
            (_FACTORS, _POWERS, _FACTORS, _POWERS, _RESTS),
            _of_size_and_data,
        ),
    )
}


@dataclasses.dataclass(frozen=True)
class Fits:
    """Fits of a law to M data sets of n points.

    theta [M, P]; cost [M]: see `fit`; residuals [M, n]; jacobian [M, n, P].
    """

    theta: np.ndarray
    cost: np.ndarray
    residuals: np.ndarray
    jacobian: np.ndarray

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation of a point's noise, in log loss: [M]."""
        count, parameters = self.jacobian.shape[-2:]
        return np.sqrt((self.residuals**2).sum(-1) / (count - parameters))

    def standard_errors(self, direction: np.ndarray) -> np.ndarray:
        """Return the standard error of the sum of theta * direction [M, K, P]: [M, K].

        It is in units of `spread`.
        """
        scale = np.sqrt((self.jacobian**2).sum(-2, keepdims=True)) + 1e-12  # [M, 1, P]
        unit = self.jacobian / scale
        inverse = np.linalg.pinv(np.swapaxes(unit, -1, -2) @ unit, rcond=1e-10, hermitian=True)
        direction = direction / scale
        return np.sqrt(np.maximum(((direction @ inverse) * direction).sum(-1), 0.0))


def fit(law: Law, x: np.ndarray, y: np.ndarray, starts: np.ndarray) -> Fits:
    """Fit to log losses y [M, n] from theta `starts` [M, P].

    Minimizes the sum of squares of log residuals.

    Args:
        x: logs of centred inputs, [n, I] or [M, n, I].
    """
    theta = np.array(starts, np.float64)
    damping = np.full(len(theta), 1e-2)
    x = np.broadcast_to(x, (len(theta), *x.shape[-2:]))
    lowest = np.broadcast_to(law.lowest(x, y), len(theta))
    predicted, jacobian = law.terms(theta, x)
    residuals = y - predicted
    cost, best = (residuals**2).sum(-1), residuals
    active = np.ones(len(theta), bool)
    for _ in range(_ITERATIONS):
        rows = np.flatnonzero(active)
        if not len(rows):
            break
        j, r = jacobian[rows], best[rows]
        normal = np.swapaxes(j, -1, -2) @ j
        gradient = (j * r[..., None]).sum(-2)
        diagonal = np.einsum("mii->mi", normal)
        ridge = damping[rows, None] * diagonal + 1e-12
        step = np.linalg.solve(
            normal + ridge[..., None] * np.eye(theta.shape[-1]), gradient[..., None]
        )[..., 0]
        step = np.clip(step, -_LARGEST_STEP, _LARGEST_STEP)
        trial = theta[rows] + step
        trial[:, -1] = np.maximum(trial[:, -1], lowest[rows])
        predicted, tried = law.terms(trial, x[rows])
        residuals = y[rows] - predicted
        new = (residuals**2).sum(-1)
        better = new <= cost[rows]
        gain = (cost[rows] - new) / np.maximum(cost[rows], 1e-300)
        damping[rows] = np.where(better, damping[rows] / 5, damping[rows] * 4)
        taken = rows[better]
        theta[taken], cost[taken] = trial[better], new[better]
        best[taken], jacobian[taken] = residuals[better], tried[better]
        active[rows[(better & (gain < _CONVERGED)) | (damping[rows] > 1e10)]] = False
    return Fits(theta, cost, best, jacobian)


def fit_from_grid(law: Law, x: np.ndarray, y: np.ndarray) -> Fits:
    """Return the best fit to log losses y [n] from all grid starts, M = 1."""
    starts = law.starts(y)
    fits = fit(law, x, np.broadcast_to(y, (len(starts), len(y))), starts)
    at = int(np.argmin(fits.cost))
    return Fits(fits.theta[[at]], fits.cost[[at]], fits.residuals[[at]], fits.jacobian[[at]])


def centre(inputs: Sequence[Sequence[float]] | np.ndarray) -> np.ndarray:
    """Return the geometric means of inputs [n, I]: [I]."""
    return np.exp(np.log(np.asarray(inputs, np.float64)).mean(0))
