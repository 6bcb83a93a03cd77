"""An update that is not finite: what is raised, what a user can do about it, and the mark that it leaves in the workdir."""

import json

from etils import epath

from t2t_flax.config import Config
from t2t_flax.config.optimizer_keys import KEYS_OF_SCHEDULE, Optimizer
from t2t_flax.filesystem import atomic_write, list_numbers

MARKER = "diverged.json"
"""In the workdir of a run that has diverged: {"step", "reason"}; gone as soon as it trains again."""


class NonFiniteUpdate(Exception):
    """Loss, gradient norm or parameters of update `step` were not finite: it was not applied, and the run stopped."""

    def __init__(self, step: int, reason: str):
        super().__init__(reason)
        self.step = step


def describe(step: int, loss: float, grad_norm: float, *, scalars_finite: bool) -> str:
    """What was not finite, for logs and messages."""
    text = f"update {step}: loss {loss}, gradient norm {grad_norm}"
    return f"{text}, and parameters that are not finite" if scalars_finite else text


def advice(config: Config, workdir: epath.Path) -> str:
    """What to change, with flags that a resumed run takes, and which checkpoint the run goes back to."""
    o, steps = config.optimizer, list_numbers(workdir / "checkpoints")
    name = "lr_scale" if "lr_scale" in KEYS_OF_SCHEDULE[o.schedule] else "peak_lr"
    now = getattr(o, name)
    rate = min(now / 2, getattr(Optimizer, name))
    norm = min(1.0, o.max_grad_norm / 10) if o.max_grad_norm else 1.0
    lines = [
        "The update was not applied and the run stopped. The same command would only repeat it: give it again with a lower "
        "learning rate, with gradient clipping, or with both:",
        f"  --config.optimizer.{name}={rate:g}  (now {now:g})",
        f"  --config.optimizer.max_grad_norm={norm:g}  (now {o.max_grad_norm:g})",
        "or, if single batches are to blame, with --config.train.non_finite=skip.",
    ]
    if not steps:
        return "\n".join([*lines, "There is no checkpoint yet: the run begins anew."])
    if len(steps) > 1:
        folder, away = workdir / "checkpoints" / str(steps[-1]), workdir / f"diverged-{steps[-1]}"
        remedy = f"move it away, and the run goes back to checkpoint {steps[-2]}"
    else:
        folder, away = workdir, workdir.with_name(f"{workdir.name}-diverged")
        remedy = "it is the only one: move the run away, and the same command begins anew"
    return "\n".join(
        [
            *lines,
            f"The run goes on from checkpoint {steps[-1]}; the change is noted in metrics.jsonl and in later records. If it "
            f"diverges again, that checkpoint is bad itself: {remedy}:",
            f"  mv {folder} {away}",
        ]
    )


def mark(workdir: epath.Path, error: NonFiniteUpdate) -> None:
    """Leaves the mark by which others learn that this run has diverged."""
    atomic_write(workdir / MARKER, json.dumps({"step": error.step, "reason": str(error)}, indent=2) + "\n")


def unmark(workdir: epath.Path) -> None:
    """To be called before a run trains."""
    (workdir / MARKER).unlink(missing_ok=True)
