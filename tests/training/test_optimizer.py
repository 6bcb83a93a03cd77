"""Optimizers: formulas, state on the mesh and in checkpoints, clipping and weight decay."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.configs import devices_mesh, model_and_state, random_pairs, small_config, write_store

from t2t_flax import config as config_lib
from t2t_flax.config import Config, Optimizer
from t2t_flax.data.batching.batches import Batches
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.registry import FEED_FORWARDS, MIXERS, OPTIMIZERS, load_extensions
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.optimizer import decayed, has_bounded_updates, make_optimizer, matrix_axes
from t2t_flax.training.prefetch import put_batch
from t2t_flax.training.schedules import learning_rate_schedule
from t2t_flax.training.train_state import init_state, make_model
from t2t_flax.training.train_step import make_train_step

load_extensions()
SCHEDULE = dict(schedule="linear", peak_lr=1e-2, warmup_steps=2, decay_steps=100)
CONFIGS = {
    "adam": Optimizer(**SCHEDULE),
    "adamw": Optimizer(name="adamw", weight_decay=0.1, **SCHEDULE),
    "adafactor": Optimizer(name="adafactor", **SCHEDULE),
    "lion": Optimizer(name="lion", weight_decay=0.1, **SCHEDULE | dict(peak_lr=1e-3)),
    "muon": Optimizer(name="muon", **SCHEDULE),
}


@pytest.mark.parametrize(
    ("o", "bounded"),
    [
        (Optimizer(schedule="constant", peak_lr=1.0, warmup_steps=1), True),
        (Optimizer(schedule="constant", peak_lr=1.0, warmup_steps=1, b1=0.9087, b2=0.9199), True),
        (Optimizer(name="lion", schedule="constant", peak_lr=1.0, warmup_steps=1), True),
        (Optimizer(schedule="constant", peak_lr=1.0, warmup_steps=1, b1=0.99, b2=0.9), False),
    ],
)
def test_updates_that_count_as_bounded_stay_within_a_few_learning_rates(o, bounded):
    """Gradients that grow, shrink, vanish and return: 300 updates, the hardest of which end in zeros."""
    time = np.arange(300)
    shapes = [
        1.05**time,
        0.9**time,
        np.where(time < 50, 1e15, 0.0),
        np.sin(time) * 1e-15,
        np.where(time % 40, 0.0, 1e10),
    ]
    gradients = [{"w": jnp.asarray(row, jnp.float32)} for row in np.stack(shapes, 1)]
    largest = max(float(jnp.abs(u["w"]).max()) for u in updates(o, gradients, {"w": jnp.ones(len(shapes))}))
    assert has_bounded_updates(o) == bounded == (largest < 5)


@pytest.mark.parametrize("name", ["adamw", "lion"])
def test_updates_with_weight_decay_do_not_count_as_bounded(name):
    """With lr * weight_decay > 2 parameters grow geometrically, whatever the gradients."""
    o = Optimizer(name=name, weight_decay=3.0, schedule="constant", peak_lr=1.0, warmup_steps=1)
    assert not has_bounded_updates(o) and has_bounded_updates(dataclasses.replace(o, name="lion", weight_decay=0.0))


def updates(o: Optimizer, grads: list, params=None) -> list:
    """The updates for a sequence of gradients, at fixed parameters."""
    tx = make_optimizer(dataclasses.replace(Config(), optimizer=o))
    return updates_of(tx, grads, params or {"w": jnp.ones((2, 2)), "b": jnp.ones(2)})


def updates_of(tx: optax.GradientTransformation, grads: list, params) -> list:
    state, out, jitted = tx.init(params), [], jax.jit(tx.update)
    for g in grads:
        update, state = jitted(g, state, params)
        out.append(update)
    return out


def assert_trees_close(a, b, **tolerance) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


def assert_trees_equal(a, b) -> None:
    assert_trees_close(a, b, rtol=0, atol=0)


GRADS = [{"w": jnp.full((2, 2), 3.0) * k, "b": jnp.array([1.0, -2.0])} for k in (1, -2, 5)]


def test_adam_equals_its_formulas():
    """Kingma & Ba 2015, algorithm 1, with the paper's constants; the first update uses the rate of t = 1."""
    actual = updates(Optimizer(), GRADS)
    m = v = np.zeros((2, 2))
    for t, grads in enumerate(GRADS, 1):
        g = np.asarray(grads["w"], np.float64)
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        step = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.98**t)) + 1e-9)
        rate = 512**-0.5 * min(t**-0.5, t * 4000**-1.5)
        np.testing.assert_allclose(actual[t - 1]["w"], -rate * step, rtol=1e-5)


def test_lion_equals_its_formulas():
    """Chen et al. 2023, algorithm 2, with decoupled weight decay of matrices."""
    o = CONFIGS["lion"]
    actual, rate = updates(o, GRADS), learning_rate_schedule(o, 512)
    m = {"w": np.zeros((2, 2)), "b": np.zeros(2)}
    for t, grads in enumerate(GRADS, 1):
        for name, decay in (("w", 0.1), ("b", 0.0)):
            g = np.asarray(grads[name], np.float64)
            step = np.sign(o.b1 * m[name] + (1 - o.b1) * g) + decay * 1.0
            m[name] = o.b2 * m[name] + (1 - o.b2) * g
            np.testing.assert_allclose(actual[t - 1][name], -float(rate(t)) * step, rtol=1e-5)


def test_adafactor_equals_its_formulas():
    """Shazeer & Stern 2018, algorithm 4, with relative step sizes: factored from 128 x 128 on, whole below."""
    o, rng = CONFIGS["adafactor"], np.random.default_rng(0)
    params = {"w": rng.normal(size=(128, 160)), "small": rng.normal(size=(4, 160)), "b": rng.normal(size=8)}
    grads = [jax.tree.map(lambda p: rng.normal(size=p.shape), params) for _ in range(2)]
    as_arrays = lambda tree: jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)  # noqa: E731
    actual = updates(o, [as_arrays(g) for g in grads], as_arrays(params))
    rms = lambda x: np.sqrt(np.mean(x * x))  # noqa: E731
    v = {name: 0.0 for name in ("rows", "columns", "small", "b")}
    for t, g in enumerate(grads, 1):
        beta = 1 - t**-0.8
        mix = lambda name, new, beta=beta: v.update({name: beta * v[name] + (1 - beta) * new}) or v[name]  # noqa: E731
        rows, columns = mix("rows", np.mean(g["w"] ** 2, 1)), mix("columns", np.mean(g["w"] ** 2, 0))
        second = {
            "w": np.outer(rows, columns) / rows.mean(),
            "small": mix("small", g["small"] ** 2),
            "b": mix("b", g["b"] ** 2),
        }
        rate = float(learning_rate_schedule(o, 512)(t))
        for name, moment in second.items():
            step = g[name] / np.sqrt(moment)
            step = step / max(1.0, rms(step)) * max(1e-3, rms(params[name]))
            np.testing.assert_allclose(actual[t - 1][name], -rate * step, rtol=2e-4)


def test_muon_orthogonalizes_kernels_as_matrices():
    """[D, N, H] and [N, H, D] kernels as [D, N x H] and [N x H, D] matrices; vectors and tables by Nesterov's Adam."""
    o, rng = CONFIGS["muon"], np.random.default_rng(0)
    shapes = {"query": (16, 4, 8), "out": (4, 8, 16), "Einsum_0": (16, 24), "taps": (3, 16, 16)}
    params = {name: {"kernel": jnp.asarray(rng.normal(size=s), jnp.float32)} for name, s in shapes.items()}
    params |= {"embedding": {"table": jnp.ones((24, 16))}, "norm": {"scale": jnp.ones(16)}}
    grads = [jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), jnp.float32), params) for _ in range(2)]
    actual = updates(o, grads, params)

    def matrices(tree):
        taps = tree["taps"]["kernel"]
        return {
            "query": tree["query"]["kernel"].reshape(16, 32),
            "out": tree["out"]["kernel"].reshape(32, 16),
            "Einsum_0": tree["Einsum_0"]["kernel"],
        } | {f"taps{i}": taps[i] for i in range(3)}

    rate = lambda count: learning_rate_schedule(o, 512)(count + 1)  # noqa: E731
    oracle = optax.contrib.muon(rate, beta=0.95, eps=o.eps, consistent_rms=0.2)
    expected = updates_of(oracle, [matrices(g) for g in grads], matrices(params))
    adam = optax.chain(optax.scale_by_adam(0.9, 0.98, o.eps, nesterov=True), optax.scale_by_learning_rate(rate))
    by_adam = updates_of(adam, grads, params)
    for t in (0, 1):
        assert_trees_close(matrices(actual[t]), expected[t], rtol=1e-4, atol=1e-8)
        assert_trees_close(actual[t]["embedding"], by_adam[t]["embedding"], rtol=1e-5, atol=1e-9)
        assert_trees_close(actual[t]["norm"], by_adam[t]["norm"], rtol=1e-5, atol=1e-9)
        values = np.linalg.svd(matrices(actual[t])["query"], compute_uv=False) / (float(rate(t)) * 0.2 * np.sqrt(32))
        assert 0.6 < values.min() and values.max() < 1.3


@pytest.mark.parametrize("key, value", [("mixer", m) for m in MIXERS] + [("feed_forward", f) for f in FEED_FORWARDS])
def test_muon_trains_every_kernel_of_every_layer(key, value):
    state = abstract_state(small_config(model={key: value}, optimizer=dict(name="muon")))
    axes = jax.tree_util.tree_leaves_with_path(
        matrix_axes(state.params), is_leaf=lambda x: x is None or isinstance(x, tuple)
    )
    of_kernels = {path[-1].key == "kernel": value is not None for path, value in axes}
    assert of_kernels == {True: True, False: False}
    momentum = state.opt_state[0].inner_states["muon"].inner_state[0].mu
    assert len(jax.tree.leaves(momentum)) == sum(value is not None for _, value in axes)


def abstract_state(config: Config):
    model, tx = make_model(config, 37, 37), make_optimizer(config)
    return init_state(config, model, tx, devices_mesh(), abstract=True)[0]


def test_muon_reports_a_kernel_with_unknown_axes():
    with pytest.raises(ValueError, match=r"which axes of mixer/kernel \[2, 3, 4\] are inputs"):
        matrix_axes({"mixer": {"kernel": jnp.ones((2, 3, 4))}})


def test_unknown_optimizer_raises():
    with pytest.raises(ValueError, match="'sgd' is none of adam, adamw"):
        make_optimizer(dataclasses.replace(Config(), optimizer=Optimizer(name="sgd")))


def test_adamw_is_adam_with_weight_decay():
    adamw = updates(CONFIGS["adamw"], GRADS)
    assert_trees_equal(adamw, updates(dataclasses.replace(CONFIGS["adamw"], name="adam"), GRADS))
    rate = lambda count: learning_rate_schedule(CONFIGS["adamw"], 512)(count + 1)  # noqa: E731
    oracle = optax.adamw(rate, b1=0.9, b2=0.98, eps=1e-9, weight_decay=0.1, mask=decayed)
    params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
    assert_trees_close(adamw, updates_of(oracle, GRADS, params), rtol=1e-6)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("data") / "store", random_pairs(400, longest=22))


def config_of(name: str, **groups) -> Config:
    """One layer whose feed-forward kernels Adafactor factors."""
    layer = dict(num_encoder_layers=1, num_decoder_layers=1, d_model=128, d_ff=128, num_heads=2)
    config = small_config(model=layer, train=dict(precision="float32"), **groups)
    return dataclasses.replace(config, optimizer=CONFIGS[name])


class Trainer:
    """Updates of a config on a mesh."""

    def __init__(self, config: Config, store, **mesh_shape):
        self.config, self.mesh = config, devices_mesh(**mesh_shape)
        self.model, self.tx, self.first, shardings = model_and_state(config, self.mesh)
        self._batches = Batches(store, config.data, seed=0, shards=mesh_lib.batch_shards(self.mesh))
        self._step = make_train_step(config, self.model, self.tx, self.mesh, shardings)

    def train(self, state, updates: range):
        losses = []
        with mesh_lib.use(self.mesh):
            for k in updates:
                state, metrics = self._step(state, put_batch(self._batches.batch(k), self.mesh).arrays)
                losses.append(float(metrics["loss"]))
        return state, losses


def slow(*values):
    return [pytest.param(*value, marks=pytest.mark.slow) for value in values]


def drill(*values):
    return [pytest.param(*value, marks=pytest.mark.drill) for value in values]


# Adam is covered by the tests of the loop, the checkpoints and the mesh.
TRAINED = ["lion", *slow(["adafactor"], ["muon"], ["adam"], ["adamw"])]


@pytest.fixture(scope="module")
def trained(store):
    """optimizer -> (trainer, state after 8 updates, losses), on one device."""
    results = {}

    def train(name: str):
        if name not in results:
            trainer = Trainer(config_of(name), store)
            results[name] = (trainer, *trainer.train(jax.tree.map(jnp.copy, trainer.first), range(8)))
        return results[name]

    return train


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.slow
def test_loss_falls(trained, name):
    _, _, losses = trained(name)
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_resuming_from_a_checkpoint_is_bit_exact(trained, name, tmp_path):
    trainer, last, losses = trained(name)
    middle, _ = trainer.train(jax.tree.map(jnp.copy, trainer.first), range(4))
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    meta = {
        "step": 4,
        "updates_per_epoch": 1,
        "config": config_lib.as_json(trainer.config),
        "digests": {},
        "progress": {},
    }
    checkpoints.save(middle, meta, None)
    checkpoints.wait()
    abstract, _ = init_state(trainer.config, trainer.model, trainer.tx, trainer.mesh, abstract=True)
    restored, _ = checkpoints.restore_latest(abstract, trainer.config)
    resumed, later = trainer.train(restored, range(4, 8))
    assert later == losses[4:]
    assert_trees_equal(resumed, last)


@pytest.mark.parametrize(
    ("name", "fsdp_mode"),
    [
        ("adafactor", "zero1"),
        ("muon", "full"),
        *drill(("adafactor", "full"), ("muon", "zero1"), ("lion", "full"), ("lion", "zero1")),
        *drill(("adam", "full"), ("adam", "zero1"), ("adamw", "full"), ("adamw", "zero1")),
    ],
)
@pytest.mark.slow
def test_sharded_training_equals_unsharded(trained, store, name, fsdp_mode):
    _, unsharded, losses = trained(name)
    trainer = Trainer(config_of(name, mesh=dict(fsdp_mode=fsdp_mode)), store, fsdp=2)
    state, sharded = trainer.train(trainer.first, range(8))
    np.testing.assert_allclose(sharded, losses, rtol=1e-5)
    assert_trees_close(state.params, unsharded.params, atol=2e-4)
    divided = lambda tree: {str(x.sharding.spec) for x in jax.tree.leaves(tree) if not x.sharding.is_fully_replicated}  # noqa: E731
    assert divided(state.opt_state) and bool(divided(state.params)) == (fsdp_mode == "full")
    # Leaves of a parameter's shape are sharded like it; vectors of factored moments are replicated.
    for leaf in jax.tree.leaves(state.opt_state):
        if leaf.ndim > 1:
            assert not leaf.sharding.is_fully_replicated


def test_default_state_tree_matches_older_checkpoints():
    """Adam's moments first, then the schedule's counter; weight decay adds an empty state."""
    params = {"w": jnp.ones((2, 2))}
    for keys, middle in (({}, ()), ({"weight_decay": 0.1}, (optax.MaskedState,))):
        state = make_optimizer(Config(optimizer=Optimizer(**keys))).init(params)
        assert tuple(map(type, state)) == (optax.ScaleByAdamState, *middle, optax.ScaleByScheduleState)
        assert len(jax.tree.leaves(state)) == 4


def test_clipping_scales_the_global_norm():
    free, clipped = updates(Optimizer(eps=1.0), GRADS), updates(Optimizer(eps=1.0, max_grad_norm=0.1), GRADS)
    norm = float(jnp.sqrt(sum((g**2).sum() for g in GRADS[0].values())))
    by_hand = updates(Optimizer(eps=1.0), [{k: g * 0.1 / norm for k, g in GRADS[0].items()}])
    np.testing.assert_allclose(clipped[0]["w"], by_hand[0]["w"], rtol=1e-5)
    assert not np.allclose(clipped[0]["w"], free[0]["w"])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_state_tree_does_not_depend_on_clipping(name):
    """So clipping can be switched on or off when a run resumes."""
    params = {"w": {"kernel": jnp.ones((2, 2))}, "b": {"bias": jnp.ones(2)}}
    trees = [
        make_optimizer(Config(optimizer=dataclasses.replace(CONFIGS[name], max_grad_norm=norm))).init(params)
        for norm in (0.0, 1.0)
    ]
    assert jax.tree.structure(trees[0]) == jax.tree.structure(trees[1])


def test_weight_decay_applies_to_matrices_only():
    free, with_decay = updates(Optimizer(), GRADS), updates(Optimizer(weight_decay=0.1), GRADS)
    rate = float(learning_rate_schedule(Optimizer(), 512)(1))
    np.testing.assert_allclose(with_decay[0]["w"], free[0]["w"] - rate * 0.1, rtol=1e-4)
    np.testing.assert_array_equal(with_decay[0]["b"], free[0]["b"])


def test_weight_decay_spares_biases_and_norms_of_any_shape():
    """The biases of queries, keys and values are [heads, width]."""
    config = small_config(model=dict(attention_bias=True, output_bias=True), optimizer=dict(weight_decay=0.1))
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
