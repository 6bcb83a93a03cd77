"""FLOPs by formula, and their share of a known peak: a data sheet's or a measured one.

Mixers and feed-forward layers state their own multiply-adds. XLA's count is not used: it counts the body of a loop once,
and is per device.
"""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.models.attention import MultiHeadAttention
from t2t_flax.models.dense import FEED_FORWARDS
from t2t_flax.models.mixers import MIXERS

# Dense bfloat16 TFLOP/s of one JAX device, from the vendors' data sheets.
DATA_SHEET_TFLOPS = {
    "TPU v3": 61.5,
    "TPU v4": 275.0,
    "TPU v5 lite": 197.0,
    "TPU v5e": 197.0,
    "TPU v5p": 459.0,
    "TPU v5": 459.0,
    "TPU v6 lite": 918.0,
    "TPU v6e": 918.0,
    "NVIDIA A100": 312.0,
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA H100": 989.0,
    "NVIDIA H200": 989.0,
    "NVIDIA B200": 2250.0,
}


class Tokens(NamedTuple):
    """Tokens of an update, and the pairs of tokens that attention compares.

    Real: summed over sentence pairs i, so `cross` is the sum of S_i * T_i. Padded: over rows. `target_self` counts both
    triangles: a masked product computes both.
    """

    source: float
    target: float
    source_self: float
    target_self: float
    cross: float


def forward_flops(model: Model, vocab: int, tokens: Tokens) -> float:
    """FLOPs (2 per multiply-add) of the matrix products of one forward pass. The backward pass takes twice as many."""
    mixer, feed_forward = MIXERS[model.mixer][0], FEED_FORWARDS[model.feed_forward]
    encoder = mixer.multiply_adds(model, tokens.source, tokens.source_self, causal=False)
    encoder += feed_forward.multiply_adds(model, tokens.source)
    decoder = mixer.multiply_adds(model, tokens.target, tokens.target_self, causal=True)
    decoder += MultiHeadAttention.multiply_adds(model, tokens.target, tokens.source, tokens.cross)
    decoder += feed_forward.multiply_adds(model, tokens.target)
    logits = tokens.target * model.d_model * vocab
    return 2.0 * (model.num_encoder_layers * encoder + model.num_decoder_layers * decoder + logits)


def data_sheet_peak(device: jax.Device) -> float | None:
    """FLOP/s of a known device, else None."""
    kinds = [k for k in DATA_SHEET_TFLOPS if device.device_kind.lower().startswith(k.lower())]
    return DATA_SHEET_TFLOPS[max(kinds, key=len)] * 1e12 if kinds else None


def measured_peak(dtype: jnp.dtype, size: int | None = None, *, precision: str | None = None) -> float:
    """FLOP/s of one device in a square product of this type and `jax.default_matmul_precision`; the best of three."""
    size = size or (1024 if jax.default_backend() == "cpu" else 8192)
    x = jnp.ones((size, size), dtype)
    product = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision))
    product(x, x).block_until_ready()
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        product(x, x).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best


def mfu(hardware_flops: float, useful_flops: float, seconds: float, peaks: dict[str, float | None]) -> dict[str, float]:
    """`mfu_hardware_measured`, ...: FLOP/s of all tokens and of real ones, over each known peak of all devices."""
    return {
        f"mfu_{name}_{kind}": flops / seconds / peak
        for kind, peak in peaks.items()
        if peak
        for name, flops in (("hardware", hardware_flops), ("useful", useful_flops))
    }
