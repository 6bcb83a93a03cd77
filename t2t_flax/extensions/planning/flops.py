"""FLOPs of matrix products by formula, from the shapes of a model's kernels.

XLA's count is not used: it counts the body of a loop once, and is per device.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict

from t2t_flax.config import Config, Model
from t2t_flax.models.attention import SelfAttention, mixer_class
from t2t_flax.training.train_state import TrainState, parameters_of


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
    """Tokens of sentence pairs with these lengths, int [pairs]."""
    s, t = source_lengths.astype(np.float64), target_lengths.astype(np.float64)
    return Tokens(s.sum(), t.sum(), (s * s).sum(), (t * t).sum(), (s * t).sum())


def padded_tokens(rows: int, length: int) -> Tokens:
    """Tokens of rows of `length` slots on each side, padding included."""
    slots = float(rows * length)
    return Tokens(slots, slots, slots * length, slots * length, slots * length)


class Products(NamedTuple):
    """Matrix products. source, target: multiply-adds of kernels, and of the softmax, for each token of that side. The others: in
    how many layers pairs of tokens are compared, in products of queries with keys and of weights with values.
    """

    source: float
    target: float
    encoder_mixers: int
    decoder_mixers: int
    cross_attentions: int

    def flops(self, model: Model, tokens: Tokens) -> float:
        """FLOPs, 2 for each multiply-add."""
        pairs = self.encoder_mixers * _compared(model, tokens.source, tokens.source_self)
        pairs += self.decoder_mixers * _compared(model, tokens.target, tokens.target_self)
        pairs += self.cross_attentions * tokens.cross
        of_pairs = pairs * model.num_heads * sum(model.head_widths)
        return 2.0 * (self.source * tokens.source + self.target * tokens.target + of_pairs)


def _compared(model: Model, tokens: float, pairs: float) -> float:
    """Pairs that a mixer compares, of `pairs` in the same segment: all in self-attention, unless its class has the static method
    `compared_pairs(model, tokens, pairs)`; none in other mixers, which have only kernels.
    """
    mixer = mixer_class(model)
    if hasattr(mixer, "compared_pairs"):
        return mixer.compared_pairs(model, tokens, pairs)
    return pairs if issubclass(mixer, SelfAttention) else 0.0


def forward_products(model: Model, vocab: int, params: Mapping[str, Any]) -> Products:
    """The products of a forward pass of a model with parameters of these shapes. vocab: of the target."""
    sides = {"source": 0.0, "target": model.d_model * vocab}
    for path, size in _kernels(params):
        sides["source" if path.startswith("encoder") or _reads_memory(path) else "target"] += size
    layers = (model.num_encoder_layers, model.num_decoder_layers, model.num_decoder_layers)
    return Products(sides["source"], sides["target"], *layers)


def training_products(config: Config, vocab: int, params: Mapping[str, Any]) -> Products:
    """The products of a forward and a backward pass of a run with parameters of these shapes."""
    forward = forward_products(config.model, vocab, params)
    trained = parameters_of(config).with_gradient(params)
    if trained is None:
        return Products(*(3 * count for count in forward))
    backward = _backward_products(config.model, vocab, params, trained)
    return Products(*map(sum, zip(forward, backward, strict=True)))


def _kernels(params: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """(path, size) of each kernel of the layers; one entry is one multiply-add for each token."""
    for path, leaf in flatten_dict(params, sep="/").items():
        if path.endswith("/kernel") and path.startswith(("encoder_", "decoder_")):
            yield path, math.prod(leaf.shape)


def _reads_memory(path: str) -> bool:
    return "/cross_attention/key/" in path or "/cross_attention/value/" in path


_LATER_KERNELS = ("out", "down", "Einsum_1", "hf", "hg", "hi", "ho", "hn", "hr", "hz")
"""Kernels whose input the others of their sub-layer made: also the recurrent ones of an LSTM or GRU."""


def _backward_products(model: Model, vocab: int, params: Mapping[str, Any], trained: Collection[str]) -> Products:
    """The products of a backward pass if only the parameters at the paths `trained` have gradients.

    A product's kernel has a gradient if it is trained, and its input if a trained parameter lies before it: below the
    lowest one nothing is computed.
    """
    kernels = dict(_kernels(params))
    sides, layers = {"source": 0.0, "target": 0.0}, {"encoder_mixers": 0, "decoder_mixers": 0, "cross_attentions": 0}
    mixer, pre = mixer_class(model).NAME, model.norm_placement == "pre"

    def has(*folders: str) -> bool:
        return any(path.startswith(folder) for path in trained for folder in folders)

    def add(folder: str, reached: bool, memory: bool, own: str) -> bool:
        """Adds a sub-layer on tokens of the side `own`. reached: its input has a gradient; memory: the encoder output that it
        reads has one. Returns whether its products without a kernel have gradients.
        """
        inner = {path: size for path, size in kernels.items() if path.startswith(folder)}
        is_later = lambda path: path.split("/")[-2] in _LATER_KERNELS  # noqa: E731
        inside = reached or memory or any(path.startswith(folder) and not is_later(path) for path in trained)
        for path, size in inner.items():
            input_has = inside if is_later(path) else memory if _reads_memory(path) else reached
            sides["source" if _reads_memory(path) else own] += size * ((path in trained) + input_has)
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
                    layers[counted] += 2 * inside
                reached |= seen or has(folder, norm)
        reached |= has(f"{side}_norm/")
        memory = reached if side == "encoder" else memory
    table = {"all": "shared_embedding", "decoder": "target_embedding", "none": "output_embedding"}[model.tie_embeddings]
    sides["target"] += model.d_model * vocab * (has(f"{table}/") + reached)
    return Products(sides["source"], sides["target"], **layers)


def lines(config: Config, state: TrainState, sizes: tuple[int, int]) -> list[str]:
    """A section of `explain`: FLOPs per target token at three lengths, and those of the whole run."""
    products = training_products(config, sizes[1], state.params)
    frozen = "" if parameters_of(config).with_gradient(state.params) is None else ", none for what is frozen"
    lines = [f"FLOPs of training per target token (forward and backward, 2 per multiply-add{frozen})"]
    per_token = {n: products.flops(config.model, padded_tokens(1, n)) / n for n in (27, 64, 256)}
    for length, flops in per_token.items():
        lines.append(f"  pairs of {length:3} + {length:3} tokens          {flops / 1e6:>11,.1f} million")
    whole = per_token[27] * config.data.batch_tokens * config.train.steps
    lines.append(f"  whole run, pairs of 27 + 27         {whole:>11.2e} in all")
    return lines
