"""Reading the best rate of a size from a few runs."""

import math

import pytest

from benchmarks.mup import best_rate, summary

RATES = [2.0**-power for power in range(10, 3, -1)]


@pytest.mark.parametrize("best", [0.003, 0.008, 0.02])
def test_the_best_rate_between_those_that_were_tried_is_found(best):
    assert best_rate({rate: 2 + math.log(rate / best) ** 2 for rate in RATES}) == (pytest.approx(best), True)


def test_a_best_rate_at_the_end_of_the_grid_is_said_to_be_there():
    assert best_rate({rate: -rate for rate in RATES}) == (RATES[-1], False)
    losses = {rate: math.inf if rate > 0.01 else -rate for rate in RATES}
    assert best_rate(losses) == (2.0**-7, True)


def test_rates_are_compared_with_that_of_the_smallest_size():
    losses = {
        size: {rate: [2 + math.log(rate / best) ** 2] * 2 for rate in RATES}
        for size, best in ((64, 2.0**-7), (256, 2.0**-8))
    }
    found = summary(losses)
    assert found[256]["multiple_of_the_smallest"] == pytest.approx(0.5)
    assert found[256]["loss_at_the_smallest_ones_best"] == pytest.approx(2 + math.log(2) ** 2, abs=1e-4)
    assert found[256]["of_each_seed"] == pytest.approx([2.0**-8] * 2, abs=1e-6)
