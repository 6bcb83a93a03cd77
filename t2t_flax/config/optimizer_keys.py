"""Keys of the optimizer and of its learning-rate schedule, and which of them each optimizer and schedule reads.

A new schedule or optimizer is a row here, with the keys that it reads, and a function in `training/schedules.py` or
`training/optimizer.py`.
"""

from dataclasses import dataclass

from t2t_flax.config.keys import TRAINING, key
from t2t_flax.errors import UserError
from t2t_flax.registry import OPTIMIZERS, SCHEDULES

KEYS_OF_SCHEDULE: dict[str, tuple[str, ...]] = {
    "noam": ("lr_scale",),
    "inverse_sqrt": ("peak_lr", "warmup_init"),
    "constant": ("peak_lr", "warmup_init"),
    "cosine": ("peak_lr", "warmup_init", "decay_steps", "min_lr"),
    "linear": ("peak_lr", "warmup_init", "decay_steps", "min_lr"),
    "wsd": ("peak_lr", "warmup_init", "decay_steps", "min_lr", "cooldown_steps"),
}
"""optimizer.schedule: the keys that it reads; all read warmup_steps and schedule_first_step."""

KEYS_OF_OPTIMIZER: dict[str, tuple[str, ...]] = {
    "adam": ("b1", "b2", "eps"),
    "adamw": ("b1", "b2", "eps"),
    "adafactor": (),
    "lion": ("b1", "b2"),
    "muon": ("b1", "b2", "eps", "momentum"),
}
"""optimizer.name: the keys that it reads; all read max_grad_norm, weight_decay and ema_decay."""


@dataclass(frozen=True)
class Optimizer:
    name: str = key(
        "adam",
        "adam (5.3; with weight_decay it is AdamW); adamw = adam that requires weight_decay; adafactor = factored second "
        "moments, rates relative to each parameter's RMS; lion; muon = orthogonalized momentum for matrices, Adam for the rest",
        choices=OPTIMIZERS,
    )
    schedule: str = key(
        "noam",
        "noam = lr_scale * d_model^-0.5 * min(t^-0.5, t * warmup^-1.5) (5.3). The others warm up linearly to peak_lr, then: "
        "inverse_sqrt = peak_lr * sqrt(warmup / t); constant; cosine and linear decay to min_lr at decay_steps; wsd = "
        "constant, then linear decay over the last cooldown_steps before decay_steps",
        choices=SCHEDULES,
    )
    lr_scale: float = key(1.0, "factor of the noam schedule", low=0.0, mutable=True, changes=TRAINING)
    peak_lr: float = key(5e-4, "peak learning rate of every schedule but noam", low=0.0, mutable=True, changes=TRAINING)
    warmup_steps: int = key(
        4000, "updates of linear warm-up (5.3)", unit="updates", low=1, mutable=True, changes=TRAINING
    )
    warmup_init: float = key(
        0.0, "learning rate at the start of the warm-up to peak_lr", low=0.0, mutable=True, changes=TRAINING
    )
    decay_steps: int = key(
        0,
        "update at which cosine, linear and wsd reach min_lr, warm-up included; independent of train.steps",
        unit="updates",
        low=0,
        mutable=True,
        changes=TRAINING,
    )
    min_lr: float = key(0.0, "final learning rate of cosine, linear and wsd", low=0.0, mutable=True, changes=TRAINING)
    cooldown_steps: int = key(
        0, "updates of the final decay of wsd", unit="updates", low=0, mutable=True, changes=TRAINING
    )
    b1: float = key(0.9, "beta 1 of Adam (5.3) and Lion", low=0.0, high=0.9999)
    b2: float = key(0.98, "beta 2 of Adam (5.3) and Lion", low=0.0, high=0.999999)
    eps: float = key(1e-9, "Adam epsilon (5.3)", low=1e-30, high=1e3)
    momentum: float = key(0.95, "decay of Muon's momentum", low=0.0, high=0.9999)
    schedule_first_step: int = key(
        1, "t of the first update in the schedule: 1, or 0 as in later codebases", low=0, high=1
    )
    max_grad_norm: float = key(
        0.0, "largest global gradient norm; 0 = no clipping, as in the paper", low=0.0, mutable=True, changes=TRAINING
    )
    weight_decay: float = key(
        0.0, "decoupled weight decay on matrices, never on biases and norms; 0 = none, as in the paper", low=0.0
    )
    ema_decay: float = key(
        0.0, "decay of a moving average of the parameters, which evaluation then uses; 0 = none", low=0.0, high=0.99999
    )


def check_optimizer(o: Optimizer) -> None:
    """Raises UserError for a key that the chosen schedule or optimizer does not read, and for decay steps that are
    missing or too few.
    """
    for chooser, table in (("schedule", KEYS_OF_SCHEDULE), ("name", KEYS_OF_OPTIMIZER)):
        chosen = getattr(o, chooser)
        for name in dict.fromkeys(name for keys in table.values() for name in keys):
            value, users = getattr(o, name), [row for row, keys in table.items() if name in keys]
            if chosen not in users and value != getattr(Optimizer, name):
                raise UserError(
                    f"config.optimizer.{name} = {value} is for {chooser} {', '.join(users)}; "
                    f"config.optimizer.{chooser} = {chosen}."
                )
    if o.name == "adamw" and not o.weight_decay:
        raise UserError(
            "config.optimizer.name = adamw needs config.optimizer.weight_decay > 0; without it, it is adam."
        )
    keys = KEYS_OF_SCHEDULE[o.schedule]
    if "cooldown_steps" in keys and not o.cooldown_steps:
        raise UserError(
            f"config.optimizer.schedule = {o.schedule} needs config.optimizer.cooldown_steps: the updates of its final decay."
        )
    if "decay_steps" in keys and not o.decay_steps:
        raise UserError(
            f"config.optimizer.schedule = {o.schedule} needs config.optimizer.decay_steps: the update at which it reaches "
            "min_lr, often the planned train.steps."
        )
    first = o.warmup_steps + (o.cooldown_steps or 1)
    if "decay_steps" in keys and o.decay_steps < first:
        raise UserError(
            f"config.optimizer.decay_steps = {o.decay_steps} must be at least {first}, since it counts the "
            f"optimizer.warmup_steps = {o.warmup_steps}"
            + (f" and optimizer.cooldown_steps = {o.cooldown_steps} too." if o.cooldown_steps else " too.")
        )
    if o.min_lr > o.peak_lr:
        raise UserError(f"config.optimizer.min_lr = {o.min_lr} is above config.optimizer.peak_lr = {o.peak_lr}.")
