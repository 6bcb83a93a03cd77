"""Keys of the optimizer and of its learning-rate schedule (5.3)."""

import functools
from dataclasses import dataclass

from t2t_flax.config.keys import TRAINING, key
from t2t_flax.registry import OPTIMIZERS, SCHEDULES

rate_key = functools.partial(key, mutable=True, changes=TRAINING)
"""A key that the rest of a resumed run may read anew."""


@dataclass(frozen=True)
class Optimizer:
    name: str = key("adam", "adam (5.3); with weight_decay it is AdamW", choices=OPTIMIZERS)
    schedule: str = key(
        "noam",
        "noam = lr_scale * d_model^-0.5 * min(t^-0.5, t * warmup^-1.5) (5.3). The others warm up linearly to peak_lr; then "
        "inverse_sqrt = peak_lr * sqrt(warmup / t), constant = peak_lr",
        choices=SCHEDULES,
    )
    lr_scale: float = rate_key(1.0, "factor of the noam schedule", low=0.0, read_with=("optimizer.schedule", "noam"))
    peak_lr: float = rate_key(
        5e-4, "peak learning rate of every schedule but noam", low=0.0, ignored_with=("optimizer.schedule", "noam")
    )
    warmup_steps: int = rate_key(4000, "updates of linear warm-up (5.3)", unit="updates", low=1)
    warmup_init: float = rate_key(
        0.0,
        "learning rate at the start of the warm-up to peak_lr",
        low=0.0,
        ignored_with=("optimizer.schedule", "noam"),
    )
    b1: float = key(0.9, "beta 1 of Adam (5.3)", low=0.0, high=0.9999)
    b2: float = key(0.98, "beta 2 of Adam (5.3)", low=0.0, high=0.999999)
    eps: float = key(1e-9, "Adam epsilon (5.3)", low=1e-30, high=1e3)
    schedule_first_step: int = key(
        1, "t of the first update in the schedule: 1, or 0 as in later codebases", low=0, high=1
    )
    max_grad_norm: float = rate_key(0.0, "largest global gradient norm; 0 = no clipping, as in the paper", low=0.0)
    weight_decay: float = key(
        0.0, "decoupled weight decay on matrices, never on biases and norms; 0 = none, as in the paper", low=0.0
    )
    ema_decay: float = key(
        0.0, "decay of a moving average of the parameters, which evaluation then uses; 0 = none", low=0.0, high=0.99999
    )
