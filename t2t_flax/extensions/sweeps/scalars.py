"""Keys that are scalar inputs of the train step: runs that differ in nothing else can be trained together."""

from t2t_flax.config.overrides import differences
from t2t_flax.config.schema import Config

RATES = ("model.dropout", "model.dropout_embed", "model.dropout_attention", "model.dropout_ffn")
NUMBERS = (
    "optimizer.lr_scale", "optimizer.peak_lr", "optimizer.warmup_steps", "optimizer.warmup_init", "loss.label_smoothing"
)  # fmt: skip
SCALARS = (*RATES, *NUMBERS, "seed.dropout", "seed.init")
"""Keys in which vectorized runs may differ. (seed.init sets the initial parameters, which are no part of the program.)"""


def can_be_vectorized(first: Config, second: Config) -> bool:
    """Whether one vectorized train step can train both runs."""
    return not vectorization_conflict(first, second)


def vectorization_conflict(first: Config, second: Config) -> str:
    """Why one vectorized train step cannot train both runs; empty if it can."""
    keys = [key for key in differences(first, second) if key not in SCALARS]
    if keys:
        return f"they differ in more than scalars: {', '.join(keys)}."
    if any(size not in (-1, 1) for size in (second.mesh.data, second.mesh.fsdp, second.mesh.tensor)):
        return "each must fit on one device: leave config.mesh at its defaults."
    return ""
