"""Gradients are summed on each device over all microbatches, and exchanged once an update."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import (
    VOCAB,
    devices_mesh,
    model_and_state,
    random_pairs,
    rows_alone,
    small_config,
)

from t2t_flax.data.batching.rows import Shape
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.distributed.mesh import over_shards, sum_over_shards
from t2t_flax.training.losses import loss_sums

SHARDS = 4
UNIT = 2.0**-9  # bfloat16's largest relative rounding error

MESHES = {
    "data": dict(data=4),
    "fsdp": dict(data=1, fsdp=4),
    "zero1": dict(data=1, fsdp=4, fsdp_mode="zero1"),
    "tensor": dict(data=2, tensor=2),
    "all": dict(data=2, fsdp=2, tensor=2),
}


@pytest.mark.parametrize(
    ("mesh", "precision"),
    [
        ("data", "float32"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("fsdp", "float32"),
                ("data", "bfloat16"),
                ("zero1", "bfloat16"),
                ("tensor", "float32"),
                ("all", "bfloat16"),
            )
        ),
    ],
)
def test_gradients_cross_the_devices_once_an_update(mesh, precision):
    """Three microbatches, each with several chunks of logits.

    The CPU's compiler sums in float32.
    """
    planning = pytest.importorskip("t2t_flax.extensions.planning.abstract_run")
    topology = pytest.importorskip("t2t_flax.extensions.planning.topology")
    config = small_config(
        mesh=MESHES[mesh],
        train=dict(precision=precision),
        data=dict(vocab_size=VOCAB),
        loss=dict(logits_chunk_size=16),
    )
    run = planning.abstract_run(config, topology.parse("cpu:8" if mesh == "all" else "cpu:4"))
    exchanges = planning.compile_train_step(run, Shape(24, 8, 3))["gradient_exchanges"]
    assert (exchanges["times"], exchanges["in_loop"]) == (1, False)
    if run.mesh.shape["tensor"] == 1:
        parameters = sum(x.size for x in jax.tree.leaves(run.state.params))
        assert 4 * parameters <= exchanges["bytes"] < 4.2 * parameters


def test_gradient_has_one_rounding_for_each_shard_and_sum():
    """|error| <= shards * 2^-9 * sum of |gradient of a shard|.

    Whatever was summed on a device was exact to float32.
    """
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.normal(size=(11, 8)), jnp.float32)
    rows = {
        "ids": jnp.asarray(rng.integers(0, 11, (SHARDS * 5, 100))),
        "scales": jnp.asarray(rng.normal(size=(SHARDS * 5, 100, 8)), jnp.float32),
    }

    def gradient(table, rows):  # of a lookup and a product
        def loss(table):
            lookups = jnp.take(table, rows["ids"], axis=0)
            return jnp.sum(lookups * rows["scales"]) + jnp.sum(jnp.tanh(rows["scales"] @ table.T))

        return jax.grad(loss)(table)

    exact = gradient(table, rows)
    with mesh_lib.use(devices_mesh(data=SHARDS)):
        of_shards = jax.jit(over_shards(gradient, SHARDS))(table, rows)
        total = jax.jit(lambda x: sum_over_shards(x, jnp.bfloat16))(of_shards)
    assert of_shards.shape == (SHARDS, *table.shape) and total.dtype == jnp.float32
    np.testing.assert_allclose(of_shards.sum(0), exact, rtol=1e-5, atol=1e-4)
    bound = SHARDS * UNIT * jnp.abs(of_shards).sum(0)
    assert (jnp.abs(total - exact) <= 1.01 * bound).all()


@pytest.mark.parametrize(
    ("tie", "chunk"),
    [
        ("all", 7),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("decoder", 7), ("none", 96))),
    ],
)
def test_bfloat16_table_gradients_of_shards_are_near_those_of_float32(tie, chunk):
    """6 % of the norm at most: every product is rounded, and the sum over four shards."""
    model_keys = dict(dropout=0.0, tie_embeddings=tie, output_bias=True, decoder_start_token="eos")
    rows = jax.tree.map(jnp.asarray, rows_alone(random_pairs(8, longest=11), 12))

    def gradients(precision, shards):
        config = small_config(
            model=model_keys, train=dict(precision=precision), loss=dict(logits_chunk_size=chunk)
        )
        model, _, state, _ = model_and_state(config)
        of_rows = jax.grad(lambda params, rows: loss_sums(config, model, params, rows, None)[0])
        params = jax.device_get(state.params)
        with mesh_lib.use(devices_mesh(data=shards)):
            grads = jax.jit(over_shards(of_rows, shards))(params, rows)
            grads = (
                jax.tree.map(lambda g: sum_over_shards(g, model.dtype), grads)
                if shards > 1
                else grads
            )
        return jax.device_get(
            {name: grads[name] for name in {*model.table_params, *model.output_params}}
        )

    near, exact = gradients("bfloat16", SHARDS), gradients("float32", 1)
    for a, b in zip(jax.tree.leaves(near), jax.tree.leaves(exact), strict=True):
        assert np.linalg.norm(a - b) < 0.06 * np.linalg.norm(b)
