"""Attention on TPU by JAX's Pallas kernel "splash attention".

It keeps scores and weights on the chip.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from t2t_flax.extensions.kernels.devices import divides, on_each_device
from t2t_flax.models.attention import SegmentMask

PLATFORM = "tpu"
_SHORTEST_ROWS = 512  # shortest rows with a public report of a speed-up on TPUs
_LANES = 128  # width of a vector register; blocks are multiples of it
_LARGEST_BLOCK = 512  # its scores, 1 MiB in float32, fit on the chip several times


def unavailable() -> str:
    """Return why the devices of this process cannot run the kernel, or ""."""
    return ""


def slower(length: int) -> str:
    """Return why einsum is the better default for rows of `length`, or ""."""
    known = length >= _SHORTEST_ROWS
    return (
        ""
        if known
        else f"splash is not known to be faster in rows of {length}, below {_SHORTEST_ROWS}"
    )


def takes(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | SegmentMask) -> bool:
    """Return True if the kernel takes rows of these shapes on the mesh in use.

    The shapes are [B, T, N, H] over [B, S, G, H]. The kernel makes segments and causality itself;
    any other mask, such as for a window, is an array and not taken.
    """
    if q.ndim != 4 or not isinstance(mask, SegmentMask):  # window blocks, or beams
        return False
    lengths, widths = (q.shape[1], k.shape[1]), (q.shape[-1], v.shape[-1])
    return (
        divides(q, k)
        and all(n % _LANES == 0 for n in lengths)
        and all(w % 64 == 0 and w <= 256 for w in widths)
    )


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: SegmentMask,
    *,
    scaled: bool,
    interpret: bool = False,
) -> jax.Array:
    """Compute softmax(q k) v under `mask`.

    Shapes: [B, T, N, H] over [B, S, G, H] -> [B, T, N, d_v]. The softmax is in float32. A query
    without any key gets a mean of values, and padding attends to padding, instead of 0 as in
    `masked_softmax`; no real token sees either. The backward pass computes scores again.

    Args:
        interpret: run without a TPU, slowly.
    """

    def attend_rows(q, k, v, query_segments, key_segments):
        scale = q.shape[-1] ** -0.5 if scaled else 1.0
        q = (q.astype(jnp.float32) * scale).astype(q.dtype)
        attend_row = _row_attention(q, k, causal=mask.causal, interpret=interpret)
        by_head = (x.swapaxes(1, 2) for x in (q, k, v))
        return jax.vmap(attend_row)(*by_head, query_segments, key_segments).swapaxes(1, 2)

    return on_each_device(attend_rows, q, k, v, mask.query_segments, mask.key_segments)


def _row_attention(
    q: jax.Array, k: jax.Array, *, causal: bool, interpret: bool
) -> Callable[..., jax.Array]:
    """Return the attention of one row with these shapes.

    It maps (q [N, T, H], k [G, S, H], v [G, S, H], segments [T], [S]) -> [N, T, H].
    """
    # 0.2 s, only for TPU runs.
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    lengths = q.shape[1], k.shape[1]
    queries, keys = (
        max(n for n in range(_LANES, _LARGEST_BLOCK + 1, _LANES) if length % n == 0)
        for length in lengths
    )
    # Arrays whose last axis is shorter than a register would take and move the memory of a whole
    # one.
    layout = (
        splash.QKVLayout.HEAD_DIM_MINOR if q.shape[-1] % _LANES == 0 else splash.QKVLayout.SEQ_MINOR
    )
    blocks = splash.BlockSizes(
        block_q=queries,
        block_kv=keys,
        block_q_dkv=queries,
        block_kv_dkv=keys,
        use_fused_bwd_kernel=True,
        q_layout=layout,
        k_layout=layout,
        v_layout=layout,
    )
    of_head = splash.CausalMask(lengths) if causal else splash.FullMask(lengths)
    masks = splash.MultiHeadMask([of_head] * q.shape[2])
    kernel = splash.make_splash_mha(
        masks, head_shards=1, q_seq_shards=1, block_sizes=blocks, interpret=interpret
    )
    return lambda q, k, v, *segments: kernel(q, k, v, splash.SegmentIds(*segments))
