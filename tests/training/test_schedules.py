"""Learning-rate schedules against their formulas in float64."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_flax.config import Config, Optimizer, Train, default_config, override, resolve
from t2t_flax.config.optimizer_keys import KEYS_OF_OPTIMIZER, KEYS_OF_SCHEDULE
from t2t_flax.errors import UserError
from t2t_flax.registry import OPTIMIZERS, SCHEDULES
from t2t_flax.training.model_summary import _schedule
from t2t_flax.training.schedules import learning_rate_schedule

D_MODEL = 512
KEYS = dict(peak_lr=1e-3, warmup_steps=100, warmup_init=1e-5)
CONFIGS = {
    "noam": Optimizer(lr_scale=2.0, warmup_steps=100),
    "inverse_sqrt": Optimizer(schedule="inverse_sqrt", **KEYS),
    "constant": Optimizer(schedule="constant", **KEYS),
    "cosine": Optimizer(schedule="cosine", decay_steps=1000, min_lr=1e-4, **KEYS),
    "linear": Optimizer(schedule="linear", decay_steps=1000, min_lr=1e-4, **KEYS),
    "wsd": Optimizer(schedule="wsd", decay_steps=1000, cooldown_steps=300, min_lr=1e-4, **KEYS),
}


def formula(name: str, t: int) -> float:
    """The learning rate at update t, written out for each of CONFIGS."""
    if name == "noam":
        return 2.0 * D_MODEL**-0.5 * min(t**-0.5 if t else math.inf, t * 100**-1.5)
    if t < 100:
        return 1e-5 + (1e-3 - 1e-5) * t / 100
    share = {  # of the way down from peak_lr to min_lr
        "cosine": (1 - math.cos(math.pi * min(1, (t - 100) / 900))) / 2,
        "linear": min(1, (t - 100) / 900),
        "wsd": min(1, max(0, (t - 700) / 300)),
    }
    if name in share:
        return 1e-3 - (1e-3 - 1e-4) * share[name]
    return 1e-3 if name == "constant" else 1e-3 * math.sqrt(100 / t)


@pytest.mark.parametrize("first_step", [0, 1])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_equals_its_formula(name, first_step):
    """During warm-up, at each boundary, between them, at the end and after it."""
    rate = learning_rate_schedule(dataclasses.replace(CONFIGS[name], schedule_first_step=first_step), D_MODEL)
    updates = [1, 2, 50, 99, 100, 101, 102, 399, 550, 699, 700, 701, 702, 850, 999, 1000, 1001, 1002, 5000]
    expected = [formula(name, update - 1 + first_step) for update in updates]
    np.testing.assert_allclose([float(rate(update)) for update in updates], expected, rtol=2e-5, atol=1e-12)
    np.testing.assert_allclose(rate(jnp.array(updates)), expected, rtol=2e-5, atol=1e-12)


@pytest.mark.parametrize("name", ["cosine", "linear", "wsd"])
def test_decay_ends_exactly_at_the_floor_and_stays_there(name):
    rate = learning_rate_schedule(CONFIGS[name], D_MODEL)
    assert float(rate(1000)) == float(rate(10**6)) == np.float32(1e-4)
    assert float(rate(999)) > np.float32(1e-4)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_can_be_traced(name):
    """Runs trained together differ in lr_scale, peak_lr, warmup_steps and warmup_init."""
    o, traced = CONFIGS[name], ("lr_scale", "peak_lr", "warmup_steps", "warmup_init")

    @jax.jit
    def rate(values, update):
        return learning_rate_schedule(dataclasses.replace(o, **values), D_MODEL)(update)

    values = {key: np.float32(getattr(o, key)) for key in traced}
    for update in (1, 100, 600, 900, 2000):
        plain = float(learning_rate_schedule(o, D_MODEL)(update))
        assert float(rate(values, update)) == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("name", SCHEDULES)
def test_explain_shows_rates_that_do_not_depend_on_train_steps(name):
    """A run may be resumed with more steps."""
    title, *shorter = _schedule(config_of(name, steps=1200))
    assert title == f"learning rate (adam, {name})"
    rates = dict(line.split()[1:] for line in _schedule(config_of(name, steps=2400))[1:])
    assert ("1,000" in rates) == ("decay_steps" in KEYS_OF_SCHEDULE[name])
    for line in shorter:
        _, update, rate = line.split()
        assert rates.get(update, rate) == rate


def config_of(name: str, steps: int) -> Config:
    return Config(optimizer=CONFIGS[name], train=Train(steps=steps))


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
    assert float(learning_rate_schedule(Optimizer(), d_model)(t)) == pytest.approx(rate, rel=1e-5)


def test_noam_equals_inverse_sqrt_of_the_same_peak():
    peak = (512 * 4000) ** -0.5
    noam, inverse_sqrt = Optimizer(), Optimizer(schedule="inverse_sqrt", peak_lr=peak)
    t = jnp.arange(1, 20_000, 7)
    np.testing.assert_allclose(
        learning_rate_schedule(noam, 512)(t), learning_rate_schedule(inverse_sqrt, 512)(t), rtol=1e-5
    )


def test_unknown_schedule_raises():
    with pytest.raises(ValueError, match="'step' is none of noam, inverse_sqrt"):
        learning_rate_schedule(Optimizer(schedule="step"), 512)


def test_schedule_choices_match_the_table():
    assert list(KEYS_OF_SCHEDULE) == list(SCHEDULES) and list(KEYS_OF_OPTIMIZER) == list(OPTIMIZERS)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"schedule": "cosine"}, "schedule = cosine needs config.optimizer.decay_steps"),
        ({"schedule": "wsd", "decay_steps": "9000"}, "schedule = wsd needs config.optimizer.cooldown_steps"),
        ({"schedule": "linear", "decay_steps": "4000"}, "decay_steps = 4000 must be at least 4001"),
        (
            {"schedule": "wsd", "decay_steps": "5000", "cooldown_steps": "1001"},
            "decay_steps = 5000 must be at least 5001, since it counts the optimizer.warmup_steps = 4000 and",
        ),
        (
            {"schedule": "cosine", "decay_steps": "9000", "min_lr": "1"},
            "min_lr = 1.0 is above config.optimizer.peak_lr",
        ),
        (
            {"decay_steps": "9000"},
            "decay_steps = 9000 is for schedule cosine, linear, wsd; config.optimizer.schedule = noam",
        ),
        ({"schedule": "cosine", "decay_steps": "9000", "lr_scale": "2"}, "lr_scale = 2.0 is for schedule noam"),
        (
            {"schedule": "cosine", "decay_steps": "9000", "cooldown_steps": "9"},
            "cooldown_steps = 9 is for schedule wsd",
        ),
        ({"name": "lion", "eps": "1e-8"}, "eps = 1e-08 is for name adam, adamw, muon; config.optimizer.name = lion"),
        ({"name": "adafactor", "b1": "0.5"}, "b1 = 0.5 is for name adam, adamw, lion, muon"),
        ({"momentum": "0.5"}, "momentum = 0.5 is for name muon"),
        ({"name": "adamw"}, "name = adamw needs config.optimizer.weight_decay > 0"),
    ],
)
def test_contradictory_optimizer_keys_are_refused(keys, message):
    with pytest.raises(UserError) as error:
        resolve(override(default_config(), {f"optimizer.{key}": value for key, value in keys.items()}))
    assert message in str(error.value)
