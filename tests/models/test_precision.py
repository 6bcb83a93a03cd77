"""Precision of matrix products by platform (lowered, not run), of softmax and of dropout."""

import collections
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import VOCAB, devices_mesh, random_pairs, rows_alone, small_config

from t2t_flax.models.attention import bfloat16_softmax, masked_softmax
from t2t_flax.models.dense import product_with_float32_result
from t2t_flax.models.dropout import Dropout, Noise
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.train_state import abstract_state, make_model
from t2t_flax.training.train_step import jit_train_step

_DOT = re.compile(
    r"stablehlo\.dot_general .*?precision = \[(\w+), (\w+)\] : \(tensor<[^>]*?(f32|bf16)>, tensor<[^>]*?(f32|bf16)>\)"
)


@functools.cache
def dots(precision: str, platform: str, **model) -> list[tuple[str, str, str, str]]:
    """Return (left precision, right precision, left type, right type) of a step's products."""
    config = small_config(model=model, train=dict(precision=precision))
    model, tx, mesh = (
        make_model(config, VOCAB, VOCAB),
        make_optimizer(config, parametrization_of(config)),
        devices_mesh(),
    )
    state, shardings = abstract_state(config, model, tx, parametrization_of(config), mesh)
    batch = {
        name: jax.ShapeDtypeStruct((1, 4, 24), np.int32) for name in rows_alone(random_pairs(4))
    }
    traced = jit_train_step(config, model, tx, parametrization_of(config), mesh, shardings).trace(
        state, batch
    )
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    products = _DOT.findall(text)
    assert len(products) == text.count("stablehlo.dot_general") > 20
    return products


@pytest.mark.parametrize(
    "mixer",
    ["attention", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gru", "conv"))],
)
def test_float32_products_are_float32_on_a_gpu(mixer):
    assert set(dots("float32", "cuda", mixer=mixer)) == {("HIGHEST", "HIGHEST", "f32", "f32")}


@pytest.mark.parametrize(
    ("precision", "of_products", "kind"), [("tf32", "HIGH", "f32"), ("bfloat16", "DEFAULT", "bf16")]
)
def test_tf32_and_bfloat16_products_on_a_gpu(precision, of_products, kind):
    """But for the products that add up the gradients of equal ids, one for each lookup.

    Nothing may round there.
    """
    found = collections.Counter(dots(precision, "cuda"))
    assert found.pop(("HIGHEST", "HIGHEST", kind, kind)) == 2
    assert set(found) == {(of_products, of_products, kind, kind)}


@pytest.mark.parametrize(
    ("platform", "model"),
    [("cuda", {}), ("tpu", dict(tie_embeddings="none", output_bias=True, num_kv_heads=2))],
)
def test_every_product_of_a_bfloat16_step_multiplies_bfloat16(platform, model):
    assert {dot[2:] for dot in dots("bfloat16", platform, **model)} == {("bf16", "bf16")}


@pytest.mark.parametrize("equation", ["...tnh,...snh->...nts", "...d,vd->...v"])
def test_gradients_of_a_bfloat16_product_are_those_of_rounded_operands(equation):
    """Only operands and cotangent are rounded.

    Sums are float32, and the gradient of a float32 operand stays so.
    """
    shapes = dict(zip("tnhsdv", (5, 2, 4, 6, 8, 7), strict=True))
    rng, numbers = (
        np.random.default_rng(0),
        lambda text: rng.normal(size=(3, *(shapes[c] for c in text.strip(".")))),
    )
    of_x, of_y, of_result = equation.replace("->", ",").split(",")
    x = jnp.asarray(numbers(of_x), jnp.bfloat16)
    y = jnp.asarray(numbers(of_y) if "." in of_y else numbers(of_y)[0], jnp.float32)
    cotangent = jnp.asarray(numbers(of_result), jnp.float32)
    result, gradients = jax.vjp(
        lambda x, y: product_with_float32_result(equation, x, y, jnp.bfloat16), x, y
    )
    rounded = lambda z: z.astype(jnp.bfloat16).astype(jnp.float32)  # noqa: E731
    expected, exact = jax.vjp(lambda x, y: jnp.einsum(equation, x, y), rounded(x), rounded(y))
    dx, dy = gradients(cotangent)
    expected_dx, expected_dy = exact(rounded(cotangent))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dy, expected_dy, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dx.astype(jnp.float32), expected_dx, rtol=2**-8, atol=1e-5)
    assert result.dtype == dy.dtype == jnp.float32 and dx.dtype == jnp.bfloat16


def test_query_without_any_key_gets_zero_weights():
    mask = jnp.array([[True, True, False], [False, False, False]])
    scores = jnp.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    np.testing.assert_allclose(
        masked_softmax(scores, mask), [[0.26894142, 0.7310586, 0], [0, 0, 0]], rtol=1e-6
    )
    gradient = jax.grad(lambda s: masked_softmax(s, mask)[:, 0].sum())(scores)
    assert np.isfinite(gradient).all() and not gradient[1].any()


def test_bfloat16_softmax_keeps_its_weights_alone_for_the_gradient():
    rng = np.random.default_rng(0)
    scores, cotangent = (jnp.asarray(rng.normal(size=(3, 8, 16)), jnp.float32) for _ in range(2))
    mask = jnp.asarray(rng.random((3, 8, 16)) < 0.7).at[0, 0].set(False)
    weights, gradient = jax.vjp(lambda s: bfloat16_softmax(s, mask), scores)
    expected, exact = jax.vjp(lambda s: masked_softmax(s, mask), scores)
    np.testing.assert_array_equal(weights, expected.astype(jnp.bfloat16))
    (found,), (wanted,) = gradient(cotangent.astype(jnp.bfloat16)), exact(cotangent)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, wanted, atol=2**-7 * float(jnp.abs(wanted).max()))
    assert not found[0, 0].any() and not np.asarray(found)[~np.asarray(mask)].any()
    assert [x.dtype for x in jax.tree.leaves(gradient) if x.shape == scores.shape] == [jnp.bfloat16]


def test_dropout_in_bfloat16_keeps_the_mean():
    noise = Noise(jnp.array([1, 2], jnp.uint32), jnp.arange(64, dtype=jnp.uint32))
    # 4 / 0.9 = 4.4444: bfloat16 holds 4.4375, which times 1.109375 is not.
    x = jnp.full((64, 1024), 4.0, jnp.bfloat16)
    survivors = np.asarray(Dropout(0.1).apply({}, x, noise).astype(jnp.float32))
    assert set(np.unique(survivors)) == {0.0, float(jnp.bfloat16(4 / 0.9))}
