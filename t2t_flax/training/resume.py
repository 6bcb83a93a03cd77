"""Where a run starts from, and what it leaves behind to start from again."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import jax
from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.distributed.coordination import ProcessGroup, broken_connection
from t2t_flax.errors import WRITE_HINT, UserError, first_line
from t2t_flax.filesystem import is_write_refused
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.config_changes import check_same_model, config_changes, in_words, stored_config_of
from t2t_flax.training.damage import DamagedCheckpoint
from t2t_flax.training.divergence import NonFiniteUpdate
from t2t_flax.training.setup import TrainingSetup
from t2t_flax.training.train_state import TrainState, init_state


@dataclasses.dataclass
class TrainProgress:
    """What the loop itself carries besides the arrays; it lies in the checkpoint's meta.

    A new field needs a default: checkpoints of before do not have it. One that is gone is ignored there.
    """

    step: int = 0
    best_metric: float | None = None
    best_step: int = 0
    evaluations_without_better: int = 0
    evaluation_due: bool = False
    """True where the run was stopped before or inside the evaluation of `step`: the resumed run begins with it."""
    scheduled: bool = True
    """False where only a signal, or an evaluation, asked for the checkpoint: averages leave it out."""
    newest_regular: int | None = None
    """Step of the newest checkpoint that is regular; None where there is none, or an older version did not note it."""
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    skipped_updates: int = 0
    config_changes: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Of `config_changes.config_changes`, one for each resume that changed a key of optimization; oldest first."""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "TrainProgress":
        """Of what `dataclasses.asdict` gave, in this version or another."""
        return cls(**{field.name: values[field.name] for field in dataclasses.fields(cls) if field.name in values})


def open_checkpoints(run: TrainingSetup, group: ProcessGroup | None = None) -> Checkpoints:
    """The run's checkpoints, with room for what the final average needs. Removes what a killed save has left."""
    c = run.config.checkpoint
    folder, last = run.workdir / "checkpoints", max(c.keep_last, c.average_last)
    checkpoints = Checkpoints(folder, keep_last=last, keep_best=c.keep_best, group=group)
    checkpoints.clean_up()
    return checkpoints


def restore_or_init(run: TrainingSetup, checkpoints: Checkpoints, say) -> tuple[TrainState, TrainProgress]:
    digests = {"tokenizer": run.corpus.tokenizers.digest, "training data": run.corpus.train.digest}
    restored = checkpoints.restore_latest(run.abstract, run.config, digests)
    if restored:
        state, meta = restored
        done = TrainProgress.from_json(meta["progress"])
        changes = config_changes(stored_config_of(meta), run.config, meta["step"])
        done.config_changes += changes
        told = "".join(f", with {in_words(change['changed'])}" for change in changes)
        say(f"resuming {run.workdir} after update {meta['step']}{told}")
        return state, done
    state, _ = init_state(run.config, run.model, run.tx, run.mesh)
    if run.config.train.init_from:
        params = params_of_finished(run, epath.Path(run.config.train.init_from), checkpoints.group)
        state = state.replace(params=params)
        if state.ema is not None:
            state = state.replace(ema=jax.tree.map(jax.numpy.copy, params))
        say(f"parameters start from {run.config.train.init_from}")
    return state, TrainProgress()


def params_of_finished(run: TrainingSetup, workdir: epath.Path, group: ProcessGroup | None = None) -> Any:
    """The newest parameters of another run, which must have the same model. Raises UserError otherwise."""
    checkpoints = Checkpoints(workdir / "checkpoints", group=group)
    steps = checkpoints.steps()
    if not steps:
        raise UserError(f"config.train.init_from = {workdir}: no checkpoint there.")
    try:
        meta = checkpoints.meta(steps[-1])
        stored = stored_config_of(meta)
        check_same_model(stored, run.config, f"config.train.init_from = {workdir}")
        item = "ema" if stored.optimizer.ema_decay else "params"
        return checkpoints.restore_params(steps[-1], run.abstract.params, item)
    except DamagedCheckpoint as damage:
        raise UserError(f"config.train.init_from = {workdir}: checkpoint {steps[-1]} is damaged: {damage}") from damage


def save(
    run: TrainingSetup, checkpoints: Checkpoints, state: TrainState, done: TrainProgress, metric: float | None
) -> None:
    before = done.newest_regular
    done.newest_regular = done.step if done.scheduled else before
    meta = {
        "step": done.step,
        "scheduled": done.scheduled,
        "regular_before": before,  # by which a mean of the last n sees that one of them is gone
        "config": config_lib.as_json(run.config),
        "digests": {"tokenizer": run.corpus.tokenizers.digest, "training data": run.corpus.train.digest},
        "progress": dataclasses.asdict(done),
    }
    on_disk(checkpoints, lambda: checkpoints.save(state, meta, metric))


@contextlib.contextmanager
def finish_saves_on_error(checkpoints: Checkpoints):
    """Where the block fails, what is being written is still written: the run will want to continue from it.

    One process of several does not wait for long: another may be gone, without which a save is never complete. In a
    divergence all are there.
    """
    try:
        yield
    except Exception as error:
        alone = jax.process_count() == 1 or isinstance(error, NonFiniteUpdate)
        closing = threading.Thread(target=_close_quietly, args=(checkpoints,), daemon=True)
        closing.start()
        closing.join(None if alone else 5.0)
        raise


def _close_quietly(checkpoints: Checkpoints) -> None:
    with contextlib.suppress(Exception):
        checkpoints.close()


def on_disk(checkpoints: Checkpoints, action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:
        if broken_connection(error) or not is_write_refused(error):  # a reason to start again, not to make room
            raise
        kept = ", ".join(map(str, checkpoints.steps_after_failure())) or "none"
        raise UserError(
            f"could not write a checkpoint: {first_line(error)}. Checkpoints that are whole: {kept}. {WRITE_HINT}"
        ) from error
