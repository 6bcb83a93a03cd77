"""Attention by cuDNN's fused kernel, which keeps scores and weights on the chip (Dao et al. 2022)."""

import jax


def cudnn_takes(q: jax.Array, k: jax.Array, v: jax.Array) -> bool:
    """Whether the kernel and its backward pass take rows of these shapes: [B, T, N, H], [B, S, G, H], [B, S, G, H]."""
    if q.ndim != 4:  # blocks of a window, and beams
        return False
    width = q.shape[-1]
    return width == v.shape[-1] and width % 8 == 0 and width <= 128 and q.shape[1] % 2 == k.shape[1] % 2 == 0


def fused_attention(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, *, scaled: bool) -> jax.Array:
    """softmax(q k) v under a bool mask [B or 1, 1, T, S] -> [B, T, N, H]; bfloat16, softmax in float32.

    The mask holds segments and causality: the kernel's own causal mask knows nothing of packed rows. A query without
    any key, which is padding, gets a mean of values and not 0 as in `masked_softmax`; no real token sees it.
    """
    scale = None if scaled else 1.0
    return jax.nn.dot_product_attention(q, k, v, mask=mask, scale=scale, implementation="cudnn")
