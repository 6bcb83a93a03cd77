"""Alternative optimizers and learning-rate schedules."""

from dataclasses import dataclass

from t2t_flax.config import Config, Optimizer
from t2t_flax.config.keys import TRAINING, key, one_of
from t2t_flax.errors import UserError
from t2t_flax.registry import GROUPS, OPTIMIZERS, SCHEDULES, Group

DECAYS = ("cosine", "linear", "wsd")


@dataclass(frozen=True)
class Optimizers(Group):
    decay_steps: int = key(
        0,
        "update at which cosine (Loshchilov and Hutter 2017), linear and wsd reach min_lr, warm-up"
        " included; independent of train.steps",
        unit="updates",
        low=0,
        mutable=True,
        changes=TRAINING,
        when=one_of("optimizer.schedule", *DECAYS),
    )
    min_lr: float = key(
        0.0,
        "final learning rate of cosine, linear and wsd",
        low=0.0,
        mutable=True,
        changes=TRAINING,
        when=one_of("optimizer.schedule", *DECAYS),
    )
    cooldown_steps: int = key(
        0,
        "updates of the final, linear decay of wsd, which is constant before (Hu et al. 2024)",
        unit="updates",
        low=0,
        mutable=True,
        changes=TRAINING,
        when=one_of("optimizer.schedule", "wsd"),
    )
    momentum: float = key(
        0.95,
        "decay of the momentum of muon, which orthogonalizes it for matrices and trains the rest by"
        " Adam",
        low=0.0,
        high=0.9999,
        when=one_of("optimizer.name", "muon"),
    )

    @classmethod
    def of(cls, config: Config) -> "Optimizers":
        return config.group("optimizers")

    def check(self, config: Config) -> None:
        """Raise UserError for unsuitable betas and decay steps.

        The chosen optimizer must take the beta. Decay steps must not be missing, too few, or before
        the end of the training.
        """
        o = config.optimizer
        if o.name == "schedule_free_adamw" and not o.b1:
            raise UserError(
                f"config.optimizer.b1 = {o.b1}: config.optimizer.name = {o.name} needs a share"
                " above 0 of the average."
            )
        if o.schedule in DECAYS:
            self._check_decay(o, config.train.steps)

    def _check_decay(self, o: Optimizer, steps: int) -> None:
        if o.schedule == "wsd" and not self.cooldown_steps:
            raise UserError(
                "config.optimizer.schedule = wsd needs config.optimizers.cooldown_steps: the"
                " updates of its final decay."
            )
        if not self.decay_steps:
            raise UserError(
                f"config.optimizer.schedule = {o.schedule} needs config.optimizers.decay_steps: the"
                " update at which it reaches min_lr, often the planned train.steps."
            )
        first = o.warmup_steps + (self.cooldown_steps or 1)
        if self.decay_steps < first:
            raise UserError(
                f"config.optimizers.decay_steps = {self.decay_steps} must be at least {first},"
                f" since it counts optimizer.warmup_steps = {o.warmup_steps}"
                + (
                    f" and optimizers.cooldown_steps = {self.cooldown_steps} too."
                    if self.cooldown_steps
                    else " too."
                )
            )
        if self.min_lr > o.peak_lr:
            raise UserError(
                f"config.optimizers.min_lr = {self.min_lr} is above config.optimizer.peak_lr ="
                f" {o.peak_lr}."
            )
        if not self.min_lr and steps > self.decay_steps:
            raise UserError(
                f"config.train.steps = {steps} is after config.optimizers.decay_steps ="
                f" {self.decay_steps}, from where on the learning rate of optimizer.schedule ="
                f" {o.schedule} is 0: raise optimizers.decay_steps too, or set optimizers.min_lr"
                " above 0."
            )


_FOLDER = "t2t_flax.extensions.optimizers"

_IGNORES = {
    "adafactor": ("optimizer.b1", "optimizer.b2", "optimizer.eps"),
    "lion": ("optimizer.eps",),
    "muon": (),
    "nadamw": (),
}
for _name, _keys in _IGNORES.items():
    OPTIMIZERS.add(_name, f"{_FOLDER}.optimizers:{_name}", ignores=_keys)
OPTIMIZERS.add(
    "schedule_free_adamw",
    f"{_FOLDER}.schedule_free:schedule_free_adamw",
    ignores=("optimizer.ema_decay",),
)
for _name in ("cosine", "linear", "wsd"):
    SCHEDULES.add(_name, f"{_FOLDER}.schedules:{_name}")
GROUPS.add("optimizers", Optimizers)
