"""The schedule of section 5.3 and Adam with what can be added to it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.configs import devices_mesh, model_and_state, small_config

from t2t_flax import config as config_lib
from t2t_flax.config import Config, Optimizer
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.optimizer import decayed, make_optimizer, schedule
from t2t_flax.training.train_state import init_state


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
    free, clipped = updates(Optimizer(eps=1.0), GRADS), updates(Optimizer(eps=1.0, max_grad_norm=0.1), GRADS)
    norm = float(jnp.sqrt(sum((g**2).sum() for g in GRADS[0].values())))
    by_hand = updates(Optimizer(eps=1.0), [{k: g * 0.1 / norm for k, g in GRADS[0].items()}])
    np.testing.assert_allclose(clipped[0]["w"], by_hand[0]["w"], rtol=1e-5)
    assert not np.allclose(clipped[0]["w"], free[0]["w"])


@pytest.mark.parametrize("others", [{}, dict(weight_decay=0.1)])
def test_the_tree_of_the_state_does_not_depend_on_clipping(others):
    """So that clipping can begin, or end, where a run is resumed."""
    params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
    trees = [
        make_optimizer(dataclasses.replace(Config(), optimizer=Optimizer(max_grad_norm=norm, **others))).init(params)
        for norm in (0.0, 1.0)
    ]
    assert jax.tree.structure(trees[0]) == jax.tree.structure(trees[1])
    assert isinstance(trees[0][0], optax.ScaleByAdamState)  # where checkpoints have it


def test_a_checkpoint_whose_chain_began_with_clipping_is_restored(tmp_path):
    """Clipping was a part of the chain once; the tree then had an empty state before Adam's."""
    config = small_config(optimizer=dict(max_grad_norm=1.0))
    model, tx, state, _ = model_and_state(config)
    state = state.replace(opt_state=jax.tree.map(lambda x: x + 1, state.opt_state))
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    meta = {"step": 3, "config": config_lib.as_json(config), "digests": {}, "progress": {}}
    checkpoints.save(state.replace(opt_state=(optax.EmptyState(), *state.opt_state)), meta, None)
    checkpoints.wait()
    abstract, _ = init_state(config, model, tx, devices_mesh(), abstract=True)
    restored, _ = checkpoints.restore_latest(abstract, config)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for a, b in zip(jax.tree.leaves(restored.opt_state), jax.tree.leaves(state.opt_state), strict=True):
        np.testing.assert_array_equal(a, b)


def test_weight_decay_takes_matrices_only():
    free, decayed = updates(Optimizer(), GRADS), updates(Optimizer(weight_decay=0.1), GRADS)
    rate = float(schedule(Optimizer(), 512)(1))
    np.testing.assert_allclose(decayed[0]["w"], free[0]["w"] - rate * 0.1, rtol=1e-4)
    np.testing.assert_array_equal(decayed[0]["b"], free[0]["b"])


def test_weight_decay_takes_no_bias_and_no_norm_whatever_its_shape():
    """The biases of queries, keys and values are [heads, width]."""
    config = small_config(model=dict(attention_bias=True, output_bias=True), optimizer=dict(weight_decay=0.1))
    _, tx, state, _ = model_and_state(config)
    taken = jax.tree_util.tree_leaves_with_path(decayed(state.params))
    biases = [
        (path, leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.params)
        if path[-1].key in ("bias", "scale", "output_bias")
    ]
    assert any(len(shape) == 2 for _, shape in biases)
    assert not any(dict(taken)[path] for path, _ in biases)
    kept = {path[-1].key for path, taken_ in taken if taken_}
    assert kept == {"kernel", "table"}
    ones = jax.tree.map(jnp.ones_like, state.params)
    zeros = jax.tree.map(jnp.zeros_like, ones)
    update, _ = tx.update(zeros, tx.init(ones), ones)
    moved = {path: bool(np.any(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(update)}
    assert moved == dict(taken)


def test_an_unknown_schedule_is_an_error():
    with pytest.raises(ValueError, match="unknown schedule 'cosine'"):
        schedule(Optimizer(schedule="cosine"), 512)
