"""The precision of matrix products, in training and in decoding, and where bfloat16 is fast."""

import functools
import re

import jax
import jax.numpy as jnp

from t2t_flax.config import Config
from t2t_flax.process_setup import cpu_info

# By default JAX computes float32 products in TF32 on recent GPUs and in one bfloat16 pass on TPU.
MATMUL_PRECISION = {"float32": "highest", "tf32": "tensorfloat32"}
_INSTRUCTIONS = re.compile(r"\b(avx512_bf16|amx_bf16)\b")
_ONEDNN: dict[str, str | bool] = {"xla_cpu_experimental_onednn_custom_call": True}
_FUSED_BESIDE_ONEDNN = {
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_ELTWISE,LIBRARY_FUSION_TYPE_REDUCE"
}


def compute_dtype(precision: str) -> jnp.dtype:
    """The type of the products: `auto` is bfloat16 on TPU and GPU, and float32 on CPU, where results then do not depend on the
    machine.
    """
    if precision == "auto":
        precision = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    return jnp.dtype("float32" if precision == "tf32" else precision)


def decoding_precision(config: Config, platform: str = "") -> str:
    """config.decode.precision with auto decided: that of the training, but float32 in place of bfloat16 on CPU. `platform`:
    "cpu", "gpu" or "tpu"; default JAX's own.
    """
    if config.decode.precision != "auto":
        return config.decode.precision
    on_cpu = config.train.precision == "bfloat16" and (platform or jax.default_backend()) == "cpu"
    return "float32" if on_cpu else config.train.precision


def has_bfloat16_instructions() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware (AVX512_BF16 or AMX)."""
    return bool(_INSTRUCTIONS.search(cpu_info()))


@functools.cache
def has_fast_bfloat16() -> bool:
    """Whether bfloat16 is faster than float32 on this CPU: it has the instructions, and XLA was built with oneDNN, which uses
    them.
    """
    if not has_bfloat16_instructions():
        return False
    matrix = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16)  # small products stay with XLA
    try:
        program = jax.jit(lambda x, y: x.T @ y).lower(matrix, matrix).compile(_ONEDNN)
    except jax.errors.JaxRuntimeError:  # a version without this option
        return False
    return "onednn" in (program.as_text() or "")


def faster_precision(config: Config) -> str:
    """A sentence for users whose model decodes in float32, because that is the default, where bfloat16 is faster; else ""."""
    chosen = config.decode.engine != "jax" or config.decode.precision != "auto"
    wide = compute_dtype(decoding_precision(config)) == jnp.float32
    if chosen or jax.default_backend() != "cpu" or not wide or not has_fast_bfloat16():
        return ""
    return "bfloat16 is faster than float32 on this CPU: --config.decode.precision=bfloat16"


def slow_precision(config: Config) -> str:
    """A sentence for users who train in bfloat16 where float32 is faster; else ""."""
    if config.train.precision != "bfloat16" or jax.default_backend() != "cpu" or has_fast_bfloat16():
        return ""
    return "config.train.precision = bfloat16 is slower than float32 on this CPU with this version of jaxlib"


def compiler_options(config: Config) -> dict[str, str | bool] | None:
    """XLA options of a train step. On CPU, bfloat16 products go to oneDNN: XLA's own need three times as long for the gradients
    of matrices. And XLA drops the barriers around rematerialized layers there and then merges the recomputation with the first
    computation, which would save no memory: the last option keeps them.
    """
    if jax.default_backend() != "cpu":
        return None
    options: dict[str, str | bool] = {}
    if config.train.precision == "bfloat16" and has_fast_bfloat16():
        options |= _ONEDNN
    if config.train.remat != "none":
        options |= {"xla_disable_hlo_passes": "cse_barrier_expander"}
    return options or None
