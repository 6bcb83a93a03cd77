"""Divergence: the error of an update that is not finite, advice to the user, and a marker in the workdir."""

import json

from etils import epath

from t2t_flax.config import Config
from t2t_flax.config.optimizer_keys import Optimizer
from t2t_flax.filesystem import atomic_write, list_numbers

MARKER = "diverged.json"
"""{"step", "reason"} in the workdir of a diverged run; removed when it trains again."""


class NonFiniteUpdate(Exception):
    """Loss, gradient norm or parameters of update `step` were not finite; it was not applied."""

    def __init__(self, step: int, reason: str):
        super().__init__(reason)
        self.step = step


def advice(config: Config, workdir: epath.Path) -> str:
    """Suggested flags, and the checkpoint from which the run resumes."""
    o, steps = config.optimizer, list_numbers(workdir / "checkpoints")
    name = "lr_scale" if o.schedule == "noam" else "peak_lr"
    current = getattr(o, name)
    rate = min(current / 2, getattr(Optimizer, name))
    norm = min(1.0, o.max_grad_norm / 10) if o.max_grad_norm else 1.0
    lines = [
        "The update was not applied and the run stopped. The same command would repeat it: rerun it with a lower learning "
        "rate, gradient clipping, or both:",
        f"  --config.optimizer.{name}={rate:g}  (now {current:g})",
        f"  --config.optimizer.max_grad_norm={norm:g}  (now {o.max_grad_norm:g})",
        "or, if single batches cause it, with --config.train.non_finite=skip.",
    ]
    if not steps:
        return "\n".join([*lines, "There is no checkpoint yet: the run starts from scratch."])
    if len(steps) > 1:
        folder, away = workdir / "checkpoints" / str(steps[-1]), workdir / f"diverged-{steps[-1]}"
        remedy = f"move it away, and the run resumes from checkpoint {steps[-2]}"
    else:
        folder, away = workdir, workdir.with_name(f"{workdir.name}-diverged")
        remedy = "it is the only one: move the run away, and the same command starts from scratch"
    return "\n".join(
        [
            *lines,
            f"The run resumes from checkpoint {steps[-1]}; the change is recorded in metrics.jsonl and in later records. If "
            f"it diverges again, the checkpoint itself is bad: {remedy}:",
            f"  mv {folder} {away}",
        ]
    )


def mark(workdir: epath.Path, error: NonFiniteUpdate) -> None:
    """Writes the marker."""
    atomic_write(workdir / MARKER, json.dumps({"step": error.step, "reason": str(error)}, indent=2) + "\n")


def unmark(workdir: epath.Path) -> None:
    """Removes the marker. Call it before a run trains."""
    (workdir / MARKER).unlink(missing_ok=True)
