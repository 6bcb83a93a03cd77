"""Law fitted to points, with intervals of its parameters and predicted losses."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from t2t_flax.errors import UserError
from t2t_flax.extensions.scaling.intervals import Estimates, Interval, bootstrap
from t2t_flax.extensions.scaling.laws import Fits, Law, centre, fit, fit_from_grid

DRAWS = 1000


@dataclasses.dataclass(frozen=True)
class LawFit:
    """A law fitted to losses at inputs [n, I].

    Args:
        parameters: intervals by name, factors at the `centre` [I] of the inputs. The last one is 0,
            without an interval, if it cannot be told from 0.
        losses: predictions for further points, each as a new measurement there.
    """

    law: Law
    inputs: np.ndarray
    loss: np.ndarray
    centre: np.ndarray
    theta: np.ndarray
    spread: float
    parameters: dict[str, Interval]
    losses: list[Interval]

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        """Return the losses [n] at inputs [n, I]."""
        return np.exp(self.law.terms(self.theta[None], np.log(inputs / self.centre)[None])[0][0])


def fit_law(
    law: Law,
    inputs: Sequence[Sequence[float]],
    loss: Sequence[float],
    further: Sequence[Sequence[float]] = (),
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> LawFit:
    """Fit a law to losses at inputs [n, I], and predict losses at `further` [m, I].

    Raises UserError for fewer points than the law's parameters and one, and for inputs that do not
    vary enough.
    """
    points, y = np.asarray(inputs, np.float64), np.log(np.asarray(loss, np.float64))
    needed = len(law.parameters) + 1
    if len(points) < needed:
        raise UserError(
            f"the law {law.name}, {law.formula}, has {len(law.parameters)} parameters: it needs at"
            f" least {needed} points with different {' and '.join(law.inputs)}, and here are"
            f" {len(points)}."
        )
    middle = centre(points)
    x = np.log(points / middle)
    if np.linalg.matrix_rank(x, tol=0.05) < x.shape[1]:
        raise UserError(
            f"{' and '.join(law.inputs)} grow together in these runs, or do not vary: the law"
            f" {law.name} cannot tell them apart. Vary them independently, or fit another law"
            " (--law)."
        )
    best = fit_from_grid(law, x, y)
    ahead = np.log(np.asarray(further, np.float64).reshape(-1, x.shape[1]) / middle)

    def estimates(fits: Fits) -> Estimates:
        size = len(fits.theta), len(law.parameters)
        losses, slopes = law.terms(fits.theta, np.broadcast_to(ahead, (size[0], *ahead.shape)))
        own = np.broadcast_to(np.eye(size[1]), (size[0], size[1], size[1]))
        spread = fits.spread
        errors = fits.standard_errors(np.concatenate([own, slopes], 1)) * spread[:, None]
        return Estimates(np.concatenate([fits.theta, losses], 1), errors, spread, fits.theta)

    again = lambda data, starts: estimates(fit(law, x, data, starts))  # noqa: E731
    jacobian = best.jacobian[0]
    leverages = np.einsum("np,pn->n", jacobian, np.linalg.pinv(jacobian))
    found = bootstrap(
        again,
        estimates(best),
        law.terms(best.theta, x[None])[0],
        best.residuals[0],
        leverages,
        draws=draws,
        seed=seed,
        new=len(ahead),
    )
    count = len(law.parameters)
    logs = [name.endswith("*") for name in law.parameters] + [True] * len(ahead)
    shown = [
        Interval(*np.exp(dataclasses.astuple(one)).tolist()) if log else one
        for one, log in zip(found, logs, strict=True)
    ]
    if best.theta[0, -1] <= law.lowest(x, y) + 1e-3:
        shown[count - 1] = Interval(0.0, math.nan, math.nan)
    parameters = dict(zip(law.names, shown[:count], strict=True))
    return LawFit(
        law,
        points,
        np.exp(y),
        middle,
        best.theta[0],
        float(best.spread[0]),
        parameters,
        shown[count:],
    )
