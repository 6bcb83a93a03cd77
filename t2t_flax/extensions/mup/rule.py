"""The rules of muP (Yang et al. 2021, Tensor Programs V, table 8, Adam) for the parameters of the Transformer, written as factors
of initial values and of updates alone: the model computes the paper's function, so decoding and exports know nothing of them.

A multiplier s of a parameter w is moved into it: s w is w' with s times the initial value and s times Adam's update. So 1 / d_k
in place of 1 / sqrt(d_k) is a factor of the queries, and 1 / width of the logits one of the gain of the norm before the softmax:
a tied table is an input as well, and cannot have it. Likewise 1 / depth of a residual branch (CompleteP, Dey et al. 2025, table
1, alpha = 1) is a factor of the last matrix of the branch.
"""

import dataclasses
import math

from t2t_flax.config import Config
from t2t_flax.extensions.mup import Mup

BRANCH_OUTPUTS = ("out", "Einsum_1", "down")
"""Modules of the last product of a residual branch: of attention and of feed-forward layers, dense and gated."""


@dataclasses.dataclass(frozen=True)
class Factors:
    """Of a parameter: of the initial value that it has without muP, of its updates, and of the gradients that Adam sees, which
    are thereby as large as the base model's beside its epsilon.
    """

    initial: float = 1.0
    update: float = 1.0
    gradient: float = 1.0

    def __mul__(self, other: "Factors") -> "Factors":
        return Factors(self.initial * other.initial, self.update * other.update, self.gradient * other.gradient)


def rules(config: Config) -> dict[str, Factors]:
    """The factors of each kind of parameters, see `kind_of`; all are 1 at the base width."""
    m, keys = config.model, Mup.of(config)
    width = m.d_model / keys.base_width
    root = math.sqrt(width)
    lookup = root if m.embed_scale == "sqrt_d" else 1.0  # growth of the factor of lookups, which the table makes up for
    spread = 1 / root if m.embed_init == "normal_rsqrt_d" else 1.0  # growth of the initial table
    logits = 1 / (width if m.logit_scale == "none" else root)  # what is left of 1 / width to be applied
    scores = math.sqrt(keys.head_width(config) / m.head_widths[0])
    tied = m.tie_embeddings != "none"

    def factors(multiplier: float = 1.0, *, initial: float = 1.0, rate: float = 1.0) -> Factors:
        return Factors(multiplier * initial, multiplier * rate, multiplier * width)

    return {
        "tables": factors(1 / lookup, initial=1 / spread),
        "start vector": factors(1 / lookup, initial=root),
        "softmax table": factors(logits, initial=1 / spread),
        "learned positions": factors(initial=root),
        "queries": factors(scores, rate=1 / width),
        "biases of queries": factors(scores),
        "matrices": factors(rate=1 / width),
        "last norm": factors(lookup * logits if tied else 1.0),
        "norms and biases": factors(),
    }


def depth_factors(path: tuple[str, ...], config: Config) -> Factors:
    """The factors of a parameter by the depth of its stack, on top of those of its kind; all are 1 with as many layers as in the
    base model.
    """
    stack, _, layer = path[0].rpartition("_")
    if not (base := Mup.of(config).base_layers) or not layer.isdecimal():
        return Factors()
    depth = getattr(config.model, f"num_{stack}_layers") / base
    if path[-2] in BRANCH_OUTPUTS:
        return Factors(1 / depth, 1 / depth)
    return Factors(gradient=depth)


def kind_of(path: tuple[str, ...], config: Config) -> str | None:
    """The kind of the parameter at a path such as ("encoder_0", "self_attention", "query", "kernel"); None where there is no
    rule.
    """
    top, name = path[0], path[-1]
    if name == "table" and top == "output_embedding":
        return "softmax table"
    if name == "table" and top.endswith("_embedding"):
        return "tables"
    if name == "table" and top.endswith("_positions"):
        return "learned positions"
    if name == "bos":
        return "start vector"
    if "query" in path:
        return {"kernel": "queries", "bias": "biases of queries"}.get(name)
    if path[:-1] == last_norm(config):
        return "last norm"
    return {"kernel": "matrices"}.get(name, "norms and biases" if name in ("scale", "bias", "output_bias") else None)


def last_norm(config: Config) -> tuple[str, ...]:
    """The path of the norm whose output the softmax reads."""
    m = config.model
    if m.final_norm == "both" or (m.final_norm == "auto" and m.norm_placement == "pre"):
        return ("decoder_norm",)
    return (f"decoder_{m.num_decoder_layers - 1}", "residual_ffn", "norm")
