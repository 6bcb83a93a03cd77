"""FLOPs of matrix products by formula, from the shapes of a model's kernels.

XLA's count is not used: it counts the body of a loop once, and is per device.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict

from t2t_flax.config import Config, Model
from t2t_flax.data.hooks import trained_tokens
from t2t_flax.distributed.mesh import Params
from t2t_flax.models.attention import SelfAttention, mixer_class
from t2t_flax.training.parameters import Parameters, model_part, parameters_of


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
    encoder_mixers: float
    decoder_mixers: float
    cross_attentions: float

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


def forward_products(model: Model, vocab: int, params: Params) -> Products:
    """The products of a forward pass of a model with parameters of these shapes. vocab: of the target."""
    sides = {"source": 0.0, "target": model.d_model * vocab}
    for path, size in _kernels(params):
        sides[_side(path)] += size
    layers = (model.num_encoder_layers, model.num_decoder_layers, model.num_decoder_layers)
    return Products(sides["source"], sides["target"], *layers)


def training_products(config: Config, vocab: int, params: Params, parameters: Parameters | None = None) -> Products:
    """The products of a forward and a backward pass of a run with parameters of these shapes.

    With frozen parameters: a kernel has a gradient if it is trained, and its input if a parameter is trained in its stack or
    before it. What lies below the lowest trained layer of a stack is counted too.
    """
    model, forward = config.model, forward_products(config.model, vocab, params)
    trained = _with_gradient(params, parameters or parameters_of(config))
    if trained is None:
        return Products(*(3 * count for count in forward))
    in_encoder = any(path.startswith(("shared_embedding/", "source_", "encoder_")) for path in trained)
    inputs = {"source": in_encoder, "target": True}
    sides = {"source": forward.source, "target": forward.target}
    for path, size in _kernels(params):
        side = _side(path)
        sides[side] += size * ((path in trained) + inputs[side])
    table = {"all": "shared_embedding", "decoder": "target_embedding", "none": "output_embedding"}[model.tie_embeddings]
    sides["target"] += model.d_model * vocab * (1 + any(path.startswith(f"{table}/") for path in trained))
    encoder = forward.encoder_mixers * (3 if in_encoder else 1)
    return Products(
        **sides,
        encoder_mixers=encoder,
        decoder_mixers=3 * forward.decoder_mixers,
        cross_attentions=3 * forward.cross_attentions,
    )


def _with_gradient(params: Params, parameters: Parameters) -> set[str] | None:
    """Paths of the model's parameters whose gradient is computed; None = all. The gradient of a kernel with adapters, which are
    below its path, is computed whole: that of the adapters follows from it.
    """
    trained, frozen = (flatten_dict(tree, sep="/") for tree in parameters.split(params))
    if not frozen:
        return None
    return {
        path
        for path in flatten_dict(model_part(parameters, params), sep="/")
        if path in trained or any(f"/{path}/" in other for other in trained)
    }


def _kernels(params: Params) -> Iterator[tuple[str, int]]:
    """(path, size) of each kernel of the layers; one entry is one multiply-add for each token."""
    for path, leaf in flatten_dict(params, sep="/").items():
        if path.endswith("/kernel") and path.startswith(("encoder_", "decoder_")):
            yield path, math.prod(leaf.shape)


def _side(path: str) -> str:
    """Of whose tokens a kernel is applied to each: keys and values of cross-attention are made from the source."""
    of_source = path.startswith("encoder") or "/cross_attention/key/" in path or "/cross_attention/value/" in path
    return "source" if of_source else "target"


def explain_flops(config: Config, params: Params, vocab: int, parameters: Parameters) -> list[str]:
    """Return a section of `explain`: FLOPs per target token at three lengths, and of the whole run."""
    products = training_products(config, vocab, params, parameters)
    frozen = "" if _with_gradient(params, parameters) is None else ", none for what is frozen"
    lines = [f"FLOPs of training per target token (forward and backward, 2 per multiply-add{frozen})"]
    per_token = {n: products.flops(config.model, padded_tokens(1, n)) / n for n in (27, 64, 256)}
    for length, flops in per_token.items():
        lines.append(f"  pairs of {length:3} + {length:3} tokens          {flops / 1e6:>11,.1f} million")
    whole = per_token[27] * trained_tokens(config)
    lines.append(f"  whole run, pairs of 27 + 27         {whole:>11.2e} in all")
    return lines
