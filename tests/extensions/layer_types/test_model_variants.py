"""Rotary and ALiBi positions, grouped heads, RMSNorm and gated layers.

On any mesh, with remat, in bfloat16; refusals.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import devices_mesh, model_and_state, random_pairs, rows_alone, small_config
from helpers.refusals import refused

from t2t_flax.config import default_config, override, resolve
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.train_state import abstract_state, make_model
from t2t_flax.training.train_step import jit_train_step

GROUPED = dict(position="rotary", num_kv_heads=2, norm_type="rmsnorm", norm_placement="pre", feed_forward="gated",
               activation="swish", dropout_attention=0.1)  # fmt: skip
MULTI_QUERY = dict(position="alibi", num_kv_heads=1, feed_forward="gated", activation="gelu")
KV_HEADS_WHOLE = dict(rules="vocab=fsdp+tensor embed=fsdp heads=tensor mlp=tensor kv_heads=")
BATCH = {name: x[None] for name, x in rows_alone(random_pairs(8), 24).items()}


def losses(model: dict, *, shape=(1, 1, 1), mesh_keys=(), **train) -> np.ndarray:
    """Of three updates."""
    config = small_config(model=model, train=train, mesh=dict(mesh_keys))
    mesh = devices_mesh(*shape)
    mesh_lib.check_divisibility(config, mesh)
    module, tx, state, shardings = model_and_state(config, mesh)
    step, values = (
        jit_train_step(config, module, tx, parametrization_of(config), mesh, shardings),
        [],
    )
    batch = {name: jnp.asarray(x) for name, x in BATCH.items()}
    with mesh_lib.use(mesh):
        for _ in range(3):
            state, metrics = step(state, batch)
            values.append(float(metrics["loss"]))
    return np.array(values)


@functools.cache
def reference(kind: str) -> np.ndarray:
    return losses({"grouped": GROUPED, "multi-query": MULTI_QUERY}[kind])


@pytest.mark.parametrize(
    "shape", [(2, 2, 2), pytest.param((1, 4, 2), marks=pytest.mark.drill)], ids=str
)
@pytest.mark.slow
def test_grouped_heads_train_the_same_on_any_mesh(shape):
    np.testing.assert_allclose(
        losses(GROUPED, shape=shape, remat="full"), reference("grouped"), rtol=1e-5
    )


@pytest.mark.slow
def test_multi_query_head_is_replicated_over_a_tensor_axis():
    actual = losses(MULTI_QUERY, shape=(1, 2, 4), mesh_keys=KV_HEADS_WHOLE)
    np.testing.assert_allclose(actual, reference("multi-query"), rtol=1e-5)


@pytest.mark.parametrize("kind", ["grouped", pytest.param("multi-query", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_bfloat16_with_remat_stays_close(kind):
    model = {"grouped": GROUPED, "multi-query": MULTI_QUERY}[kind]
    np.testing.assert_allclose(
        losses(model, precision="bfloat16", remat="dots"), reference(kind), rtol=0.02
    )


def test_grouped_key_heads_are_divided_over_a_tensor_axis():
    config, mesh = small_config(model=GROUPED), devices_mesh(1, 2, 2)
    model, tx = make_model(config, 37, 37), make_optimizer(config, parametrization_of(config))
    _, shardings = abstract_state(config, model, tx, parametrization_of(config), mesh)
    for name in ("query", "key", "value"):
        assert shardings.params["encoder_0"]["self_attention"][name]["kernel"].spec[:2] == (
            "fsdp",
            "tensor",
        )


def test_one_key_head_does_not_divide_over_a_tensor_axis():
    with refused("model.num_kv_heads", "mesh.rules"):
        mesh_lib.check_divisibility(small_config(model=MULTI_QUERY), devices_mesh(1, 1, 2))


REFUSED = [
    ({"model.num_kv_heads": 2, "model.attention_score": "additive"}, "model.num_kv_heads"),
    ({"model.position": "rotary", "model.attention_score": "additive"}, "model.position rotary"),
    ({"model.position": "rotary", "model.d_k": 5}, "model.d_k"),
    ({"model.position": "rotary", "model.mixer": "lstm"}, "model.position model.mixer"),
    ({"model.position": "alibi", "model.mixer": "conv"}, "model.position model.mixer"),
    ({"model.position": "rotary", "model.position_offset": 2}, "model.position_offset"),
    ({"layer_types.rope_theta": "5e5"}, "layer_types.rope_theta model.position"),
    ({"model.mixer": "local_attention", "layer_types.window": 4}, "layer_types.window"),
    ({"model.mixer": "gru", "layer_types.window": 5}, "layer_types.window gru"),
    ({"model.mixer": "conv", "layer_types.conv_kernel_size": 4}, "layer_types.conv_kernel_size"),
    (
        {"model.mixer": "lstm", "layer_types.conv_kernel_size": 5},
        "layer_types.conv_kernel_size lstm",
    ),
    (
        {
            "model.mixer": "lstm",
            "model.d_model": 15,
            "model.num_heads": 5,
            "model.position": "none",
        },
        "model.d_model",
    ),
    ({"model.mixer": "rnn"}, "model.mixer dilated_conv"),
]


@pytest.mark.parametrize(("keys", "names"), REFUSED)
def test_impossible_combinations_are_refused_by_key(keys, names):
    with refused(*names.split()):
        resolve(override(default_config(), {key: str(value) for key, value in keys.items()}))
