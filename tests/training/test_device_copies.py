"""Gradients of parameters with several uses: summed on each device in float32, exchanged in bfloat16."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import devices_mesh, model_and_state, random_pairs, rows_alone, small_config

from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.extensions.planning import hlo
from t2t_flax.training import train_step
from t2t_flax.training.device_copies import device_copies
from t2t_flax.training.train_step import loss_sums, make_train_step

SHARDS = 4
UNIT = 2.0**-9  # bfloat16's largest relative rounding error


def test_gradient_has_one_rounding_for_each_shard_and_sum():
    """|error| <= shards * 2^-9 * sum of |gradient of a shard|: whatever was summed on a device was exact to float32."""
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.normal(size=(11, 8)), jnp.float32)
    ids = jnp.asarray(rng.integers(0, 11, (SHARDS, 500)))
    scales = jnp.asarray(rng.normal(size=(SHARDS, 500, 8)), jnp.float32)

    def loss(copies):  # a lookup and a product
        rows = jax.vmap(lambda t, i: jnp.take(t, i, axis=0))(copies, ids)
        return jnp.sum(rows * scales) + jnp.sum(jnp.tanh(jnp.einsum("snd,svd->snv", scales, copies)))

    of_shards = jax.grad(loss)(jnp.broadcast_to(table, (SHARDS, *table.shape)))
    gradient = jax.grad(lambda table: loss(device_copies(table, SHARDS)))(table)
    bound = SHARDS * UNIT * jnp.abs(of_shards).sum(0)
    assert gradient.dtype == jnp.float32
    assert (jnp.abs(gradient - of_shards.sum(0)) <= 1.01 * bound).all()


def packed_rows(rows: int) -> dict[str, np.ndarray]:
    """Two pairs in each row."""
    first, second = (rows_alone(random_pairs(rows, seed=seed, longest=11), 12) for seed in (0, 1))
    second = {name: x + (x > 0) if "segments" in name else x for name, x in second.items()}
    return {name: np.concatenate([first[name], second[name]], axis=1) for name in first}


@pytest.mark.parametrize(
    ("tie", "chunk"),
    [
        ("all", 7),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("all", 0), ("decoder", 0), ("decoder", 7), ("none", 0), ("none", 7))
        ),
    ],
)
def test_exchange_in_bfloat16_changes_table_gradients_by_one_percent(monkeypatch, chunk, tie):
    """1 % of the norm at most, against the same step that exchanges float32; 6 % against a float32 step, which differs
    in every other product too.
    """
    model_keys = dict(dropout=0.0, tie_embeddings=tie, output_bias=True, decoder_start_token="eos")

    def loss_and_gradients(precision):
        config = small_config(model=model_keys, train=dict(precision=precision), loss=dict(logits_chunk_size=chunk))
        model, _, state, _ = model_and_state(config)
        loss = lambda p: loss_sums(config, model, p, packed_rows(8), None, SHARDS)[0]  # noqa: E731
        loss, gradients = jax.jit(jax.value_and_grad(loss))(state.params)
        return loss, {name: gradients[name] for name in {*model.table_params, *model.output_params}}

    def distances(gradients, expected):
        norm = jnp.linalg.norm
        return [
            float(x) for x in jax.tree.leaves(jax.tree.map(lambda a, b: norm(a - b) / norm(b), gradients, expected))
        ]

    loss, gradients = loss_and_gradients("bfloat16")
    exact_loss, exact = loss_and_gradients("float32")
    broadcast = lambda p, n: jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), p)  # noqa: E731
    monkeypatch.setattr(train_step, "device_copies", broadcast)
    same_loss, exchanged_in_float32 = loss_and_gradients("bfloat16")
    assert loss == same_loss and max(distances(gradients, exchanged_in_float32)) < 0.01
    np.testing.assert_allclose(loss, exact_loss, rtol=3e-3)
    assert max(distances(gradients, exact)) < 0.06


def test_tied_table_crosses_the_devices_once():
    """Of the all-reduces of a data-parallel step in bfloat16, one has the table's size."""
    config = small_config(model=dict(dropout=0.0), train=dict(precision="bfloat16"))
    config = dataclasses.replace(config, loss=dataclasses.replace(config.loss, logits_chunk_size=8))
    mesh = devices_mesh(data=SHARDS)
    model, tx, state, shardings = model_and_state(config, mesh, vocab=997)
    table = state.params["shared_embedding"]["table"].size
    batch = {name: jax.ShapeDtypeStruct((1, *x.shape), np.int32) for name, x in packed_rows(8).items()}
    with mesh_lib.use(mesh):
        compiled = make_train_step(config, model, tx, mesh, shardings).lower(state, batch).compile()
    found = hlo.collectives(hlo.parse(compiled.as_text(), "cpu"), SHARDS)
    exchanged = sum(c.bytes * c.times for c in found if c.kind == "all-reduce")
    parameters = sum(x.size for x in jax.tree.leaves(state.params))
    assert 4 * table <= exchanged < 4 * (parameters + table / 2)  # the CPU's compiler reduces in float32
