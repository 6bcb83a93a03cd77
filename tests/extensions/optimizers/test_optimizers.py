"""Optimizers that are not the paper's: formulas, state on the mesh and in checkpoints."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.configs import devices_mesh, model_and_state, random_pairs, small_config, write_store
from helpers.refusals import refused
from helpers.runs import start, tiny_run
from helpers.updates import assert_trees_close, updates_of

from t2t_flax.config import Config
from t2t_flax.data.batching.batches import Batches
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.optimizers.optimizers import muon_axes
from t2t_flax.extensions.shared.matrices import MATRIX_AXES
from t2t_flax.registry import FEED_FORWARDS, MIXERS, load_extensions
from t2t_flax.training import loop
from t2t_flax.training.optimizer import (
    learning_rate_schedule,
    make_optimizer,
    where_finite,
)
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.prefetcher import put_batch
from t2t_flax.training.progress import read_metrics
from t2t_flax.training.train_state import abstract_state, init_state, make_model
from t2t_flax.training.train_step import jit_train_step
from t2t_flax.training.validation import validation_loss

load_extensions()
SCHEDULE = {
    "optimizer.schedule": "linear", "optimizer.peak_lr": 1e-2, "optimizer.warmup_steps": 2, "optimizers.decay_steps": 100,
}  # fmt: skip
KEYS = {
    "adafactor": {"optimizer.name": "adafactor"},
    "lion": {"optimizer.name": "lion", "optimizer.weight_decay": 0.1, "optimizer.peak_lr": 1e-3},
    "muon": {"optimizer.name": "muon"},
    "nadamw": {"optimizer.name": "nadamw", "optimizer.weight_decay": 0.1},
    "schedule_free_adamw": {"optimizer.name": "schedule_free_adamw", "optimizer.weight_decay": 0.1},
}
CONFIGS = {name: Config().with_values(SCHEDULE | keys) for name, keys in KEYS.items()}
GRADS = [{"w": jnp.full((2, 2), 3.0) * k, "b": jnp.array([1.0, -2.0])} for k in (1, -2, 5)]


def updates(config: Config, grads: list, params=None) -> list:
    """The updates for a sequence of gradients, at fixed parameters."""
    return updates_of(
        make_optimizer(config, parametrization_of(config)),
        grads,
        params or {"w": jnp.ones((2, 2)), "b": jnp.ones(2)},
    )


@pytest.mark.smoke
def test_lion_equals_its_formulas():
    """Chen et al. 2023, algorithm 2, with decoupled weight decay of matrices."""
    config = CONFIGS["lion"]
    o, actual, rate = config.optimizer, updates(config, GRADS), learning_rate_schedule(config)
    m = {"w": np.zeros((2, 2)), "b": np.zeros(2)}
    for t, grads in enumerate(GRADS, 1):
        for name, decay in (("w", 0.1), ("b", 0.0)):
            g = np.asarray(grads[name], np.float64)
            step = np.sign(o.b1 * m[name] + (1 - o.b1) * g) + decay * 1.0
            m[name] = o.b2 * m[name] + (1 - o.b2) * g
            np.testing.assert_allclose(actual[t - 1][name], -float(rate(t)) * step, rtol=1e-5)


def test_nadamw_equals_its_formulas():
    """Dozat 2016, algorithm 2, with a constant momentum and without the b2 in its second moment.

    Decoupled weight decay.
    """
    config = CONFIGS["nadamw"]
    o, actual, rate = config.optimizer, updates(config, GRADS), learning_rate_schedule(config)
    m, v = ({"w": np.zeros((2, 2)), "b": np.zeros(2)} for _ in range(2))
    for t, grads in enumerate(GRADS, 1):
        for name, decay in (("w", 0.1), ("b", 0.0)):
            g = np.asarray(grads[name], np.float64)
            m[name] = o.b1 * m[name] + (1 - o.b1) * g
            v[name] = o.b2 * v[name] + (1 - o.b2) * g**2
            momentum = o.b1 * m[name] / (1 - o.b1 ** (t + 1)) + (1 - o.b1) * g / (1 - o.b1**t)
            step = momentum / (np.sqrt(v[name] / (1 - o.b2**t)) + o.eps) + decay * 1.0
            np.testing.assert_allclose(actual[t - 1][name], -float(rate(t)) * step, rtol=1e-5)


@pytest.mark.parametrize("skipped", [(), (2, 3)])
def test_schedule_free_adamw_equals_its_formulas(skipped):
    """Defazio et al.

    2024, algorithm 1, through warm-up and a decay: y is trained, x is evaluated. Updates that are
    skipped change nothing, and the rates of the others stay those of their numbers.
    """
    config = CONFIGS["schedule_free_adamw"].with_values(
        {"optimizers.decay_steps": 6, "optimizer.warmup_steps": 4}
    )
    o, rate = config.optimizer, learning_rate_schedule(config)
    tx = make_optimizer(config, parametrization_of(config))
    params = {"w": jnp.ones((2, 2)), "b": jnp.array([1.0, -0.5])}
    state, total, largest = tx.init(params), 0.0, 0.0
    x, y, z = ({name: np.asarray(p, np.float64) for name, p in params.items()} for _ in range(3))
    v = {name: np.zeros_like(p) for name, p in x.items()}
    applied = 0
    for t, grads in enumerate([*GRADS, *GRADS], 1):
        steps, new = tx.update(grads, state, params)
        new = optax.apply_updates(params, steps), new
        params, state = where_finite(jnp.asarray(t not in skipped), new, (params, state))
        if t in skipped:
            continue
        applied += 1
        largest = max(largest, float(rate(t)))
        total += largest**2
        c = largest**2 / total
        for name, decay in (("w", 0.1), ("b", 0.0)):
            g = np.asarray(grads[name], np.float64)
            v[name] = o.b2 * v[name] + (1 - o.b2) * g**2
            step = g / (np.sqrt(v[name] / (1 - o.b2**applied)) + o.eps) + decay * y[name]
            z[name] = z[name] - float(rate(t)) * step
            x[name] = (1 - c) * x[name] + c * z[name]
            y[name] = (1 - o.b1) * z[name] + o.b1 * x[name]
        assert_trees_close(params, y, rtol=2e-5)
        assert_trees_close(tx.average(None, params, state), x, rtol=2e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_averages_if_its_optimizer_does(name):
    """The config says so without JAX, by the key that the row ignores."""
    config = CONFIGS[name]
    tx = make_optimizer(config, parametrization_of(config))
    assert (tx.average is not None) == config.optimizer.averages


def test_schedule_free_adamw_starts_where_the_run_starts():
    """Its z and x are the first parameters, also where these are taken from another run."""
    config = small_config(optimizer=dict(name="schedule_free_adamw"))

    def moved(own):
        return jax.tree.map(lambda p: p + 1.0, own)

    state, _ = init_state(
        config,
        make_model(config, 37, 37),
        make_optimizer(config, parametrization_of(config)),
        parametrization_of(config),
        devices_mesh(),
        start=moved,
    )
    for tree in (state.ema, state.opt_state.z):
        assert_trees_close(tree, state.params, rtol=0, atol=0)


@pytest.mark.slow
def test_the_average_is_what_is_evaluated(tmp_path, cache):
    """In training, and by the commands that restore a run."""
    keys = dict(optimizer=dict(name="schedule_free_adamw", lr_scale=5.0), eval=dict(every_steps=8))
    setup = start(tiny_run(tmp_path, steps=8, **keys), tmp_path, cache)
    state = loop.train(setup, score=None).state
    params, average = jax.device_get((state.params, state.ema))
    assert (
        max(
            np.abs(p - a).max()
            for p, a in zip(jax.tree.leaves(params), jax.tree.leaves(average), strict=True)
        )
        > 0.01
    )
    assert_trees_close(jax.device_get(load(tmp_path).params), average, rtol=0, atol=0)
    of_loss = validation_loss(setup)

    def loss(params):
        return of_loss(params, lambda: None)["nll"]

    logged = next(line["valid_nll"] for line in read_metrics(tmp_path) if "valid_nll" in line)
    assert logged == loss(state.ema) != loss(state.params)


def test_adafactor_equals_its_formulas():
    """Shazeer & Stern 2018, algorithm 4, with relative step sizes.

    Factored from 128 x 128 on, whole below.
    """
    config, rng = CONFIGS["adafactor"], np.random.default_rng(0)
    params = {
        "w": rng.normal(size=(128, 160)),
        "small": rng.normal(size=(4, 160)),
        "b": rng.normal(size=8),
    }
    grads = [jax.tree.map(lambda p: rng.normal(size=p.shape), params) for _ in range(2)]

    def as_arrays(tree):
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)

    actual = updates(config, [as_arrays(g) for g in grads], as_arrays(params))

    def rms(x):
        return np.sqrt(np.mean(x * x))

    v = {name: 0.0 for name in ("rows", "columns", "small", "b")}
    for t, g in enumerate(grads, 1):
        beta = 1 - t**-0.8

        def mix(name, new, beta=beta):
            return v.update({name: beta * v[name] + (1 - beta) * new}) or v[name]

        rows, columns = (
            mix("rows", np.mean(g["w"] ** 2, 1)),
            mix("columns", np.mean(g["w"] ** 2, 0)),
        )
        second = {
            "w": np.outer(rows, columns) / rows.mean(),
            "small": mix("small", g["small"] ** 2),
            "b": mix("b", g["b"] ** 2),
        }
        rate = float(learning_rate_schedule(config)(t))
        for name, moment in second.items():
            step = g[name] / np.sqrt(moment)
            step = step / max(1.0, rms(step)) * max(1e-3, rms(params[name]))
            np.testing.assert_allclose(actual[t - 1][name], -rate * step, rtol=2e-4)


def test_muon_orthogonalizes_kernels_as_matrices(monkeypatch):
    """[D, N, H] and [N, H, D] kernels as [D, N x H] and [N x H, D] matrices.

    Vectors and tables by Nesterov's Adam.
    """
    monkeypatch.setitem(MATRIX_AXES, "taps", (1, 2))
    config, rng = CONFIGS["muon"], np.random.default_rng(0)
    shapes = {"query": (16, 4, 8), "out": (4, 8, 16), "Einsum_0": (16, 24), "taps": (3, 16, 16)}
    params = {
        name: {"kernel": jnp.asarray(rng.normal(size=s), jnp.float32)} for name, s in shapes.items()
    }
    params |= {"embedding": {"table": jnp.ones((24, 16))}, "norm": {"scale": jnp.ones(16)}}
    grads = [
        jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), jnp.float32), params)
        for _ in range(2)
    ]
    actual = updates(config, grads, params)

    def matrices(tree):
        taps = tree["taps"]["kernel"]
        return {
            "query": tree["query"]["kernel"].reshape(16, 32),
            "out": tree["out"]["kernel"].reshape(32, 16),
            "Einsum_0": tree["Einsum_0"]["kernel"],
        } | {f"taps{i}": taps[i] for i in range(3)}

    def rate(count):
        return learning_rate_schedule(config)(count + 1)

    oracle = optax.contrib.muon(rate, beta=0.95, eps=1e-9, consistent_rms=0.2)
    expected = updates_of(oracle, [matrices(g) for g in grads], matrices(params))
    adam = optax.chain(
        optax.scale_by_adam(0.9, 0.98, 1e-9, nesterov=True), optax.scale_by_learning_rate(rate)
    )
    by_adam = updates_of(adam, grads, params)
    for t in (0, 1):
        assert_trees_close(matrices(actual[t]), expected[t], rtol=1e-4, atol=1e-8)
        assert_trees_close(actual[t]["embedding"], by_adam[t]["embedding"], rtol=1e-5, atol=1e-9)
        assert_trees_close(actual[t]["norm"], by_adam[t]["norm"], rtol=1e-5, atol=1e-9)
        values = np.linalg.svd(matrices(actual[t])["query"], compute_uv=False) / (
            float(rate(t)) * 0.2 * np.sqrt(32)
        )
        assert 0.6 < values.min() and values.max() < 1.3


@pytest.mark.parametrize(
    "key, value", [("mixer", m) for m in MIXERS] + [("feed_forward", f) for f in FEED_FORWARDS]
)
def test_muon_trains_every_kernel_of_every_layer(key, value):
    state = state_of(small_config(model={key: value}, optimizer=dict(name="muon")))
    axes = jax.tree_util.tree_leaves_with_path(
        muon_axes(state.params), is_leaf=lambda x: x is None or isinstance(x, tuple)
    )
    of_kernels = {path[-1].key == "kernel": value is not None for path, value in axes}
    assert of_kernels == {True: True, False: False}
    momentum = state.opt_state[1].inner_states["muon"].inner_state[0].mu
    assert len(jax.tree.leaves(momentum)) == sum(value is not None for _, value in axes)


def state_of(config: Config):
    model, tx = make_model(config, 37, 37), make_optimizer(config, parametrization_of(config))
    return abstract_state(config, model, tx, parametrization_of(config), devices_mesh())[0]


def test_muon_needs_a_kernel_to_train():
    """Not where kernels are frozen, as beside adapters."""
    with refused("optimizer.name", "muon"):
        muon_axes(
            {"embedding": {"table": jnp.ones((2, 3))}, "lora": {"query": {"a": jnp.ones((2, 1))}}}
        )


def test_muon_reports_a_kernel_with_unknown_axes():
    with refused("mixer/kernel", error=ValueError):
        muon_axes({"mixer": {"kernel": jnp.ones((2, 3, 4))}})


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("data") / "store", random_pairs(400, longest=22))


def config_of(name: str, **groups) -> Config:
    """One layer whose feed-forward kernels Adafactor factors."""
    layer = dict(num_encoder_layers=1, num_decoder_layers=1, d_model=128, d_ff=128, num_heads=2)
    config = small_config(model=layer, train=dict(precision="float32"), **groups)
    return config.with_values(SCHEDULE | KEYS[name])


class Trainer:
    """Updates of a config on a mesh."""

    def __init__(self, config: Config, store, **mesh_shape):
        self.config, self.mesh = config, devices_mesh(**mesh_shape)
        self.model, self.tx, self.first, shardings = model_and_state(config, self.mesh)
        self._batches = Batches(store, config.data, seed=0, shards=mesh_lib.batch_shards(self.mesh))
        self._step = jit_train_step(
            config, self.model, self.tx, parametrization_of(config), self.mesh, shardings
        )

    def train(self, state, updates: range):
        losses = []
        with mesh_lib.use(self.mesh):
            for k in updates:
                state, metrics = self._step(
                    state, put_batch(self._batches.batch(k), self.mesh).arrays
                )
                losses.append(float(metrics["loss"]))
        return state, losses


@pytest.fixture(scope="module")
def trained(store):
    """optimizer -> (trainer, state after 8 updates, losses), on one device."""
    results = {}

    def train(name: str):
        if name not in results:
            trainer = Trainer(config_of(name), store)
            results[name] = (
                trainer,
                *trainer.train(jax.tree.map(jnp.copy, trainer.first), range(8)),
            )
        return results[name]

    return train


@pytest.mark.parametrize(
    ("name", "fsdp_mode"),
    [
        ("adafactor", "zero1"),
        ("muon", "full"),
        ("schedule_free_adamw", "zero1"),
    ],
)
@pytest.mark.slow
def test_sharded_training_equals_unsharded(trained, store, name, fsdp_mode):
    _, unsharded, losses = trained(name)
    trainer = Trainer(config_of(name, mesh=dict(fsdp_mode=fsdp_mode)), store, fsdp=2)
    state, sharded = trainer.train(trainer.first, range(8))
    np.testing.assert_allclose(sharded, losses, rtol=1e-5)
    assert_trees_close(state.params, unsharded.params, atol=2e-4)
    assert_trees_close(state.ema, unsharded.ema, atol=2e-4)

    def divided(tree):
        return {
            str(x.sharding.spec)
            for x in jax.tree.leaves(tree)
            if not x.sharding.is_fully_replicated
        }

    assert divided(state.opt_state) and bool(divided(state.params)) == (fsdp_mode == "full")
    # Leaves of a parameter's shape are sharded like it; vectors of factored moments are replicated.
    for leaf in jax.tree.leaves(state.opt_state):
        if leaf.ndim > 1:
            assert not leaf.sharding.is_fully_replicated


@pytest.mark.parametrize("name", ["adam", *KEYS])
def test_optimizer_state_tree_does_not_depend_on_clipping(name):
    """So clipping can be switched on or off when a run resumes."""
    params = {"w": {"kernel": jnp.ones((2, 2))}, "b": {"bias": jnp.ones(2)}}
    config = CONFIGS.get(name, Config())
    first, second = (
        make_optimizer(
            config.with_values({"optimizer.max_grad_norm": norm}),
            parametrization_of(config.with_values({"optimizer.max_grad_norm": norm})),
        ).init(params)
        for norm in (0.0, 1.0)
    )
    assert jax.tree.structure(first) == jax.tree.structure(second)
