"""Where bfloat16 is fast: what is said, and what is asked of the compiler."""

import dataclasses

import pytest

from t2t_flax.config import Config
from t2t_flax.extensions.kernels import cpu_bfloat16
from t2t_flax.extensions.shared import processes
from t2t_flax.training import precision


@pytest.fixture
def fast(monkeypatch):
    """Sets whether bfloat16 is fast on this CPU."""

    def set_to(value: bool) -> None:
        monkeypatch.setattr(cpu_bfloat16, "has_fast_bfloat16", lambda: value)

    return set_to


def with_precision(train: str = "float32", decode: str = "auto", remat: str = "none"):
    config = Config()
    return dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, precision=train, remat=remat),
        decode=dataclasses.replace(config.decode, precision=decode),
    )


def test_a_cpu_without_the_instructions_has_no_fast_bfloat16(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text("flags : fpu avx512_vnni avx512_bf16x\n")
    for path in (tmp_path / "cpuinfo", tmp_path / "absent"):
        monkeypatch.setattr(processes, "_CPU_INFO", path)
        assert not cpu_bfloat16.has_fast_bfloat16.__wrapped__()


def test_a_version_without_the_option_has_no_fast_bfloat16(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text("flags : fpu avx512_bf16 amx_tile\n")
    monkeypatch.setattr(processes, "_CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(cpu_bfloat16, "_ONEDNN", {"xla_cpu_option_of_another_version": True})
    assert not cpu_bfloat16.has_fast_bfloat16.__wrapped__()


def test_users_of_the_slower_precision_are_told_of_the_key(fast):
    fast(True)
    for trained in ("auto", "float32", "bfloat16"):
        assert "--config.decode.precision=bfloat16" in precision.advice(with_precision(trained), decoding=True)
    assert not precision.advice(with_precision("bfloat16"), decoding=False)
    fast(False)
    assert not precision.advice(with_precision(), decoding=True)
    assert "slower than float32" in precision.advice(with_precision("bfloat16"), decoding=False)
    assert not precision.advice(with_precision(), decoding=False)


def test_nobody_is_told_of_a_key_that_is_set_or_without_effect(fast, monkeypatch):
    fast(True)
    for config in (with_precision(decode="float32"), with_precision(decode="bfloat16")):
        assert not precision.advice(config, decoding=True)
    other = with_precision()
    other = dataclasses.replace(other, decode=dataclasses.replace(other.decode, engine="ctranslate2"))
    assert not precision.advice(other, decoding=True)
    monkeypatch.setattr(precision.jax, "default_backend", lambda: "tpu")
    assert not precision.advice(with_precision(), decoding=True)
    assert not precision.advice(with_precision("bfloat16"), decoding=False)


def test_compiler_options_follow_precision_rematerialization_and_backend(fast, monkeypatch):
    fast(True)
    assert precision.compiler_options(with_precision()) is None
    assert "xla_cpu_experimental_onednn_custom_call" in precision.compiler_options(with_precision("bfloat16"))
    assert precision.compiler_options(with_precision(remat="full")).keys() == {"xla_disable_hlo_passes"}
    fast(False)
    assert precision.compiler_options(with_precision("bfloat16")) is None
    monkeypatch.setattr(precision.jax, "default_backend", lambda: "gpu")
    assert precision.compiler_options(with_precision("bfloat16", remat="full")) is None
