"""The schedule of section 5.3 and Adam with what can be added to it."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from t2t_flax.config import Config, Optimizer
from t2t_flax.training.optimizer import make_optimizer, schedule


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
def test_noam_has_the_papers_rates(d_model, t, rate):
    assert float(schedule(Optimizer(), d_model)(t)) == pytest.approx(rate, rel=1e-5)


def test_noam_and_inverse_sqrt_coincide_where_the_peaks_do():
    peak = (512 * 4000) ** -0.5
    a, b = Optimizer(), Optimizer(schedule="inverse_sqrt", peak_lr=peak)
    t = jnp.arange(1, 20_000, 7)
    np.testing.assert_allclose(schedule(a, 512)(t), schedule(b, 512)(t), rtol=1e-5)


def test_warmup_init_and_constant():
    config = Optimizer(schedule="inverse_sqrt", peak_lr=1e-3, warmup_steps=100, warmup_init=5e-4)
    rate = schedule(config, 512)
    np.testing.assert_allclose([rate(50), rate(100), rate(400)], [7.5e-4, 1e-3, 5e-4], rtol=1e-5)
    rate = schedule(dataclasses.replace(config, schedule="constant"), 512)
    np.testing.assert_allclose([rate(50), rate(100), rate(400)], [7.5e-4, 1e-3, 1e-3], rtol=1e-5)


def updates(config, grads):
    tx = make_optimizer(dataclasses.replace(Config(), optimizer=config))
    params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
    state, out = tx.init(params), []
    for g in grads:
        update, state = tx.update(g, state, params)
        out.append(update)
    return out


GRADS = [{"w": jnp.full((2, 2), 3.0) * k, "b": jnp.array([1.0, -2.0])} for k in (1, -2, 5)]


def test_adam_against_its_formulas():
    """Kingma & Ba 2015, algorithm 1, with the paper's constants; the first update uses the rate of t = 1."""
    found = updates(Optimizer(), GRADS)
    m = v = np.zeros((2, 2))
    for t, grads in enumerate(GRADS, 1):
        g = np.asarray(grads["w"], np.float64)
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        step = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.98**t)) + 1e-9)
        rate = 512**-0.5 * min(t**-0.5, t * 4000**-1.5)
        np.testing.assert_allclose(found[t - 1]["w"], -rate * step, rtol=1e-5)


def test_clipping_scales_the_global_norm():
    free, clipped = updates(Optimizer(eps=1.0), GRADS), updates(Optimizer(eps=1.0, clip_norm=0.1), GRADS)
    norm = float(jnp.sqrt(sum((g**2).sum() for g in GRADS[0].values())))
    by_hand = updates(Optimizer(eps=1.0), [{k: g * 0.1 / norm for k, g in GRADS[0].items()}])
    np.testing.assert_allclose(clipped[0]["w"], by_hand[0]["w"], rtol=1e-5)
    assert not np.allclose(clipped[0]["w"], free[0]["w"])


def test_weight_decay_takes_matrices_only():
    free, decayed = updates(Optimizer(), GRADS), updates(Optimizer(weight_decay=0.1), GRADS)
    rate = float(schedule(Optimizer(), 512)(1))
    np.testing.assert_allclose(decayed[0]["w"], free[0]["w"] - rate * 0.1, rtol=1e-4)
    np.testing.assert_array_equal(decayed[0]["b"], free[0]["b"])
