"""Low-rank adapters: their gradient, what a run keeps, and merged weights for all readers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from helpers.configs import (
    devices_mesh,
    model_and_state,
    random_pairs,
    rows_alone,
    small_config,
    write_store,
)
from helpers.refusals import refused
from helpers.runs import start, tiny_run
from helpers.updates import run_updates

from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.finetuning import lora, of
from t2t_flax.extensions.finetuning.lora import merge, with_adapters
from t2t_flax.extensions.finetuning.start import start_params
from t2t_flax.registry import load_extensions
from t2t_flax.training import loop
from t2t_flax.training.losses import loss_sums
from t2t_flax.training.parametrization import merged as merged_parameters
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.train_state import abstract_params, make_model

load_extensions()
HERE = {"mesh.data": "-1"}  # all simulated devices


def of_model(params: dict) -> dict:
    """Without the adapters."""
    return {name: tree for name, tree in params.items() if name != "lora"}


def with_random_adapters(params: dict) -> dict:
    """B is zero at first, where A has no gradient."""
    keys = iter(jax.random.split(jax.random.key(7), 1000))
    return params | {
        "lora": jax.tree.map(lambda x: 0.3 * jax.random.normal(next(keys), x.shape), params["lora"])
    }


def as_matrices(path: str, w: np.ndarray) -> np.ndarray:
    """float64 [matrices, inputs, outputs] of a kernel, written out for each kind of layer."""
    w, module = np.asarray(w, np.float64), path.split("/")[-2]
    if module in ("query", "key", "value"):
        return w.reshape(1, w.shape[0], -1)
    return w.reshape(1, -1, w.shape[-1]) if module == "out" else w.reshape(-1, *w.shape[-2:])


def adapters_of(params: dict) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return {kernel's path: (A [matrices, inputs, rank], B [matrices, rank, outputs])}."""
    leaves = {
        path: np.asarray(x, np.float64) for path, x in flatten_dict(params["lora"], sep="/").items()
    }
    out = {}
    for path in {path.rpartition("/")[0] for path in leaves}:
        a, b = leaves[f"{path}/a"], leaves[f"{path}/b"]
        count = a.shape[0] if "taps" in path else 1
        out[path] = a.reshape(count, -1, a.shape[-1]), b.reshape(count, a.shape[-1], -1)
    return out


@pytest.mark.parametrize("mixer", ["attention", pytest.param("conv", marks=pytest.mark.slow)])
def test_gradients_are_the_full_gradient_projected(mixer):
    """Oracle: with W + s A B, dL/dA = s G B^T and dL/dB = s A^T G.

    In float64 NumPy from the gradient G of the merged kernel.
    """
    lora = dict(lora_rank=3, lora_alpha=6.0, lora_modules="*")
    config = small_config(model=dict(dropout=0.0, mixer=mixer), finetuning=lora)
    model, _, state, _ = model_and_state(config)
    params, batch = with_random_adapters(state.params), rows_alone(random_pairs(4))
    loss = jax.jit(
        jax.value_and_grad(lambda p: loss_sums(config, model, merge(of(config), p), batch, None)[0])
    )
    full_loss = jax.jit(jax.value_and_grad(lambda p: loss_sums(config, model, p, batch, None)[0]))
    value, grads = loss(params)
    merged = merged_parameters(parametrization_of(config), params)
    full_value, full = full_loss(merged)
    assert float(value) == pytest.approx(float(full_value), rel=1e-6)
    kernels, after, gradient = (flatten_dict(of_model(t), sep="/") for t in (params, merged, full))
    of_adapters, pairs = adapters_of(grads), adapters_of(params)
    assert set(pairs) == {path for path in kernels if path.endswith("/kernel")} and len(pairs) > 9
    for path, (a, b) in pairs.items():
        np.testing.assert_allclose(
            as_matrices(path, after[path]),
            as_matrices(path, kernels[path]) + 2.0 * a @ b,
            atol=1e-5,
        )
        g = as_matrices(path, gradient[path])
        expected = 2.0 * g @ b.swapaxes(1, 2), 2.0 * a.swapaxes(1, 2) @ g
        for mine, oracle in zip(of_adapters[path], expected, strict=True):
            np.testing.assert_allclose(mine, oracle, atol=1e-5 * np.abs(oracle).max() + 1e-6)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("data") / "store", random_pairs(200, longest=22))


KEYS = dict(
    finetuning=dict(lora_rank=2, lora_modules="*/query */value */out */Einsum_1"),
    optimizer=dict(lr_scale=2.0, weight_decay=0.1, ema_decay=0.9),
)


@pytest.fixture(scope="module")
def trained(store):
    return run_updates(small_config(**KEYS), store)


def test_only_adapters_change_and_have_optimizer_state(trained):
    before, after, _ = trained
    for old, new in ((before.params, after.params), (before.ema, after.ema)):
        jax.tree.map(np.testing.assert_array_equal, of_model(new), of_model(old))
        changed = [
            not np.array_equal(a, b)
            for a, b in zip(*map(jax.tree.leaves, (new["lora"], old["lora"])), strict=True)
        ]
        assert all(changed)
    assert jax.tree.structure(after.opt_state[1].mu) == jax.tree.structure(
        {"lora": after.params["lora"]}
    )
    b = {
        path: x
        for path, x in flatten_dict(before.params["lora"], sep="/").items()
        if path.endswith("/b")
    }
    assert not any(x.any() for x in b.values())


def test_the_first_update_sees_the_base_model(store, trained):
    """B = 0: the loss is that of the same run without adapters."""
    _, _, (base,) = run_updates(small_config(optimizer=KEYS["optimizer"]), store, updates=1)
    assert trained[2][0]["loss"] == base["loss"]


@pytest.mark.slow
def test_losses_are_the_same_on_a_sharded_mesh(store, trained):
    _, state, metrics = run_updates(small_config(**KEYS), store, (2, 2, 2))
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(
            [m[name] for m in metrics], [m[name] for m in trained[2]], rtol=1e-4
        )
    query = state.params["lora"]["encoder_0"]["self_attention"]["query"]["kernel"]
    assert query["a"].sharding.spec[0] == "fsdp" and query["b"].sharding.spec[1] == "tensor"


def test_a_pattern_without_a_kernel_is_refused():
    config = small_config(finetuning=dict(lora_rank=2, lora_modules="*/query shared_embedding"))
    model, mesh = make_model(config, 37, 37), devices_mesh()
    with refused("finetuning.lora_modules", "shared_embedding"):
        with_adapters(of(config), abstract_params(config.mesh, model, mesh))


@pytest.mark.smoke
@pytest.mark.slow
def test_a_run_is_read_with_merged_weights(tmp_path, cache):
    """`load`, a mean of checkpoints and a run that starts from it see W + s A B."""
    keys = dict(
        checkpoint=dict(every_steps=2, keep_last=9),
        eval=dict(every_steps=4),
        optimizer=dict(lr_scale=2.0),
    )

    loop.train(start(tiny_run("", 1), tmp_path / "base", cache), score=None)
    adapters = KEYS["finetuning"] | dict(init_from=str(tmp_path / "base"))
    config = tiny_run("", 4, finetuning=adapters, **keys)
    run = start(config, tmp_path / "whole", cache)
    whole = loop.train(run, score=None).state
    merged = merged_parameters(run.parametrization, whole.params)
    assert not np.array_equal(*(jax.tree.leaves(p)[0] for p in (merged["encoder_0"]["self_attention"]["query"],
                                                               whole.params["encoder_0"]["self_attention"]["query"])))  # fmt: skip
    newest = load(tmp_path / "whole", overrides=HERE).params
    jax.tree.map(np.testing.assert_array_equal, newest, jax.device_get(merged))
    of_both = [load(tmp_path / "whole", step=step, overrides=HERE).params for step in (2, 4)]
    expected = jax.tree.map(lambda x, y: (jnp.asarray(x) + y) / 2, *of_both)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-7),
        load(tmp_path / "whole", average=2, overrides=HERE).params,
        expected,
    )
    after = tiny_run("", 2, finetuning=dict(init_from=str(tmp_path / "whole")))
    tuned = start_params(start(after, tmp_path / "tuned", cache), {})
    jax.tree.map(np.testing.assert_array_equal, tuned, merged)


def test_adapters_are_added_in_the_order_of_their_paths(monkeypatch):
    """All processes of a run trace and dispatch the same programs, in any order of sets."""
    config = small_config(**KEYS)
    _, _, state, _ = model_and_state(config)
    added = []
    monkeypatch.setattr(lora, "_added", lambda equation, scale, w, a, b: added.append(id(w)) or w)
    merge(of(config), state.params)
    leaves = {id(x): path for path, x in flatten_dict(of_model(state.params), sep="/").items()}
    paths = [leaves[one] for one in added]
    assert len(paths) > 5 and paths == sorted(paths)
