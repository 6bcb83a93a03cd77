"""What a run resumes from: its newest checkpoint, and the progress that its metadata holds."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from t2t_flax import config as config_lib
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.config_changes import changes_of_training, stored_config
from t2t_flax.training.parameters import parameters_of
from t2t_flax.training.setup import TrainingSetup
from t2t_flax.training.train_state import TrainState, init_state


@dataclasses.dataclass
class TrainProgress:
    """Host-side training state, stored in the checkpoint's metadata: all that a resumed run cannot derive from the config
    and the step.
    """

    step: int = 0
    best_metric: float | None = None
    best_step: int = 0
    evaluations_without_better: int = 0
    evaluation_due: bool = False
    """The run stopped before or during the evaluation of `step`; the resumed run starts with it."""
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    skipped_updates: int = 0
    skipped_in_a_row: int = 0
    """Of the updates up to `step`, the last ones that were skipped without one in between that was not."""
    config_changes: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """`{"step", "changed"}` of each resume with other optimization keys (`changes_of_training`), oldest first."""

    def of_evaluation(self) -> dict[str, Any]:
        """What an evaluation changes."""
        changed = ("best_metric", "best_step", "evaluations_without_better", "evaluation_due", "seconds")
        return {name: getattr(self, name) for name in changed}


def restore_or_init(
    setup: TrainingSetup, checkpoints: Checkpoints, say: Callable[[str], None]
) -> tuple[TrainState, TrainProgress]:
    """The newest checkpoint, else a new state. Raises UserError."""
    restored = checkpoints.restore_latest(setup.abstract, setup.config, setup.digests)
    if restored:
        state, meta = restored
        progress = TrainProgress(**meta["progress"])
        note = f"resuming {setup.workdir} after update {meta['step']}"
        if changed := changes_of_training(stored_config(meta), setup.config):
            progress.config_changes.append({"step": meta["step"], "changed": changed})
            note += ", with " + ", ".join(f"{key} {old} -> {new}" for key, (old, new) in changed.items())
        say(note)
        return state, progress
    state, _ = init_state(setup.config, setup.model, setup.tx, setup.mesh)
    params = parameters_of(setup.config).start(setup, state.params, checkpoints.group, say)
    if params is not state.params:
        ema = None if state.ema is None else jax.tree.map(jax.numpy.copy, params)
        state = dataclasses.replace(state, params=params, ema=ema)
    return state, TrainProgress()


def checkpoint_meta(setup: TrainingSetup, progress: TrainProgress) -> dict[str, Any]:
    """The metadata of a checkpoint, from which `restore_or_init` resumes."""
    return {
        "step": progress.step,
        "updates_per_epoch": setup.batches.updates_per_epoch,
        "config": config_lib.as_json(setup.config),
        "digests": setup.digests,
        "progress": dataclasses.asdict(progress),
    }
