"""Keys that only scale or shift what a program computes: runs that differ in nothing else can share one."""

from t2t_flax.config.overrides import differences
from t2t_flax.config.schema import Config

RATES = ("model.dropout", "model.dropout_embed", "model.dropout_attention", "model.dropout_ffn")
NUMBERS = (
    "optimizer.lr_scale", "optimizer.peak_lr", "optimizer.warmup_steps", "optimizer.warmup_init", "loss.label_smoothing"
)  # fmt: skip
SCALARS = (*RATES, *NUMBERS, "seed.dropout", "seed.init")
"""What may differ. (seed.init makes the first parameters, and is no part of the program.)"""


def share_a_program(a: Config, b: Config) -> bool:
    """Whether the runs differ in scalars alone."""
    return all(key in SCALARS for key in differences(a, b))


def can_train_together(config: Config) -> bool:
    """Whether one device will do for the run, and it asks for no profile, which would be one of all runs."""
    sizes = config.mesh.data, config.mesh.fsdp, config.mesh.tensor
    return all(size in (-1, 1) for size in sizes) and config.log.profile_steps == (0, 0)
