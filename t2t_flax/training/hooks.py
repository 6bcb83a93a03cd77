"""Functions of extensions that a run calls: `hooks(setup, progress, group)` of modules in `registry.HOOKS`."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Literal

from t2t_flax.config import Config
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.registry import HOOKS
from t2t_flax.training.parts import TrainingSetup, TrainProgress

Moment = Literal["before", "update", "log", "end"]


@dataclasses.dataclass(frozen=True)
class Hook:
    """A function that a run calls in every process, in the order of registration.

    Attributes:
      moment: when it is called, and with what.
        "before": (step, state, batch) before update `step`, which uses up the arrays of `state`.
        "update": (step, batch, values) once the numbers of update `step` are known; the next one runs. It may add to `values`.
        "log": (step, values) after a line of metrics.jsonl: of an update, an evaluation, a change. In process 0.
        "end": (step, scores) after the final evaluation; without scores for a run that has stopped or diverged.
      every: calls it only for steps that this number divides.
    """

    moment: Moment
    function: Callable[..., None]
    every: int = 1


def make_hooks(setup: TrainingSetup, progress: TrainProgress, group: ProcessGroup) -> list[Hook]:
    """Make the hooks of a run that is restored and compiled. They may compile, or raise UserError."""
    return [hook for module in HOOKS.of(setup.config) for hook in module.hooks(setup, progress, group)]


def call_hooks(hooks: Iterable[Hook], moment: Moment, step: int, *arguments: object) -> None:
    """Call the hooks of a moment."""
    for hook in hooks:
        if hook.moment == moment and step % hook.every == 0:
            hook.function(step, *arguments)


def check_hooks(config: Config) -> None:
    """Raise UserError, before training, if `check_installed(config)` of a hook's module does."""
    for module in HOOKS.of(config):
        getattr(module, "check_installed", lambda config: None)(config)
