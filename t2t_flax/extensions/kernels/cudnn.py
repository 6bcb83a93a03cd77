"""Attention on NVIDIA GPUs by cuDNN's fused kernel.

It keeps scores and weights on the chip (Dao et al. 2022).
"""

import os
import re
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from t2t_flax.extensions.kernels.devices import divides, on_each_device
from t2t_flax.models.attention import SegmentMask, mask_array

PLATFORM = "gpu"


def unavailable() -> str:
    """Return why the devices of this process cannot run the kernel, or "".

    Without a GPU, as in `plan`: "".
    """
    if re.search(r"deterministic_ops(?!=(false|0))", os.environ.get("XLA_FLAGS", "")):
        return (
            "XLA fails at cudnn's second backward pass under its flags for deterministic operations"
        )
    if jax.default_backend() != "gpu":
        return ""
    capability = str(getattr(jax.local_devices()[0], "compute_capability", ""))
    # AMD's capabilities are names such as gfx90a.
    recent = re.fullmatch(r"([89]|\d\d)\.\d", capability)
    return "" if recent else "cudnn needs an NVIDIA GPU of compute capability 8.0 or more"


def slower(length: int) -> str:
    """Return why einsum is the better default for rows of `length`, or ""."""
    del length
    return ""


def takes(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | SegmentMask) -> bool:
    """Return True if the kernel and its backward pass take rows of these shapes.

    The shapes are [B, T, N, H], [B, S, G, H], [B, S, G, H].
    """
    if q.ndim != 4 or not divides(q, k):  # window blocks, or beams with separate slots
        return False
    # An array masks a window of short rows, or beams in decoding, whose keys lie in another order
    # than the kernel reads.
    if not isinstance(mask, SegmentMask) and not q.shape[1] == k.shape[1] == mask.shape[-2]:
        return False
    width = q.shape[-1]
    return (
        width == v.shape[-1]
        and width % 8 == 0
        and width <= 128
        and q.shape[1] % 2 == k.shape[1] % 2 == 0
    )


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | SegmentMask, *, scaled: bool
) -> jax.Array:
    """Compute softmax(q k) v under a mask [B or 1, 1, T, S] -> [B, T, N, H].

    It computes in bfloat16, the softmax in float32. An array holds segments and causality: the
    kernel's causal mask ignores packed rows. A query without any key, which is padding, gets a mean
    of values and not 0 as in `masked_softmax`; no real token sees it.
    """
    _keep_no_programs()

    def attend_rows(q, k, v, array):
        scale = None if scaled else 1.0
        return jax.nn.dot_product_attention(
            q, k, v, mask=array, scale=scale, implementation="cudnn"
        )

    return on_each_device(attend_rows, q, k, v, mask_array(mask))


def _keep_no_programs() -> None:
    """Stop this process from reading or writing JAX's cache of compiled programs.

    A program with this kernel that is read from the cache fails at its first update, or crashes the
    process, since cuDNN cannot restore its plans (jax 0.11.2, cuDNN 9, H100).
    """
    settings: Any = jax.config
    if jax.default_backend() == "gpu" and settings.jax_enable_compilation_cache:
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()  # JAX checks only once whether a cache exists
