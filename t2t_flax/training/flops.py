"""FLOPs of matrix products by formula, from the shapes of a model's kernels.

XLA's own count does not fit: it counts the body of a loop once, and one device only.
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
from t2t_flax.training.parametrization import Parametrization, model_part


class Tokens(NamedTuple):
    """Tokens of an update, and pairs of tokens that attention compares.

    Real tokens are summed over sentence pairs i, so `cross` is the sum of S_i * T_i. Padded tokens
    are summed over rows. `target_self` counts both triangles, because a masked product computes
    both.
    """

    source: float
    target: float
    source_self: float
    target_self: float
    cross: float


def real_tokens(source_lengths: np.ndarray, target_lengths: np.ndarray) -> Tokens:
    """Count the tokens of sentence pairs with these lengths, int [pairs]."""
    s, t = source_lengths.astype(np.float64), target_lengths.astype(np.float64)
    return Tokens(s.sum(), t.sum(), (s * s).sum(), (t * t).sum(), (s * t).sum())


def padded_tokens(rows: int, length: int) -> Tokens:
    """Count the tokens of rows of `length` slots on each side, with padding."""
    slots = float(rows * length)
    return Tokens(slots, slots, slots * length, slots * length, slots * length)


class Products(NamedTuple):
    """Matrix products of a model.

    Attributes:
        source: multiply-adds of kernels for each source token.
        target: multiply-adds of kernels and of the output softmax for each target token.
        encoder_mixers: encoder layers whose mixers compare pairs of tokens, in products of queries
            with keys and of weights with values. A backward pass counts a layer twice more.
        decoder_mixers: the same for decoder layers.
        cross_attentions: the same for cross-attention.
    """

    source: float
    target: float
    encoder_mixers: float
    decoder_mixers: float
    cross_attentions: float

    def flops(self, model: Model, tokens: Tokens) -> float:
        """Return the FLOPs, 2 for each multiply-add."""
        pairs = self.encoder_mixers * _compared(model, tokens.source, tokens.source_self)
        pairs += self.decoder_mixers * _compared(model, tokens.target, tokens.target_self)
        pairs += self.cross_attentions * tokens.cross
        of_pairs = pairs * model.num_heads * sum(model.head_widths)
        return 2.0 * (self.source * tokens.source + self.target * tokens.target + of_pairs)


def _compared(model: Model, tokens: float, pairs: float) -> float:
    """Return how many of the `pairs` in the same segment a mixer compares.

    Self-attention compares all pairs. Other mixers have only kernels and compare none. A mixer
    class may give its own number in a static method `compared_pairs(model, tokens, pairs)`.
    """
    mixer = mixer_class(model)
    if hasattr(mixer, "compared_pairs"):
        return mixer.compared_pairs(model, tokens, pairs)
    return pairs if issubclass(mixer, SelfAttention) else 0.0


def forward_products(model: Model, vocab: int, params: Params) -> Products:
    """Return the products of a forward pass.

    Args:
        vocab: size of the target vocabulary.
        params: parameters, or their shapes.
    """
    sides = {"source": 0.0, "target": model.d_model * vocab}
    for path, size in _kernels(params):
        sides[_side(path)] += size
    layers = (model.num_encoder_layers, model.num_decoder_layers, model.num_decoder_layers)
    return Products(sides["source"], sides["target"], *layers)


def training_products(
    config: Config, vocab: int, params: Params, parametrization: Parametrization
) -> Products:
    """Return the products of a forward and a backward pass.

    With frozen parameters, a kernel has a gradient if it is trained. Its input has a gradient if a
    parameter in the same stack or before it is trained. Layers below the lowest trained layer of a
    stack are counted too.

    Args:
        vocab: size of the target vocabulary.
        params: the run's parameters, or their shapes.
    """
    model, forward = config.model, forward_products(config.model, vocab, params)
    trained = _with_gradient(params, parametrization)
    if trained is None:
        return Products(*(3 * count for count in forward))
    in_encoder = any(
        path.startswith(("shared_embedding/", "source_", "encoder_")) for path in trained
    )
    inputs = {"source": in_encoder, "target": True}
    sides = {"source": forward.source, "target": forward.target}
    for path, size in _kernels(params):
        side = _side(path)
        sides[side] += size * ((path in trained) + inputs[side])
    table = {"all": "shared_embedding", "decoder": "target_embedding", "none": "output_embedding"}[
        model.tie_embeddings
    ]
    sides["target"] += (
        model.d_model * vocab * (1 + any(path.startswith(f"{table}/") for path in trained))
    )
    encoder = forward.encoder_mixers * (3 if in_encoder else 1)
    return Products(
        **sides,
        encoder_mixers=encoder,
        decoder_mixers=3 * forward.decoder_mixers,
        cross_attentions=3 * forward.cross_attentions,
    )


def _with_gradient(params: Params, parametrization: Parametrization) -> set[str] | None:
    """Return the paths of the parameters whose gradient is computed; None = all.

    They are parameters of the model. A kernel with adapters, which lie below its path, is one of
    them: its whole gradient is computed, and the gradients of the adapters follow from it.
    """
    trained, frozen = (flatten_dict(tree, sep="/") for tree in parametrization.split(params))
    if not frozen:
        return None
    return {
        path
        for path in flatten_dict(model_part(parametrization, params), sep="/")
        if path in trained or any(f"/{path}/" in other for other in trained)
    }


def _kernels(params: Params) -> Iterator[tuple[str, int]]:
    """Yield (path, size) of each kernel in the layers.

    Each entry of a kernel is one multiply-add for each token.
    """
    for path, leaf in flatten_dict(params, sep="/").items():
        if path.endswith("/kernel") and path.startswith(("encoder_", "decoder_")):
            yield path, math.prod(leaf.shape)


def _side(path: str) -> str:
    """Return the side whose tokens a kernel is applied to.

    Keys and values of cross-attention are computed from the source.
    """
    of_source = (
        path.startswith("encoder")
        or "/cross_attention/key/" in path
        or "/cross_attention/value/" in path
    )
    return "source" if of_source else "target"


def explain_flops(
    config: Config, params: Params, vocab: int, parametrization: Parametrization
) -> list[str]:
    """Return a section of `explain`: FLOPs per target token and of the whole run."""
    products = training_products(config, vocab, params, parametrization)
    frozen = "" if _with_gradient(params, parametrization) is None else ", none for what is frozen"
    lines = [
        f"FLOPs of training per target token (forward and backward, 2 per multiply-add{frozen})"
    ]
    per_token = {n: products.flops(config.model, padded_tokens(1, n)) / n for n in (27, 64, 256)}
    for length, flops in per_token.items():
        lines.append(
            f"  pairs of {length:3} + {length:3} tokens          {flops / 1e6:>11,.1f} million"
        )
    whole = per_token[27] * trained_tokens(config)
    lines.append(f"  whole run, pairs of 27 + 27         {whole:>11.2e} in all")
    return lines
