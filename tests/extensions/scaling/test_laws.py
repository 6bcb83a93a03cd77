"""Laws fit as by an independent optimizer, and intervals hold the truth as often as they say."""

import numpy as np
import pytest
from helpers.refusals import refused
from scipy import optimize

from benchmarks.scaling import CASES, coverage
from t2t_flax.extensions.scaling.law_fit import fit_law
from t2t_flax.extensions.scaling.laws import LAWS, fit_from_grid

NAMES = sorted(LAWS)


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_are_those_of_the_law(name):
    law, case = LAWS[name], CASES[name]
    theta = np.asarray(case.theta)
    x = np.log(case.inputs / np.exp(np.log(case.inputs).mean(0)))
    _, jacobian = law.terms(theta[None], x[None])
    for i, step in enumerate(np.eye(len(theta)) * 1e-6):
        above, below = (law.terms((theta + sign * step)[None], x[None])[0][0] for sign in (1, -1))
        np.testing.assert_allclose(jacobian[0, :, i], (above - below) / 2e-6, atol=1e-7)


@pytest.mark.smoke
@pytest.mark.parametrize("name", NAMES)
def test_exponents_of_exact_losses_are_found(name):
    case = CASES[name]
    found = fit_law(LAWS[name], case.inputs, case.losses, draws=20)
    np.testing.assert_allclose(found.theta, case.theta, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.predict(case.inputs), case.losses, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_fit_is_the_minimum_that_lbfgs_finds(name):
    """From the same grid of starts, as Hoffmann et al. (2022) fit."""
    law, case = LAWS[name], CASES[name]
    x = np.log(case.inputs / np.exp(np.log(case.inputs).mean(0)))
    y = np.log(case.losses) + 0.01 * np.random.default_rng(1).standard_normal(len(x))

    def cost(theta):
        r = y - law.terms(theta[None], x[None])[0][0]
        return 1e4 * (r @ r)

    starts = law.starts(y)[:: max(1, len(law.starts(y)) // 4)]
    options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-10}
    least = min(
        optimize.minimize(cost, start, method="L-BFGS-B", options=options).fun for start in starts
    )
    assert 1e4 * fit_from_grid(law, x, y).cost[0] <= least * 1.001


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_intervals_cover_the_truth_as_often_as_they_say(name):
    """Of 400 data sets with noise: 95 % but for what their number allows.

    The benchmark has more.
    """
    for share in coverage(name, sets=400, draws=200, seed=7).values():
        assert 0.92 <= share <= 0.98


def test_too_few_points_are_refused():
    with refused("4 points"):
        fit_law(LAWS["size"], [[1e6], [2e6], [4e6]], [3.0, 2.5, 2.2])


def test_sizes_that_grow_together_are_refused():
    sizes = [[n, 2 * n] for n in (1e6, 2e6, 4e6, 8e6, 16e6, 32e6)]
    with refused("encoder parameters", "--law"):
        fit_law(LAWS["sizes"], sizes, [4.0, 3.5, 3.2, 3.0, 2.9, 2.8])
