"""Fused attention, which keeps scores and weights on the chip (Dao et al. 2022): one kernel for each platform."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from t2t_flax.models.masks import SegmentMask, mask_array
from t2t_flax.models.splash_attention import splash_attention, splash_takes

_OF_PLATFORM = {"gpu": "cudnn", "tpu": "splash"}


def attention_kernel(wanted: str, platform: str, dtype: jnp.dtype) -> str:
    """What `model.attention_kernel` = `wanted` is on "cpu", "gpu" or "tpu" with products in `dtype`: a row of KERNELS, or
    "einsum". Kernels multiply bfloat16, and each exists on one platform; "auto" is the one of the platform.
    """
    there = _OF_PLATFORM.get(platform, "einsum") if dtype == jnp.bfloat16 else "einsum"
    return there if wanted in ("auto", there) else "einsum"


def cudnn_takes(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | SegmentMask) -> bool:
    """Whether the kernel and its backward pass take rows of these shapes: [B, T, N, H], [B, S, G, H], [B, S, G, H]."""
    if q.ndim != 4:  # blocks of a window, and beams with slots of their own
        return False
    # An array is the window of short rows, or of beams in decoding: their keys lie in another order than the kernel reads.
    if not isinstance(mask, SegmentMask) and not q.shape[1] == k.shape[1] == mask.shape[-2]:
        return False
    width = q.shape[-1]
    return width == v.shape[-1] and width % 8 == 0 and width <= 128 and q.shape[1] % 2 == k.shape[1] % 2 == 0


def cudnn_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | SegmentMask, *, scaled: bool
) -> jax.Array:
    """softmax(q k) v under a mask [B or 1, 1, T, S] -> [B, T, N, H]; bfloat16, softmax in float32.

    An array holds segments and causality: the kernel's own causal mask knows nothing of packed rows. A query without
    any key, which is padding, gets a mean of values and not 0 as in `masked_softmax`; no real token sees it.
    """
    scale = None if scaled else 1.0
    return jax.nn.dot_product_attention(q, k, v, mask=mask_array(mask), scale=scale, implementation="cudnn")


class Kernel(NamedTuple):
    """takes(q, k, v, mask): whether it applies; attend(q, k, v, mask, scaled=...): softmax(q k) v."""

    takes: Callable[..., bool]
    attend: Callable[..., jax.Array]


KERNELS = {"cudnn": Kernel(cudnn_takes, cudnn_attention), "splash": Kernel(splash_takes, splash_attention)}
