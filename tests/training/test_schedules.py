"""Learning-rate schedules against their formulas in float64."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from t2t_flax.config import Config, Model, Optimizer
from t2t_flax.training.model_summary import _schedule
from t2t_flax.training.optimizer import learning_rate_schedule

KEYS = dict(peak_lr=1e-3, warmup_steps=100, warmup_init=1e-5)
CONFIGS = {
    "noam": Config(optimizer=Optimizer(lr_scale=2.0, warmup_steps=100)),
    "inverse_sqrt": Config(optimizer=Optimizer(schedule="inverse_sqrt", **KEYS)),
    "constant": Config(optimizer=Optimizer(schedule="constant", **KEYS)),
}


def formula(name: str, t: int) -> float:
    """The learning rate at update t, written out for each of CONFIGS."""
    if name == "noam":
        return 2.0 * 512**-0.5 * min(t**-0.5 if t else math.inf, t * 100**-1.5)
    if t < 100:
        return 1e-5 + (1e-3 - 1e-5) * t / 100
    return 1e-3 if name == "constant" else 1e-3 * math.sqrt(100 / t)


@pytest.mark.parametrize("first_step", [0, 1])
@pytest.mark.parametrize("name", CONFIGS)
def test_schedule_equals_its_formula(name, first_step):
    """During warm-up, at its boundary and after it."""
    rate = learning_rate_schedule(
        CONFIGS[name].with_values({"optimizer.schedule_first_step": first_step})
    )
    updates = [1, 2, 50, 99, 100, 101, 102, 399, 1000, 5000]
    expected = [formula(name, update - 1 + first_step) for update in updates]
    np.testing.assert_allclose(
        [float(rate(update)) for update in updates], expected, rtol=2e-5, atol=1e-12
    )
    np.testing.assert_allclose(rate(jnp.array(updates)), expected, rtol=2e-5, atol=1e-12)


@pytest.mark.parametrize("name", CONFIGS)
def test_explain_shows_rates_that_do_not_depend_on_train_steps(name):
    """A run may be resumed with more steps."""
    title, *shorter = _schedule(CONFIGS[name].with_values({"train.steps": 1200}))
    assert title == f"learning rate (adam, {name})"
    longer = _schedule(CONFIGS[name].with_values({"train.steps": 2400}))[1:]
    rates = dict(line.split()[1:] for line in longer)
    assert "1,200" in rates
    for line in shorter:
        _, update, rate = line.split()
        assert rates.get(update, rate) == rate


@pytest.mark.parametrize(
    ("d_model", "t", "rate"),
    [
        (512, 1, 1.746928e-07),
        (512, 4000, 6.987712e-04),
        (512, 10_000, 4.419417e-04),
        (512, 100_000, 1.397542e-04),
        (1024, 4000, 4.941059e-04),
    ],
)
def test_noam_matches_the_papers_rates(d_model, t, rate):
    config = Config(model=Model(d_model=d_model))
    assert float(learning_rate_schedule(config)(t)) == pytest.approx(rate, rel=1e-5)
