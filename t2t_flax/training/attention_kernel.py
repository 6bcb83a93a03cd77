"""Choice of the attention kernel for training, and the reason for einsum."""

from typing import Any

import jax
import jax.numpy as jnp

from t2t_flax.config import Config
from t2t_flax.models.attention import DotScore, SegmentMask
from t2t_flax.registry import ATTENTION_KERNELS, SCORES


def attention_kernel(config: Config, dtype: jnp.dtype, platform: str = "") -> tuple[str, str]:
    """Return the attention kernel, and the reason if it is einsum, else "".

    Args:
        dtype: compute dtype of matrix products.
        platform: "cpu", "gpu" or "tpu"; default JAX's own.
    """
    model = config.model
    wanted = model.attention_kernel
    if wanted == "einsum":
        return "einsum", "model.attention_kernel = einsum"
    if dtype != jnp.bfloat16:
        return "einsum", f"products are {dtype} (train.precision)"
    if model.dropout_attention > 0.0:
        return "einsum", "model.dropout_attention > 0"
    if not isinstance(SCORES.load(model.attention_score)(), DotScore):
        return "einsum", f"model.attention_score = {model.attention_score}"
    platform = platform or jax.default_backend()
    for name, module in ATTENTION_KERNELS.items():
        kernel = ATTENTION_KERNELS.load(name) if module and wanted in ("auto", name) else None
        if kernel and kernel.PLATFORM == platform:
            reason = kernel.unavailable() or (
                kernel.slower(_length(config)) if wanted == "auto" else ""
            )
            return ("einsum", reason) if reason else (name, "")
    return (
        "einsum",
        f"no kernel on {platform}" if wanted == "auto" else f"{wanted} does not run on {platform}",
    )


def explain_attention(config: Config, dtype: jnp.dtype) -> list[str]:
    """Return a section of `explain`: the attention kernel on this machine."""
    name, reason = attention_kernel(config, dtype)
    if not reason and not _takes(name, config):
        d_k, d_v = config.model.head_widths
        name, reason = (
            "einsum",
            f"{name} does not take rows of {_length(config)} and heads of {d_k} and {d_v}",
        )
    if reason:
        return ["attention", f"  einsum on {jax.default_backend()}: {reason}"]
    return [
        "attention",
        f"  {name} in training, where there is no position bias or window",
        "  einsum in decoding",
    ]


def _length(config: Config) -> int:
    """Length of the longest training rows."""
    return config.data.pack_length if config.data.batching == "packed" else config.data.max_length


def _takes(name: str, config: Config) -> bool:
    """Return whether a kernel takes the training rows of this config."""
    (d_k, d_v), length = config.model.head_widths, _length(config)

    def row(heads: int, width: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((1, length, heads, width), jnp.bfloat16)

    heads, key_heads = config.model.num_heads, config.model.key_heads
    ids: Any = jax.ShapeDtypeStruct((1, length), jnp.int32)
    operands = row(heads, d_k), row(key_heads, d_k), row(key_heads, d_v)
    return ATTENTION_KERNELS.load(name).takes(*operands, SegmentMask(ids, ids))
