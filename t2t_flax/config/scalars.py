"""Keys that only scale or shift what a program computes: runs that differ in nothing else can share one."""

from t2t_flax.config.overrides import differences
from t2t_flax.config.schema import Config

RATES = ("model.dropout", "model.dropout_embed", "model.dropout_attention", "model.dropout_ffn")
NUMBERS = (
    "optimizer.lr_scale", "optimizer.peak_lr", "optimizer.warmup_steps", "optimizer.warmup_init", "loss.label_smoothing"
)  # fmt: skip
SCALARS = (*RATES, *NUMBERS, "seed.dropout", "seed.init")
"""Keys in which vectorized runs may differ. (seed.init makes the first parameters, and is no part of the program.)"""


def can_be_vectorized(config: Config, other: Config) -> bool:
    """Whether one vectorized train step can train both runs."""
    return not vectorization_conflict(config, other)


def vectorization_conflict(config: Config, other: Config) -> str:
    """Why one vectorized train step cannot train both runs; empty where it can."""
    keys = [key for key in differences(config, other) if key not in SCALARS]
    if keys:
        return f"they differ in more than scalars: {', '.join(keys)}."
    if any(size not in (-1, 1) for size in (other.mesh.data, other.mesh.fsdp, other.mesh.tensor)):
        return "each must fit on one device: leave config.mesh at its defaults."
    if other.log.profile_steps != (0, 0):
        return "a profile would be one of all runs: leave config.log.profile_steps at its default."
    return ""
