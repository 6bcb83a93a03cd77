"""Training callbacks of extensions; see `registry.Group.training_hooks`."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Literal

from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.training.parts import TrainingSetup, TrainProgress

Moment = Literal["before", "update", "log", "end"]


@dataclasses.dataclass(frozen=True)
class Hook:
    """Callback that a run calls in every process, in the order of registration.

    Attributes:
        moment: when the run calls the function, and with which arguments.
            "before": (step, state, batch) before update `step`, which donates `state`. `batch` is
                a `parts.DeviceBatch`.
            "update": (step, batch, values) once the metrics of update `step` are known. The next
                update already runs. The function may add to `values`.
            "log": (step, values) after a line of metrics.jsonl, which reports an update, an
                evaluation or a change of the config. In process 0 only.
            "end": (step, scores) after the final evaluation. `scores` is empty for a run that has
                stopped or diverged.
        every: call the function only at multiples of this number of steps.
    """

    moment: Moment
    function: Callable[..., None]
    every: int = 1


def make_hooks(setup: TrainingSetup, progress: TrainProgress, group: ProcessGroup) -> list[Hook]:
    """Make the hooks of a run that is restored and compiled."""
    groups = setup.config.extension_groups.values()
    return [hook for keys in groups for hook in keys.training_hooks(setup, progress, group)]


def call_hooks(hooks: Iterable[Hook], moment: Moment, step: int, *arguments: object) -> None:
    """Call the hooks of one moment whose `every` divides `step`."""
    for hook in hooks:
        if hook.moment == moment and step % hook.every == 0:
            hook.function(step, *arguments)
