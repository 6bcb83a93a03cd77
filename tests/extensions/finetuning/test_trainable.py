"""Frozen parameters: no update, no optimizer state, no gradient, on every mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import devices_mesh, random_pairs, small_config, write_store
from helpers.refusals import refused
from helpers.updates import run_updates

from t2t_flax import config as config_lib
from t2t_flax.data.batching.batches import Batches
from t2t_flax.extensions.finetuning.frozen import matching
from t2t_flax.models.dropout import Noise, noise_key
from t2t_flax.registry import OPTIMIZERS, load_extensions
from t2t_flax.training.losses import loss_sums
from t2t_flax.training.model_summary import describe
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.parametrization import join, parametrization_of
from t2t_flax.training.train_state import abstract_state, make_model

load_extensions()
TREE = {
    "encoder_0": {"norm": {"scale": 1}, "self_attention": {"query": {"kernel": 2}}},
    "encoder_1": {"norm": {"scale": 3}},
    "encoder_10": {"norm": {"scale": 4}},
    "shared_embedding": {"table": 5},
}
PATHS = [
    "encoder_0/norm/scale",
    "encoder_0/self_attention/query/kernel",
    "encoder_1/norm/scale",
    "encoder_10/norm/scale",
    "shared_embedding/table",
]


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        ("encoder_*", PATHS[:4]),
        ("encoder_1", PATHS[2:3]),
        ("*/norm", [PATHS[0], *PATHS[2:4]]),
        ("shared_embedding/* encoder_0/self_attention", [PATHS[1], PATHS[4]]),
        ("*/query/kernel,shared_embedding", [PATHS[1], PATHS[4]]),
    ],
)
def test_patterns_match_paths_and_folders(patterns, found):
    assert matching(patterns, PATHS, "config.finetuning.freeze") == set(found)


def test_a_pattern_without_a_match_is_refused_with_the_closest_paths():
    with refused("finetuning.freeze", "encodr_1", "encoder_1"):
        matching("shared_embedding encodr_1", PATHS, "config.finetuning.freeze")


def test_split_and_join():
    config = small_config(finetuning=dict(freeze="encoder_0 shared_embedding"))
    trained, frozen = parametrization_of(config).split(TREE)
    assert trained == {name: TREE[name] for name in ("encoder_1", "encoder_10")}
    assert frozen == {name: TREE[name] for name in ("encoder_0", "shared_embedding")}
    assert join(trained, frozen) == TREE
    with refused("finetuning.freeze"):
        parametrization_of(small_config(finetuning=dict(freeze="*"))).split(TREE)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("data") / "store", random_pairs(200, longest=22))


FREEZE = dict(freeze="encoder_* */cross_attention/key shared_embedding")
KEYS = dict(optimizer=dict(lr_scale=2.0, weight_decay=0.1, ema_decay=0.9, max_grad_norm=0.5))


@pytest.fixture(scope="module")
def frozen_run(store):
    config = small_config(finetuning=FREEZE, **KEYS)
    return config, *run_updates(config, store)


def test_frozen_parameters_and_their_average_do_not_change(frozen_run):
    """Weight decay, clipping and the moving average are on."""
    config, before, after, _ = frozen_run
    for name in ("params", "ema"):
        (trained, frozen), (old_trained, old_frozen) = (
            parametrization_of(config).split(getattr(s, name)) for s in (after, before)
        )
        jax.tree.map(np.testing.assert_array_equal, frozen, old_frozen)
        changed = [
            not np.array_equal(a, b)
            for a, b in zip(*map(jax.tree.leaves, (trained, old_trained)), strict=True)
        ]
        assert all(changed)


def test_an_update_is_that_of_the_optimizer_on_the_trained_gradients(store):
    """Oracle: the gradient of all parameters, cut to the trained ones.

    So are its norm and the clipping.
    """
    config = small_config(finetuning=FREEZE, **KEYS)
    before, after, (metrics,) = run_updates(config, store, updates=1)
    model, tx = make_model(config, 37, 37), make_optimizer(config, parametrization_of(config))
    first = Batches(store, config.data, seed=0).batch(0)
    batch = {k: x[0] for k, x in first.rows(0, first.shape.rows).items()}
    noise = Noise(
        noise_key(config.seed.dropout, jnp.int32(0)),
        jnp.arange(len(batch["target"]), dtype=jnp.uint32),
    )
    grads = jax.jit(jax.grad(lambda p: loss_sums(config, model, p, batch, noise)[0]))(before.params)
    grads = jax.tree.map(
        lambda g: g / metrics["tokens"], parametrization_of(config).split(grads)[0]
    )
    norm = np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in jax.tree.leaves(grads)))
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    old = parametrization_of(config).split(before.params)[0]
    updates, _ = tx.update(grads, tx.init(old), old)
    for new, was, update in zip(
        *map(jax.tree.leaves, (parametrization_of(config).split(after.params)[0], old, updates)),
        strict=True,
    ):
        np.testing.assert_allclose(
            new - was, update, atol=2e-4 * float(jnp.abs(update).max()) + 1e-7
        )


@pytest.mark.parametrize("shape", [(2, 2, 2), pytest.param((1, 8, 1), marks=pytest.mark.drill)])
def test_losses_are_the_same_on_every_mesh(store, frozen_run, shape):
    config, _, _, metrics = frozen_run
    _, _, on_mesh = run_updates(config, store, shape)
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(
            [m[name] for m in on_mesh], [m[name] for m in metrics], rtol=1e-4
        )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_leaves_frozen_parameters_out(name):
    config = small_config(finetuning=FREEZE, optimizer=dict(name=name, weight_decay=0.1))
    mesh = devices_mesh(fsdp=2)
    state = abstract_state(
        config,
        make_model(config, 37, 37),
        make_optimizer(config, parametrization_of(config)),
        parametrization_of(config),
        mesh,
    )[0]
    paths = {
        jax.tree_util.keystr(p, simple=True) for p, _ in jax.tree.leaves_with_path(state.opt_state)
    }
    assert any("decoder_0" in p for p in paths) and not any(
        "encoder_0" in p or "shared" in p for p in paths
    )


def test_explain_shows_counts(store):
    config = config_lib.load_config("aiayn_base", {"finetuning.freeze": "encoder_*"})
    lines = dict(
        line.strip().rsplit(maxsplit=1)
        for line in describe(config).splitlines()
        if line.startswith("  ")
    )
    count = {name: int(lines[name].replace(",", "")) for name in ("all", "trained", "frozen")}
    assert count["frozen"] == 6 * (4 * 512**2 + 2 * 512 * 2048 + 2048 + 512 + 2 * 2 * 512)
    assert count["trained"] + count["frozen"] == count["all"]
