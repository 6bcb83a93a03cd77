"""FLOPs of matrix products by formula, and those that known devices can do.

Mixers and feed-forward layers state their own multiply-adds. XLA's count is not used: it counts the body of a loop once,
and is per device.
"""

import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from t2t_flax.config import Model
from t2t_flax.models.attention import MultiHeadAttention
from t2t_flax.models.feed_forward import feed_forward_class
from t2t_flax.models.mixer import mixer_class

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
    "TPU7x": 1153.5,  # half a chip
    "NVIDIA A100": 312.0,
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA H100": 989.0,
    "NVIDIA H200": 989.0,
    "NVIDIA B200": 2250.0,
    "NVIDIA GB200": 2500.0,
    "NVIDIA B300": 2250.0,
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


def real_tokens(source_lengths: np.ndarray, target_lengths: np.ndarray) -> Tokens:
    """Of sentence pairs with these lengths, int [pairs]."""
    s, t = source_lengths.astype(np.float64), target_lengths.astype(np.float64)
    return Tokens(s.sum(), t.sum(), (s * s).sum(), (t * t).sum(), (s * t).sum())


def padded_tokens(rows: int, length: int) -> Tokens:
    """Of rows of `length` slots on each side, padding included."""
    slots = float(rows * length)
    return Tokens(slots, slots, slots * length, slots * length, slots * length)


def forward_flops(model: Model, vocab: int, tokens: Tokens) -> float:
    """FLOPs (2 per multiply-add) of the matrix products of one forward pass. The backward pass takes twice as many."""
    mixer, feed_forward = mixer_class(model), feed_forward_class(model)
    encoder = mixer.multiply_adds(model, tokens.source, tokens.source_self, causal=False)
    encoder += feed_forward.multiply_adds(model, tokens.source)
    decoder = mixer.multiply_adds(model, tokens.target, tokens.target_self, causal=True)
    decoder += MultiHeadAttention.multiply_adds(model, tokens.target, tokens.source, tokens.cross)
    decoder += feed_forward.multiply_adds(model, tokens.target)
    logits = tokens.target * model.d_model * vocab
    return 2.0 * (model.num_encoder_layers * encoder + model.num_decoder_layers * decoder + logits)


class Backward(NamedTuple):
    """The matrix products of a backward pass. source, target: multiply-adds of kernels for each token of that side. The others:
    layers in which the products without a kernel (attention's, of queries with keys and of weights with values) have
    gradients.
    """

    source: float
    target: float
    encoder_mixers: int
    decoder_mixers: int
    cross_attentions: int


_LATER_KERNELS = ("out", "down", "Einsum_1", "hf", "hg", "hi", "ho", "hn", "hr", "hz")
"""Kernels whose input the others of their sub-layer made: also the recurrent ones of an LSTM or GRU."""


def partial_backward(model: Model, vocab: int, params: Any, trained: Collection[str]) -> Backward:
    """The backward pass if only the parameters at the paths `trained`, of those of the tree `params`, have gradients.

    A product's kernel has a gradient if it is trained, and its input if a trained parameter lies before it: below the
    lowest one nothing is computed.
    """
    leaves = {path: math.prod(leaf.shape) for path, leaf in flatten_dict(params, sep="/").items()}
    sides, layers = {"source": 0.0, "target": 0.0}, {"encoder_mixers": 0, "decoder_mixers": 0, "cross_attentions": 0}
    mixer, pre = mixer_class(model).NAME, model.norm_placement == "pre"

    def has(*folders: str) -> bool:
        return any(path.startswith(folder) for path in trained for folder in folders)

    def add(folder: str, reached: bool, memory: bool, own: str) -> bool:
        """Adds a sub-layer on tokens of the side `own`. reached: its input has a gradient; memory: the encoder output that it
        reads has one. Returns whether its products without a kernel have gradients.
        """
        later = {path for path in leaves if path.startswith(folder) and path.split("/")[-2] in _LATER_KERNELS}
        inside = reached or memory or any(path.startswith(folder) for path in set(trained) - later)
        for path, size in leaves.items():
            if path.startswith(folder) and path.endswith("/kernel"):
                of_memory = "/cross_attention/key/" in path or "/cross_attention/value/" in path
                input_has = inside if path in later else memory if of_memory else reached
                sides["source" if of_memory else own] += size * ((path in trained) + input_has)
        return inside

    memory = False
    for side, own, depth in (
        ("encoder", "source", model.num_encoder_layers),
        ("decoder", "target", model.num_decoder_layers),
    ):
        reached = has("shared_embedding/", f"{own}_embedding/", f"{own}_positions/")
        reached |= side == "decoder" and has("decoder_start_token/")
        cross = [("cross_attention", "residual_cross", "cross_attentions")] if side == "decoder" else []
        for i in range(depth):
            for name, residual, counted in (
                (mixer, "residual_attention", f"{side}_mixers"),
                *cross,
                ("feed_forward", "residual_ffn", ""),
            ):
                folder, norm = f"{side}_{i}/{name}/", f"{side}_{i}/{residual}/"
                seen = memory and name == "cross_attention"
                inside = add(folder, reached or pre and has(norm), seen, own)
                if counted:
                    layers[counted] += inside
                reached |= seen or has(folder, norm)
        reached |= has(f"{side}_norm/")
        memory = reached if side == "encoder" else memory
    table = {"all": "shared_embedding", "decoder": "target_embedding", "none": "output_embedding"}[model.tie_embeddings]
    sides["target"] += model.d_model * vocab * (has(f"{table}/") + reached)
    return Backward(sides["source"], sides["target"], **layers)


def training_flops(model: Model, vocab: int, tokens: Tokens, backward: Backward | None = None) -> float:
    """FLOPs of the matrix products of a forward and a backward pass. Without `backward` all parameters are trained, and the
    backward pass takes twice as many as the forward pass.
    """
    forward = forward_flops(model, vocab, tokens)
    if backward is None:
        return 3 * forward
    mixer, cross = mixer_class(model).multiply_adds, MultiHeadAttention.multiply_adds
    source, target = tokens.source, tokens.target

    def without_kernel(multiply_adds: Callable[[float], float], pairs: float) -> float:
        return multiply_adds(pairs) - multiply_adds(0.0)

    in_encoder = without_kernel(lambda pairs: mixer(model, source, pairs, causal=False), tokens.source_self)
    in_decoder = without_kernel(lambda pairs: mixer(model, target, pairs, causal=True), tokens.target_self)
    across = without_kernel(lambda pairs: cross(model, target, source, pairs), tokens.cross)
    total = backward.source * source + backward.target * target
    total += 2 * backward.encoder_mixers * in_encoder
    total += 2 * (backward.decoder_mixers * in_decoder + backward.cross_attentions * across)
    return forward + 2.0 * total


def data_sheet_peak(device: jax.Device) -> float | None:
    """FLOP/s of a known device, else None."""
    kinds = [k for k in DATA_SHEET_TFLOPS if device.device_kind.lower().startswith(k.lower())]
    return DATA_SHEET_TFLOPS[max(kinds, key=len)] * 1e12 if kinds else None
