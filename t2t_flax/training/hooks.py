"""What extensions do at moments of a run: `registry.HOOKS` names modules, whose `hook(config, workdir, group)` makes one."""

from typing import TYPE_CHECKING, Any

import jax
from etils import epath

from t2t_flax.config import Config
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.registry import HOOKS

if TYPE_CHECKING:
    from t2t_flax.training.setup import DeviceBatch, TrainingSetup
    from t2t_flax.training.train_state import TrainProgress, TrainState


class Hook:
    """What an extension does at moments of a run; every method may be left out. Called in every process, in the order of
    registration.
    """

    def measure(self, params: Any, grads: Any) -> dict[str, jax.Array]:
        """Traced into the train step: float32 scalars, which join the metrics of the update but replace none of them.

        params: the trained parameters before the update. grads: the mean gradient per target token, of the same structure,
        before it is clipped.
        """
        return {}

    def on_start(self, run: "TrainingSetup", progress: "TrainProgress") -> None:
        """Called once, after restoring and compiling. Compile here what the hook needs."""

    def before_update(self, step: int, state: "TrainState", batch: "DeviceBatch") -> None:
        """Update `step` follows, which uses up the arrays of `state`: programs that read them are to be started here."""

    def on_update(self, step: int, batch: "DeviceBatch", values: dict[str, Any]) -> None:
        """The numbers of update `step` are known; the next one runs. May add to `values`, of which every n-th is logged."""

    def on_log(self, step: int, values: dict[str, Any]) -> None:
        """A line was written to metrics.jsonl, by process 0: of an update, an evaluation, a change."""

    def on_checkpoint(self, step: int) -> None:
        """Called before a checkpoint is written."""

    def on_end(self, step: int, scores: dict[str, float]) -> None:
        """The final evaluation gave `scores`; or the run has stopped or diverged, with none."""


def make_hooks(config: Config, workdir: epath.Path, group: ProcessGroup) -> list[Hook]:
    """The hooks of a run."""
    return [module.hook(config, workdir, group) for module in HOOKS.of(config)]


def check_hooks(config: Config) -> None:
    """Raises UserError, before training, for what a hook lacks: its module may have `check_installed(config)`."""
    for module in HOOKS.of(config):
        getattr(module, "check_installed", lambda config: None)(config)
