"""Starts a run from scratch or from its checkpoints, with the metadata that it needs to resume."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import jax

from t2t_flax import config as config_lib
from t2t_flax.distributed.coordination import ProcessGroup, broken_connection
from t2t_flax.errors import WRITE_HINT, UserError, first_line
from t2t_flax.filesystem import is_write_refused
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.config_changes import config_changes, format_changes, stored_config
from t2t_flax.training.divergence import NonFiniteUpdate
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
    """From `config_changes.config_changes`: one entry per resume with other optimization keys, oldest first."""

    def of_evaluation(self) -> dict[str, Any]:
        """What an evaluation changes."""
        changed = ("best_metric", "best_step", "evaluations_without_better", "evaluation_due", "seconds")
        return {name: getattr(self, name) for name in changed}


def open_checkpoints(setup: TrainingSetup, group: ProcessGroup | None = None) -> Checkpoints:
    """The run's checkpoints, keeping at least those of the final average. Removes what killed saves left behind."""
    c = setup.config.checkpoint
    folder, last = setup.workdir / "checkpoints", max(c.keep_last, c.average_last)
    checkpoints = Checkpoints(folder, keep_last=last, keep_best=c.keep_best, group=group)
    checkpoints.clean_up()
    return checkpoints


def restore_or_init(
    setup: TrainingSetup, checkpoints: Checkpoints, say: Callable[[str], None]
) -> tuple[TrainState, TrainProgress]:
    """The newest checkpoint, else a new state. Raises UserError."""
    digests = {"tokenizer": setup.corpus.tokenizers.digest, "training data": setup.corpus.train.digest}
    restored = checkpoints.restore_latest(setup.abstract, setup.config, digests)
    if restored:
        state, meta = restored
        progress = TrainProgress(**meta["progress"])
        changes = config_changes(stored_config(meta), setup.config, meta["step"])
        progress.config_changes += changes
        changed = "".join(f", with {format_changes(change['changed'])}" for change in changes)
        say(f"resuming {setup.workdir} after update {meta['step']}{changed}")
        return state, progress
    state, _ = init_state(setup.config, setup.model, setup.tx, setup.mesh)
    params = parameters_of(setup.config).start(setup, state.params, checkpoints.group, say)
    if params is not state.params:
        state = dataclasses.replace(state, params=params)
        if state.ema is not None:
            state = dataclasses.replace(state, ema=jax.tree.map(jax.numpy.copy, params))
    return state, TrainProgress()


def checkpoint_meta(setup: TrainingSetup, progress: TrainProgress) -> dict[str, Any]:
    """The metadata of a checkpoint, from which `restore_or_init` resumes."""
    return {
        "step": progress.step,
        "updates_per_epoch": setup.batches.updates_per_epoch,
        "config": config_lib.as_json(setup.config),
        "digests": {"tokenizer": setup.corpus.tokenizers.digest, "training data": setup.corpus.train.digest},
        "progress": dataclasses.asdict(progress),
    }


@contextlib.contextmanager
def finish_saves_on_error(checkpoints: Checkpoints):
    """If the block raises, lets a save in progress finish, so that the run can resume from it.

    With several processes it waits 5 s only: another process may be dead, and the save would never finish. After a
    divergence all of them are alive.
    """
    try:
        yield
    except Exception as error:
        all_alive = jax.process_count() == 1 or isinstance(error, NonFiniteUpdate)
        closing = threading.Thread(target=_close_quietly, args=(checkpoints,), daemon=True)
        closing.start()
        closing.join(None if all_alive else 5.0)
        raise


def _close_quietly(checkpoints: Checkpoints) -> None:
    with contextlib.suppress(Exception):
        checkpoints.close()


def report_full_disk(checkpoints: Checkpoints, action: Callable[[], None]) -> None:
    """Runs `action`. Raises UserError if it cannot write, naming the intact checkpoints."""
    try:
        action()
    except Exception as error:
        if broken_connection(error) or not is_write_refused(error):  # to be retried: no user error
            raise
        kept = ", ".join(map(str, checkpoints.steps_after_failure())) or "none"
        raise UserError(
            f"could not write a checkpoint: {first_line(error)}. Intact checkpoints: {kept}. {WRITE_HINT}"
        ) from error
