"""Precision of matrix products in training and decoding."""

import contextlib
import functools
import re

import jax
import jax.numpy as jnp
from etils import epath

from t2t_flax.config import Config
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.models.dense import cast_results
from t2t_flax.process_setup import cpu_info
from t2t_flax.training.workdir import checkpoint_steps, read_config

_INSTRUCTIONS = re.compile(r"\b(avx512_bf16|amx_bf16)\b")
# Without the second option below, XLA's YNNPACK keeps products whose results it rounds to bfloat16.
_FLOAT32_RESULT = re.compile(r"= \(?f32\[512,512\].* custom-call\(.*onednn")
_ONEDNN: dict[str, str | bool] = {
    "xla_cpu_experimental_onednn_custom_call": True,
    "xla_cpu_experimental_ynn_fusion_type": "",
}

# By default JAX computes float32 products in TF32 on recent GPUs and in one bfloat16 pass on TPU.
MATMUL_PRECISION = {"float32": "highest", "tf32": "tensorfloat32"}


def compute_dtype(precision: str) -> jnp.dtype:
    """Return the compute dtype of matrix products.

    `auto` is bfloat16 on TPUs and on GPUs with bfloat16 units, else float32. On CPUs results then
    do not depend on the machine.
    """
    if precision == "auto":
        precision = (
            "float32"
            if jax.default_backend() == "cpu" or _before_ampere(jax.devices()[0])
            else "bfloat16"
        )
    return jnp.dtype("float32" if precision == "tf32" else precision)


def _before_ampere(device: jax.Device) -> bool:
    """Return whether a device is an NVIDIA GPU with compute capability below 8.0.

    Such a GPU would convert bfloat16 products to float32.
    """
    return re.fullmatch(r"[1-7]\.\d", str(getattr(device, "compute_capability", ""))) is not None


def with_precision(config: Config, workdir: epath.Path, group: ProcessGroup) -> Config:
    """Replace train.precision = auto by a precision.

    A resumed run keeps the precision of its first start. For a new run the devices decide.
    """
    if config.train.precision != "auto":
        return config
    precision = here = compute_dtype("auto").name
    stored = read_config(workdir) if group.is_lead and checkpoint_steps(workdir) else None
    if stored and stored.train.precision != "auto":
        precision = stored.train.precision
    precision = group.broadcast("train.precision", precision)
    if precision != here:
        group.say(
            f"config.train.precision = auto is {precision}, as at the start of this run; a new one"
            f" here would be in {here}"
        )
    return config.with_values({"train.precision": precision})


def decoding_precision(config: Config) -> str:
    """Return config.decode.precision, with auto replaced.

    `auto` is the precision of the training, but float32 in place of bfloat16 on CPUs and on GPUs
    without bfloat16 units.
    """
    if config.decode.precision != "auto":
        return config.decode.precision
    slow = compute_dtype("auto") == jnp.float32
    return "float32" if slow and config.train.precision == "bfloat16" else config.train.precision


def has_bfloat16_instructions() -> bool:
    """Return whether this CPU multiplies bfloat16 in hardware (AVX512_BF16 or AMX)."""
    return bool(_INSTRUCTIONS.search(cpu_info()))


@functools.cache
def has_fast_bfloat16() -> bool:
    """Return whether bfloat16 is faster than float32 on this CPU.

    This takes the CPU instructions, and an XLA built with oneDNN, which uses them. XLA must also
    hand the casts of results to oneDNN (see `models.dense.cast_results`). XLA's own products need
    three times as long for the gradients of matrices.
    """
    if not has_bfloat16_instructions():
        return False
    matrix = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16)  # small products stay with XLA
    try:
        program = (
            jax.jit(lambda x, y: (x @ y).astype(jnp.float32) * 2.0)
            .lower(matrix, matrix)
            .compile(_ONEDNN)
        )
    except jax.errors.JaxRuntimeError:  # a version without these options
        return False
    return bool(_FLOAT32_RESULT.search(program.as_text() or ""))


def compiler_options(config: Config) -> dict[str, str | bool] | None:
    """Return XLA options for the train step, or None.

    On CPU, XLA drops the barriers around rematerialized layers and merges the recomputation with
    the first computation, which would save no memory. One option keeps the barriers. Other options
    make oneDNN compute bfloat16 products.
    """
    if jax.default_backend() != "cpu":
        return None
    options: dict[str, str | bool] = {}
    if config.train.remat != "none":
        options["xla_disable_hlo_passes"] = "cse_barrier_expander"
    return options | _onednn_options(config) or None


def _onednn_options(config: Config) -> dict[str, str | bool]:
    """Return options that fuse bfloat16 products with the cast to float32."""
    return _ONEDNN if config.train.precision == "bfloat16" and has_fast_bfloat16() else {}


def result_casts(config: Config, platform: str) -> contextlib.AbstractContextManager[None]:
    """Return the context in which the train step is traced.

    It is `models.dense.cast_results` where `compiler_options` fuse a product with the cast of its
    result.

    Args:
        platform: "cpu", "gpu" or "tpu".
    """
    fused = platform == "cpu" and bool(_onednn_options(config))
    return cast_results() if fused else contextlib.nullcontext()


def advice(config: Config, *, decoding: bool) -> str:
    """Return advice to use a faster precision on this CPU, or "".

    Args:
        decoding: advise on decode.precision instead of train.precision.
    """
    if jax.default_backend() != "cpu":
        return ""
    if decoding:
        chosen = config.decode.engine != "jax" or config.decode.precision != "auto"
        wide = compute_dtype(decoding_precision(config)) == jnp.float32
        faster = not chosen and wide and has_fast_bfloat16()
        return (
            "bfloat16 is faster than float32 on this CPU: --config.decode.precision=bfloat16"
            if faster
            else ""
        )
    if config.train.precision != "bfloat16" or has_fast_bfloat16():
        return ""
    return (
        "config.train.precision = bfloat16 is slower than float32 on this CPU with this version of"
        " jaxlib"
    )
