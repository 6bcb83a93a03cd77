"""Adam, clipping and weight decay."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.configs import model_and_state, small_config
from helpers.refusals import refused
from helpers.updates import assert_trees_close, updates_of

from t2t_flax.config import Config, Optimizer
from t2t_flax.training.optimizer import (
    decayed,
    has_bounded_updates,
    learning_rate_schedule,
    make_optimizer,
)
from t2t_flax.training.parametrization import Parametrization

GRADS = [{"w": jnp.full((2, 2), 3.0) * k, "b": jnp.array([1.0, -2.0])} for k in (1, -2, 5)]


def updates(o: Optimizer, grads: list, params=None) -> list:
    """The updates for a sequence of gradients, at fixed parameters."""
    tx = make_optimizer(Config(optimizer=o), Parametrization())
    return updates_of(tx, grads, params or {"w": jnp.ones((2, 2)), "b": jnp.ones(2)})


@pytest.mark.parametrize(
    ("o", "bounded"),
    [
        (Optimizer(schedule="constant", peak_lr=1.0, warmup_steps=1), True),
        (Optimizer(schedule="constant", peak_lr=1.0, warmup_steps=1, b1=0.9087, b2=0.9199), True),
        (Optimizer(schedule="constant", peak_lr=1.0, warmup_steps=1, b1=0.99, b2=0.9), False),
    ],
)
def test_updates_that_count_as_bounded_stay_within_a_few_learning_rates(o, bounded):
    """Gradients that grow, shrink, vanish and return.

    300 updates, the hardest of which end in zeros.
    """
    time = np.arange(300)
    shapes = [
        1.05**time,
        0.9**time,
        np.where(time < 50, 1e15, 0.0),
        np.sin(time) * 1e-15,
        np.where(time % 40, 0.0, 1e10),
    ]
    gradients = [{"w": jnp.asarray(row, jnp.float32)} for row in np.stack(shapes, 1)]
    largest = max(
        float(jnp.abs(u["w"]).max()) for u in updates(o, gradients, {"w": jnp.ones(len(shapes))})
    )
    assert has_bounded_updates(o) == bounded == (largest < 5)


def test_updates_with_weight_decay_do_not_count_as_bounded():
    """With lr * weight_decay > 2 parameters grow geometrically, whatever the gradients."""
    assert not has_bounded_updates(Optimizer(weight_decay=3.0))


def test_adam_equals_its_formulas():
    """Kingma & Ba 2015, algorithm 1, with the paper's constants.

    The first update uses the rate of t = 1.
    """
    actual = updates(Optimizer(), GRADS)
    m = v = np.zeros((2, 2))
    for t, grads in enumerate(GRADS, 1):
        g = np.asarray(grads["w"], np.float64)
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        step = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.98**t)) + 1e-9)
        rate = 512**-0.5 * min(t**-0.5, t * 4000**-1.5)
        np.testing.assert_allclose(actual[t - 1]["w"], -rate * step, rtol=1e-5)


def test_unknown_optimizer_raises():
    with refused("'sgd'", "adam", error=ValueError):
        make_optimizer(Config(optimizer=Optimizer(name="sgd")), Parametrization())


def test_adam_with_weight_decay_is_adamw():
    o = Optimizer(weight_decay=0.1)
    rate = lambda count: learning_rate_schedule(Config(optimizer=o))(count + 1)  # noqa: E731
    oracle = optax.adamw(rate, b1=0.9, b2=0.98, eps=1e-9, weight_decay=0.1, mask=decayed)
    params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
    assert_trees_close(updates(o, GRADS), updates_of(oracle, GRADS, params), rtol=1e-6)


def test_default_state_tree_is_adams_moments_and_a_counter():
    """Beside the empty states of clipping and weight decay."""
    params = {"w": jnp.ones((2, 2))}
    for keys, middle in (({}, ()), ({"weight_decay": 0.1}, (optax.MaskedState,))):
        state = make_optimizer(Config(optimizer=Optimizer(**keys)), Parametrization()).init(params)
        assert tuple(map(type, state)) == (
            optax.EmptyState,
            optax.ScaleByAdamState,
            *middle,
            optax.ScaleByScheduleState,
        )
        assert len(jax.tree.leaves(state)) == 4


def test_clipping_scales_the_global_norm():
    free, clipped = (
        updates(Optimizer(eps=1.0), GRADS),
        updates(Optimizer(eps=1.0, max_grad_norm=0.1), GRADS),
    )
    norm = float(jnp.sqrt(sum((g**2).sum() for g in GRADS[0].values())))
    by_hand = updates(Optimizer(eps=1.0), [{k: g * 0.1 / norm for k, g in GRADS[0].items()}])
    np.testing.assert_allclose(clipped[0]["w"], by_hand[0]["w"], rtol=1e-5)
    assert not np.allclose(clipped[0]["w"], free[0]["w"])


def test_weight_decay_spares_biases_and_norms_of_any_shape():
    """The biases of queries, keys and values are [heads, width]."""
    config = small_config(
        model=dict(attention_bias=True, output_bias=True), optimizer=dict(weight_decay=0.1)
    )
    _, tx, state, _ = model_and_state(config)
    mask = dict(jax.tree_util.tree_leaves_with_path(decayed(state.params)))
    biases = {
        path: leaf.ndim
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.params)
        if path[-1].key in ("bias", "scale", "output_bias")
    }
    assert 2 in biases.values() and not any(mask[path] for path in biases)
    assert {path[-1].key for path, applies in mask.items() if applies} == {"kernel", "table"}
    ones = jax.tree.map(jnp.ones_like, state.params)
    zeros = jax.tree.map(jnp.zeros_like, ones)
    (update,) = updates_of(tx, [zeros], ones)
    moved = {path: bool(np.any(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(update)}
    assert moved == mask
