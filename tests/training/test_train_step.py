"""One update does not depend on packing, accumulation or the mesh."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import (
    devices_mesh,
    model_and_state,
    random_pairs,
    rows_alone,
    small_config,
    write_store,
)

from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.batching.packing import first_fit
from t2t_flax.data.batching.rows import fill_rows
from t2t_flax.data.stored_ids import Sentences
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.training.losses import loss_sums, validation_sums
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.precision import compiler_options
from t2t_flax.training.prefetcher import put_batch
from t2t_flax.training.train_step import jit_train_step


def packed(pairs, length=48):
    """The same pairs, several to a row: arrays [B, L]."""
    lengths = [np.array([len(p[n]) for p in pairs]) for n in (0, 1)]
    row, *starts = first_fit(*lengths, length)
    arrays = {}
    for n, (side, start) in enumerate(zip(("source", "target"), starts, strict=True)):
        tokens = np.concatenate([p[n] for p in pairs])
        sentences = Sentences(tokens, np.cumsum(lengths[n]) - lengths[n], lengths[n])
        names = side, f"{side}_segments", f"{side}_positions"
        filled = fill_rows(sentences, row, start, (int(row.max()) + 1, length))
        arrays |= dict(zip(names, filled, strict=True))
    return arrays


def losses_and_gradients(config, params, model, arrays):
    def loss(params):
        return loss_sums(config, model, params, arrays, None)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)


@pytest.mark.parametrize(
    "keys",
    [
        dict(logit_scale="rsqrt_d", output_bias=True, pad_vocab_to_multiple=64),
        pytest.param(dict(tie_embeddings="decoder"), marks=pytest.mark.slow),
        pytest.param(
            dict(tie_embeddings="none", output_bias=True, logit_scale="rsqrt_d"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_training_and_validation_have_the_same_sums(keys):
    """The loss multiplies by the output table; validation takes the logits of the model."""
    config = small_config(model=dict(dropout=0.0) | keys)
    model, _, state, _ = model_and_state(config)
    arrays = rows_alone(random_pairs(8))
    # Biases start at zero.
    params = jax.tree.map(
        lambda x: x + 0.1 * jax.random.normal(jax.random.key(0), x.shape), state.params
    )
    (loss, sums), _ = losses_and_gradients(config, params, model, arrays)
    expected = jax.jit(lambda params: validation_sums(config, model, params, arrays))(params)
    found = {"loss": loss} | sums
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-6, err_msg=name)


@pytest.mark.parametrize("norm", ["post", pytest.param("pre", marks=pytest.mark.slow)])
def test_packed_pairs_have_the_loss_and_gradient_of_single_pairs(norm):
    config = small_config(model=dict(dropout=0.0, norm_placement=norm))
    model, _, state, _ = model_and_state(config)
    pairs = random_pairs(30)
    arrays = packed(pairs)
    assert arrays["target_segments"].max() >= 3
    (loss, sums), grads = losses_and_gradients(config, state.params, model, arrays)
    (loss_alone, sums_alone), grads_alone = losses_and_gradients(
        config, state.params, model, rows_alone(pairs)
    )
    np.testing.assert_allclose(loss, loss_alone, rtol=1e-6)
    assert {k: float(v) for k, v in sums.items()} == pytest.approx(
        {k: float(v) for k, v in sums_alone.items()}, rel=1e-6
    )
    assert int(sums["tokens"]) == sum(len(t) for _, t in pairs)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(grads_alone), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4 * float(jnp.abs(b).max()) + 1e-6)


def loss_curve(config, store, mesh_shape, updates):
    mesh = devices_mesh(*mesh_shape)
    model, tx, state, shardings = model_and_state(config, mesh)
    batches = Batches(store, config.data, seed=0, shards=mesh_lib.batch_shards(mesh))
    step = jit_train_step(config, model, tx, parametrization_of(config), mesh, shardings)
    losses = []
    with mesh_lib.use(mesh):
        for k in range(updates):
            state, metrics = step(state, put_batch(batches.batch(k), mesh).arrays)
            losses.append(float(metrics["loss"]))
    return np.array(losses), state


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("data") / "store", random_pairs(400, longest=22))


@pytest.fixture(scope="module")
def reference(store):
    config = small_config(optimizer=dict(lr_scale=2.0))
    return config, *loss_curve(config, store, (1, 1, 1), 30)


@pytest.mark.parametrize("batching", ["packed", pytest.param("buckets", marks=pytest.mark.drill)])
def test_accumulated_update_equals_the_big_batch(store, batching):
    """With dropout: masks depend on the global row, not on its microbatch."""
    config = small_config(optimizer=dict(lr_scale=2.0), data=dict(batching=batching))
    one_batch, state = loss_curve(config, store, (1, 1, 1), 6)
    split = dataclasses.replace(config, data=dataclasses.replace(config.data, microbatch_tokens=48))
    assert all(s.micro > 1 for s in Batches(store, split.data, seed=0).shapes if s.length > 12)
    parts, state_parts = loss_curve(split, store, (1, 1, 1), 6)
    np.testing.assert_allclose(parts, one_batch, rtol=1e-5)
    for a, b in zip(
        jax.tree.leaves(state.params), jax.tree.leaves(state_parts.params), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize(
    "shape",
    [
        (2, 2, 2),
        *(pytest.param(shape, marks=pytest.mark.drill) for shape in ((8, 1, 1), (1, 8, 1))),
    ],
)
def test_losses_are_the_same_on_every_mesh(store, reference, shape):
    """Dropout and accumulation on, 10 updates, float32: equal to 1e-5."""
    config, losses, _ = reference
    data = dataclasses.replace(config.data, microbatch_tokens=24)
    on_mesh, _ = loss_curve(dataclasses.replace(config, data=data), store, shape, 10)
    np.testing.assert_allclose(on_mesh, losses[:10], rtol=1e-5)
    assert losses[-1] < losses[0] - 0.05


def test_training_is_bit_reproducible(store, reference):
    config, losses, state = reference
    repeated, state_again = loss_curve(config, store, (1, 1, 1), 30)
    np.testing.assert_array_equal(repeated, losses)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(state_again), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("what", ["loss", "gradient", "parameters"])
def test_non_finite_update_changes_only_the_update_counters(store, monkeypatch, what):
    from t2t_flax.training import train_step as step_module

    def broken(config, model, params, batch, noise):
        loss, sums = loss_sums(config, model, params, batch, noise)
        zero = 0.0 * jnp.sum(params["shared_embedding"]["table"])
        return loss + (
            jnp.nan if what == "loss" else jnp.sqrt(zero)
        ), sums  # the root's slope at 0 is infinite

    config = small_config(optimizer=dict(lr_scale=1e42 if what == "parameters" else 1.0))
    if what != "parameters":
        monkeypatch.setattr(step_module, "loss_sums", broken)
    mesh = devices_mesh()
    model, tx, state, shardings = model_and_state(config, mesh)
    before = jax.device_get(state)
    batch = put_batch(Batches(store, config.data, seed=0).batch(0), mesh).arrays
    with mesh_lib.use(mesh):
        state, metrics = jit_train_step(
            config, model, tx, parametrization_of(config), mesh, shardings
        )(state, batch)
    assert float(metrics["finite"]) == 0.0 and bool(jnp.isfinite(metrics["loss"])) == (
        what != "loss"
    )
    assert bool(jnp.isfinite(metrics["grad_norm"])) == (what != "gradient")
    _, adam, schedule = state.opt_state
    for a, b in zip(
        jax.tree.leaves((state.params, adam)),
        jax.tree.leaves((before.params, before.opt_state[1])),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    assert int(state.step) == int(schedule.count) == 1 and int(adam.count) == 0


def test_golden_first_update(reference):
    """The loss of the first update.

    A commit that changes it must say why the model's arithmetic changed.
    """
    _, losses, _ = reference
    np.testing.assert_allclose(losses[:2], [4.005298, 3.684840], rtol=2e-5)


@pytest.mark.drill
@pytest.mark.slow
def test_rematerialization_saves_memory_and_keeps_the_loss(store):
    sizes, losses = {}, {}
    for remat in ("none", "dots", "full"):
        config = small_config(
            train=dict(remat=remat),
            model=dict(d_model=32, d_ff=256, num_encoder_layers=3, num_decoder_layers=3),
            data=dict(batch_tokens=1600),
        )
        mesh = devices_mesh()
        model, tx, state, shardings = model_and_state(config, mesh)
        batch = put_batch(Batches(store, config.data, seed=0).batch(0), mesh).arrays
        with mesh_lib.use(mesh):
            lowered = jit_train_step(
                config, model, tx, parametrization_of(config), mesh, shardings
            ).lower(state, batch)
        compiled = lowered.compile(compiler_options(config))
        sizes[remat] = compiled.memory_analysis().temp_size_in_bytes
        losses[remat] = float(compiled(state, batch)[1]["loss"])
    assert sizes["full"] < 0.5 * sizes["none"] and sizes["dots"] < 0.9 * sizes["none"], sizes
    assert losses["full"] == pytest.approx(losses["none"], rel=1e-6) == losses["dots"]
