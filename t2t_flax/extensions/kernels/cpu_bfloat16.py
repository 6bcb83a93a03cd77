"""Products in bfloat16 on a CPU that has instructions for them: by oneDNN. XLA's own need three times as long for the gradients
of matrices.
"""

import functools
import re

import jax
import jax.numpy as jnp

from t2t_flax.config import Config
from t2t_flax.extensions.shared.processes import cpu_info
from t2t_flax.training.precision import compute_dtype, decoding_precision

_INSTRUCTIONS = re.compile(r"\b(avx512_bf16|amx_bf16)\b")
# Without the second one XLA's YNNPACK keeps products whose results it rounds to bfloat16.
_FLOAT32_RESULT = re.compile(r"= \(?f32\[512,512\].* custom-call\(.*onednn")
_ONEDNN: dict[str, str | bool] = {
    "xla_cpu_experimental_onednn_custom_call": True,
    "xla_cpu_experimental_ynn_fusion_type": "",
}


def has_bfloat16_instructions() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware (AVX512_BF16 or AMX)."""
    return bool(_INSTRUCTIONS.search(cpu_info()))


@functools.cache
def has_fast_bfloat16() -> bool:
    """Whether bfloat16 is faster than float32 on this CPU: it has the instructions, and XLA was built with oneDNN, which uses
    them, and gives it the casts of results (see `models.dense.cast_results`).
    """
    if not has_bfloat16_instructions():
        return False
    matrix = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16)  # small products stay with XLA
    try:
        program = jax.jit(lambda x, y: (x @ y).astype(jnp.float32) * 2.0).lower(matrix, matrix).compile(_ONEDNN)
    except jax.errors.JaxRuntimeError:  # a version without these options
        return False
    return bool(_FLOAT32_RESULT.search(program.as_text() or ""))


def compiler_options(config: Config) -> dict[str, str | bool]:
    """XLA options of a train step on a CPU, which make one operation of a product and the cast of its result."""
    return _ONEDNN if config.train.precision == "bfloat16" and has_fast_bfloat16() else {}


def advice(config: Config, *, decoding: bool) -> str:
    """A sentence for users on a CPU who train in bfloat16 where float32 is faster, or whose model decodes in float32, because
    that is the default, where bfloat16 is faster; else "".
    """
    if decoding:
        chosen = config.decode.engine != "jax" or config.decode.precision != "auto"
        wide = compute_dtype(decoding_precision(config)) == jnp.float32
        faster = not chosen and wide and has_fast_bfloat16()
        return "bfloat16 is faster than float32 on this CPU: --config.decode.precision=bfloat16" if faster else ""
    if config.train.precision != "bfloat16" or has_fast_bfloat16():
        return ""
    return "config.train.precision = bfloat16 is slower than float32 on this CPU with this version of jaxlib"
