"""Rules of muP for the Transformer.

They follow Yang et al. 2021, Tensor Programs V, table 8, Adam. They are factors of initial values,
gradients and rates alone: the model computes the paper's function, so decoding and exports know
nothing of them.

A multiplier s of a parameter w is moved into it: s w is w' with s times the initial value and s
times Adam's update. So 1 / d_k in place of 1 / sqrt(d_k) is a factor of the queries. 1 / width of
the logits is a factor of the gain of the norm before the softmax: a tied table is an input as well,
and cannot have it. Likewise 1 / depth of a residual branch (CompleteP, Dey et al. 2025, table 1,
alpha = 1) is a factor of the last matrix of the branch.
"""

import math

from t2t_flax.config import Config
from t2t_flax.extensions.mup import Mup
from t2t_flax.training.parametrization import Path, Scale

BRANCH_OUTPUTS = ("out", "Einsum_1", "down")
"""Modules of the last product of a residual branch.

They are attention's and the dense and gated feed-forward layers'.
"""


def rules(config: Config) -> dict[str, Scale]:
    """Return the factors of each kind of parameters, see `kind_of`.

    All are 1 at the base width. The gradient factor makes gradients as large relative to Adam's
    epsilon as in the base model.
    """
    m, keys = config.model, Mup.of(config)
    width = m.d_model / keys.base_width
    root = math.sqrt(width)
    # Growth of the lookup factor; the table compensates.
    lookup = root if m.embed_scale == "sqrt_d" else 1.0
    # Growth of the table's initial values.
    spread = 1 / root if m.embed_init == "normal_rsqrt_d" else 1.0
    logits = 1 / (width if m.logit_scale == "none" else root)  # remaining part of 1 / width
    scores = math.sqrt(keys.head_width(config) / m.head_widths[0])
    table = 1 / lookup
    norm = lookup * logits if m.tie_embeddings != "none" else 1.0
    return {
        # kind                     initial value          gradient        rate
        "tables": Scale(           table * (1 / spread),  table * width,  table),
        "start vector": Scale(     table * root,          table * width,  table),
        "softmax table": Scale(    logits * (1 / spread), logits * width, logits),
        "learned positions": Scale(root,                  width,          1.0),
        "queries": Scale(          scores,                scores * width, scores * (1 / width)),
        "biases of queries": Scale(scores,                scores * width, scores),
        "matrices": Scale(         1.0,                   width,          1 / width),
        "last norm": Scale(        norm,                  norm * width,   norm),
        "norms and biases": Scale( 1.0,                   width,          1.0),
    }  # fmt: skip


def depth_scale(path: Path, config: Config) -> Scale:
    """Return the factors of a parameter by the depth of its stack.

    They apply on top of the factors of its kind; all are 1 with as many layers as in the base
    model.
    """
    stack, _, layer = path[0].rpartition("_")
    if not (base := Mup.of(config).base_layers) or not layer.isdecimal():
        return Scale()
    depth = getattr(config.model, f"num_{stack}_layers") / base
    if path[-2] in BRANCH_OUTPUTS:
        return Scale(initial=1 / depth, rate=1 / depth)
    return Scale(gradient=depth)


def kind_of(path: Path, config: Config) -> str | None:
    """Return the kind of a parameter; None if there is no rule.

    Its path is such as ("encoder_0", "self_attention", "query", "kernel").
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
    return {"kernel": "matrices"}.get(
        name, "norms and biases" if name in ("scale", "bias", "output_bias") else None
    )


def last_norm(config: Config) -> Path:
    """Return the path of the norm whose output the softmax reads."""
    m = config.model
    if m.final_norm == "both" or (m.final_norm == "auto" and m.norm_placement == "pre"):
        return ("decoder_norm",)
    return (f"decoder_{m.num_decoder_layers - 1}", "residual_ffn", "norm")
