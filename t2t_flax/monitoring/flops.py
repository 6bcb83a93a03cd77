"""FLOPs by formula, and their share of a peak that is known: a data sheet's, or one that was measured.

XLA's own count takes a loop's body once and is per device, so it is not used.
"""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp

from t2t_flax.config import Model

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
    """Tokens of an update, and the sums of products of lengths over which attention runs.

    Real: of each pair, so `cross` is the sum of S_i * T_i. Padded: of each row. `target_self` counts both triangles,
    which is what a masked product computes.
    """

    source: float
    target: float
    source_self: float
    target_self: float
    cross: float


def mixer_products(model: Model, tokens: float, pairs: float, *, causal: bool) -> float:
    """Multiply-adds of one layer's mixer: with n tokens and n^2 pairs those of the table in section 4, projections
    included.

    attention 4nd^2 + 2n^2 d, with a window of r 4nd^2 + 2rnd (r counts both sides in the decoder too, as `pairs` does);
    LSTM 8nd^2, GRU 6nd^2, of which the two half-width directions of the encoder take 3/4; convolution knd^2.
    """
    d, heads = model.d_model, model.num_heads
    if model.mixer == "attention":
        d_k, d_v = _widths(model)
        pairs = min(pairs, tokens * model.attention_window) if model.attention_window else pairs
        return (tokens * 2 * d + pairs) * heads * (d_k + d_v)
    if model.mixer in _GATES:
        return tokens * 2 * _GATES[model.mixer] * d * d * (1.0 if causal else 0.75)
    if model.mixer not in ("conv", "dilated_conv"):
        raise ValueError(f"no formula for the products of model.mixer = {model.mixer!r}")
    return tokens * model.conv_kernel_size * d * d


_GATES = {"lstm": 4, "gru": 3}


def _widths(model: Model) -> tuple[int, int]:
    width = model.d_model // model.num_heads
    return model.d_k or width, model.d_v or width


def forward_flops(model: Model, vocab: int, tokens: Tokens) -> float:
    """FLOPs (2 per multiply-add) of the matrix products of one forward pass. The backward pass takes twice as many."""
    d, per_pair = model.d_model, model.num_heads * sum(_widths(model))
    ffn = 2 * d * model.d_ff
    encoder = mixer_products(model, tokens.source, tokens.source_self, causal=False) + tokens.source * ffn
    decoder = mixer_products(model, tokens.target, tokens.target_self, causal=True) + tokens.target * ffn
    # Cross-attention: queries and output of each target, keys and values of each source token.
    decoder += (tokens.target * d + tokens.source * d + tokens.cross) * per_pair
    total = model.num_encoder_layers * encoder + model.num_decoder_layers * decoder + tokens.target * d * vocab
    return 2.0 * total


def data_sheet_peak(device: jax.Device) -> float | None:
    """FLOP/s of a known device, else None: an unknown peak is not guessed."""
    kinds = [k for k in DATA_SHEET_TFLOPS if device.device_kind.lower().startswith(k.lower())]
    return DATA_SHEET_TFLOPS[max(kinds, key=len)] * 1e12 if kinds else None


def measured_peak(dtype: jnp.dtype, size: int | None = None, *, precision: str | None = None) -> float:
    """FLOP/s of one device in a square matrix product of the compute type, at this `jax.default_matmul_precision`; the
    best of several.
    """
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
    """`mfu_hardware_measured` and so on: FLOP/s of all and of real tokens, over each known peak of all devices."""
    return {
        f"mfu_{name}_{kind}": flops / seconds / peak
        for kind, peak in peaks.items()
        if peak
        for name, flops in (("hardware", hardware_flops), ("useful", useful_flops))
    }
