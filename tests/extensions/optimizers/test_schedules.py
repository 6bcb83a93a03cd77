"""Schedules that decay to a final rate, and the keys of the extension."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from helpers.refusals import assert_names, refused

from t2t_flax.config import Config, default_config, override, resolve
from t2t_flax.training.optimizer import learning_rate_schedule
from t2t_flax.training.workdir import adopt_config, advice, completed

KEYS = {"optimizer.peak_lr": 1e-3, "optimizer.warmup_steps": 100, "optimizer.warmup_init": 1e-5}
KEYS |= {"optimizers.decay_steps": 1000, "optimizers.min_lr": 1e-4}
CONFIGS = {
    "cosine": Config().with_values(KEYS | {"optimizer.schedule": "cosine"}),
    "linear": Config().with_values(KEYS | {"optimizer.schedule": "linear"}),
    "wsd": Config().with_values(
        KEYS | {"optimizer.schedule": "wsd", "optimizers.cooldown_steps": 300}
    ),
}


def formula(name: str, t: int) -> float:
    """The learning rate at update t, written out for each of CONFIGS."""
    if t < 100:
        return 1e-5 + (1e-3 - 1e-5) * t / 100
    share = {  # of the way down from peak_lr to min_lr
        "cosine": (1 - math.cos(math.pi * min(1, (t - 100) / 900))) / 2,
        "linear": min(1, (t - 100) / 900),
        "wsd": min(1, max(0, (t - 700) / 300)),
    }
    return 1e-3 - (1e-3 - 1e-4) * share[name]


@pytest.mark.smoke
@pytest.mark.parametrize("first_step", [0, 1])
@pytest.mark.parametrize("name", CONFIGS)
def test_schedule_equals_its_formula(name, first_step):
    """During warm-up, at each boundary, between them, at the end and after it."""
    rate = learning_rate_schedule(
        CONFIGS[name].with_values({"optimizer.schedule_first_step": first_step})
    )
    updates = [
        1,
        2,
        50,
        99,
        100,
        101,
        102,
        399,
        550,
        699,
        700,
        701,
        702,
        850,
        999,
        1000,
        1001,
        1002,
        5000,
    ]
    expected = [formula(name, update - 1 + first_step) for update in updates]
    np.testing.assert_allclose(
        [float(rate(update)) for update in updates], expected, rtol=2e-5, atol=1e-12
    )
    np.testing.assert_allclose(rate(jnp.array(updates)), expected, rtol=2e-5, atol=1e-12)


@pytest.mark.parametrize("name", CONFIGS)
def test_decay_ends_exactly_at_the_floor_and_stays_there(name):
    rate = learning_rate_schedule(CONFIGS[name])
    assert float(rate(1000)) == float(rate(10**6)) == np.float32(1e-4)
    assert float(rate(999)) > np.float32(1e-4)


COOLDOWN = {"optimizers.decay_steps": "5000", "optimizers.cooldown_steps": "1001"}
REFUSED = [
    ({"optimizer.schedule": "cosine"}, "optimizers.decay_steps"),
    ({"optimizer.schedule": "wsd", "optimizers.decay_steps": "9000"}, "optimizers.cooldown_steps"),
    ({"optimizer.schedule": "linear", "optimizers.decay_steps": "4000"}, "optimizers.decay_steps 4001"),
    ({"optimizer.schedule": "wsd"} | COOLDOWN, "optimizers.decay_steps 5001"),
    ({"optimizer.schedule": "cosine", "optimizers.decay_steps": "9000", "optimizers.min_lr": "1"}, "optimizers.min_lr"),
    ({"optimizers.decay_steps": "9000"}, "optimizers.decay_steps noam"),
    ({"optimizer.schedule": "cosine"} | COOLDOWN, "optimizers.cooldown_steps wsd"),
    ({"optimizer.name": "lion", "optimizer.eps": "1e-8"}, "optimizer.eps lion"),
    ({"optimizer.name": "adafactor", "optimizer.b1": "0.5"}, "optimizer.b1 adafactor"),
    ({"optimizer.name": "schedule_free_adamw", "optimizer.ema_decay": "0.9"}, "optimizer.ema_decay"),
    ({"optimizer.name": "schedule_free_adamw", "optimizer.b1": "0"}, "optimizer.b1"),
    ({"optimizers.momentum": "0.5"}, "optimizers.momentum muon"),
    *(
        ({"optimizer.schedule": name, "optimizers.decay_steps": "9000", "train.steps": "9001"} | more,
         "train.steps 9001 optimizers.decay_steps 9000 optimizers.min_lr")
        for name, more in (("cosine", {}), ("linear", {}), ("wsd", {"optimizers.cooldown_steps": "10"}))
    ),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "names"), REFUSED)
def test_keys_that_do_not_fit_are_refused(keys, names):
    with refused(*names.split()):
        resolve(override(default_config(), {"train.steps": "1000"} | keys))


@pytest.mark.parametrize("more", [{}, {"optimizers.min_lr": "1e-5", "train.steps": "5001"}])
def test_a_training_ends_with_the_decay_or_at_a_final_rate_above_0(more):
    keys = {"optimizer.schedule": "cosine", "optimizers.decay_steps": "5000", "train.steps": "5000"}
    assert float(learning_rate_schedule(resolve(override(default_config(), keys | more)))(4999)) > 0


def test_advice_to_train_on_names_the_end_of_the_decay(tmp_path):
    keys = {"optimizer.schedule": "cosine", "optimizers.decay_steps": "5000", "train.steps": "5000"}
    config = resolve(override(default_config(), keys))
    adopt_config(epath.Path(tmp_path), config)
    marker = {"reason": "steps", "step": 5000, "summary": "", "records": {}}
    (tmp_path / "complete.json").write_text(json.dumps(marker))
    ends = completed(epath.Path(tmp_path), config)
    assert_names(ends, "config.train.steps", "optimizers.decay_steps", "optimizers.min_lr")
    floor = config.with_values({"optimizers.min_lr": 1e-5})
    assert "decay_steps" not in completed(epath.Path(tmp_path), floor)


@pytest.mark.parametrize(("min_lr", "named"), [(1e-4, False), (8e-4, True)])
def test_advice_of_a_lower_peak_names_the_final_rate_above_it(tmp_path, min_lr, named):
    config = CONFIGS["cosine"].with_values({"optimizers.min_lr": min_lr})
    said = advice(config, epath.Path(tmp_path))
    assert "optimizer.peak_lr=0.0005" in said and ("optimizers.min_lr" in said) == named
