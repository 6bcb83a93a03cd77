"""Where bfloat16 is fast: what is said, and what is asked of the compiler."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_flax import process_setup
from t2t_flax.config import Config
from t2t_flax.models.dense import cast_results, product_with_float32_result
from t2t_flax.training import precision


@pytest.fixture
def fast(monkeypatch):
    """Sets whether bfloat16 is fast on this CPU."""

    def set_to(value: bool) -> None:
        monkeypatch.setattr(precision, "has_fast_bfloat16", lambda: value)

    return set_to


def with_precision(train: str = "float32", decode: str = "auto", remat: str = "none"):
    config = Config()
    return dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, precision=train, remat=remat),
        decode=dataclasses.replace(config.decode, precision=decode),
    )


def test_bfloat16_is_slow_without_the_instructions_or_the_option(tmp_path, monkeypatch):
    fast = precision.has_fast_bfloat16.__wrapped__
    (tmp_path / "cpuinfo").write_text("flags : fpu avx512_vnni avx512_bf16x\n")
    for path in (tmp_path / "cpuinfo", tmp_path / "absent"):
        monkeypatch.setattr(process_setup, "_CPU_INFO", path)
        assert not fast()
    (tmp_path / "absent").write_text("flags : fpu avx512_bf16 amx_tile\n")
    monkeypatch.setattr(precision, "_ONEDNN", {"xla_cpu_option_of_another_version": True})
    assert not fast()


def test_users_of_the_slower_precision_are_told_of_the_key(fast):
    fast(True)
    for trained in ("auto", "float32", "bfloat16"):
        assert "--config.decode.precision=bfloat16" in precision.advice(
            with_precision(trained), decoding=True
        )
    assert not precision.advice(with_precision("bfloat16"), decoding=False)
    fast(False)
    assert not precision.advice(with_precision(), decoding=True)
    assert "float32" in precision.advice(with_precision("bfloat16"), decoding=False)
    assert not precision.advice(with_precision(), decoding=False)


def test_compiler_options_follow_precision_rematerialization_and_backend(fast, monkeypatch):
    fast(True)
    assert precision.compiler_options(with_precision()) is None
    assert "xla_cpu_experimental_onednn_custom_call" in precision.compiler_options(
        with_precision("bfloat16")
    )
    assert precision.compiler_options(with_precision(remat="full")).keys() == {
        "xla_disable_hlo_passes"
    }
    fast(False)
    assert precision.compiler_options(with_precision("bfloat16")) is None
    monkeypatch.setattr(precision.jax, "default_backend", lambda: "gpu")
    assert precision.compiler_options(with_precision("bfloat16", remat="full")) is None


@pytest.mark.parametrize(
    ("equation", "size"),
    [
        ("btd,vd->btv", 8),
        ("btd,vd->btv", 160),
        ("btv,btd->vd", 160),
        ("btnh,bsnh->bnts", 160),
        ("td,dv->tv", 160),
    ],
)
def test_results_that_are_cast_are_not_rounded(equation, size):
    """Small products, which XLA computes itself, and large ones.

    As exact as float32 sums of bfloat16 operands.
    """
    if not precision.has_fast_bfloat16():
        pytest.skip("this CPU, or this version of jaxlib, has no fast bfloat16")
    shapes = dict(b=2, t=size, s=size, d=2 * size, v=3 * size, n=2, h=32)
    operands = equation.split("->")[0]
    rng = np.random.default_rng(0)
    x, y = (
        jnp.asarray(rng.normal(size=[shapes[c] for c in side]), jnp.bfloat16)
        for side in operands.split(",")
    )

    def product(x, y):
        with cast_results():
            return product_with_float32_result(equation, x, y, jnp.dtype("bfloat16"))

    options = precision.compiler_options(with_precision("bfloat16"))
    expected = np.einsum(equation, *(np.asarray(side, np.float64) for side in (x, y)))
    found = jax.jit(product).lower(x, y).compile(options)(x, y)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, atol=2e-6 * np.abs(expected).max() * size**0.5)


def test_gradients_of_float32_operands_are_not_rounded():
    """As of the table of embeddings."""
    if not precision.has_fast_bfloat16():
        pytest.skip("this CPU, or this version of jaxlib, has no fast bfloat16")
    rng = np.random.default_rng(0)
    x, table, cotangent = (
        jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((4, 96, 64), (512, 64), (4, 96, 512))
    )

    def gradient(x, table, cotangent):
        with cast_results():
            back = jax.vjp(
                lambda y: product_with_float32_result("btd,vd->btv", x, y, jnp.dtype("bfloat16")),
                table,
            )[1]
            return back(cotangent)[0]

    options = precision.compiler_options(with_precision("bfloat16"))
    found = jax.jit(gradient).lower(x, table, cotangent).compile(options)(x, table, cotangent)
    rounded = [np.asarray(a.astype(jnp.bfloat16), np.float64) for a in (cotangent, x)]
    expected = np.einsum("btv,btd->vd", *rounded)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
