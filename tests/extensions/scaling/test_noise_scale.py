"""The noise scale of gradients with known mean and covariance."""

import math

import numpy as np
import pytest

from t2t_flax.extensions.scaling.noise_scale import GROUPS, Gradients, noise_scale

PARAMETERS, TOKENS = 400, 500


def groups_of(mean: float, spread: float, count: int, seed: int) -> list[Gradients]:
    """Return gradients with this mean and, for a token, this standard deviation."""
    rng = np.random.default_rng(seed)
    groups = []
    for _ in range(GROUPS):
        grads = mean + spread / math.sqrt(TOKENS) * rng.standard_normal((count, PARAMETERS))
        groups.append(
            Gradients(grads.sum(0), float((grads**2).sum()), count, float(count * TOKENS))
        )
    return groups


@pytest.mark.parametrize("scale", [200.0, 5000.0])
def test_the_scale_is_trace_over_squared_norm(scale):
    found = [noise_scale(groups_of(1.0, math.sqrt(scale), 8, seed)) for seed in range(40)]
    assert np.median([one.value for one in found]) == pytest.approx(scale, rel=0.05)
    assert np.mean([one.low <= scale <= one.high for one in found]) >= 0.85


def test_noise_alone_has_no_finite_scale():
    intervals = [noise_scale(groups_of(0.0, 1.0, 8, seed)) for seed in range(20)]
    assert all(one.high == math.inf or one.value > 1e5 for one in intervals)
