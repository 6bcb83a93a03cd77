"""Where a run starts from, and what it leaves behind to start from again."""

import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable
from typing import Any

import jax
from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.errors import NO_ROOM, UserError
from t2t_flax.files import is_full
from t2t_flax.parallel.pod import Pod, broken_connection
from t2t_flax.training.checkpoint import Checkpoints, DamagedCheckpoint, check_same_model
from t2t_flax.training.due import due
from t2t_flax.training.run import Run
from t2t_flax.training.state import TrainState, init_state


@dataclasses.dataclass
class Progressed:
    """What the loop itself carries besides the arrays; it lies in the checkpoint's meta."""

    step: int = 0
    best_metric: float | None = None
    best_step: int = 0
    evaluations_without_better: int = 0
    evaluation_due: bool = False
    """True where the run was stopped before or inside the evaluation of `step`: the resumed run begins with it."""
    scheduled: bool = True
    """False where only a signal, or an evaluation, asked for the checkpoint: averages leave it out."""
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)


def open_checkpoints(run: Run, pod: Pod | None = None) -> Checkpoints:
    """The run's checkpoints, with room for what the final average needs."""
    c = run.config.checkpoint
    return Checkpoints(
        run.workdir / "checkpoints",
        keep_last=max(c.keep_last, c.average_last),
        keep_best=c.keep_best,
        scheduled=lambda step: due(run, step).checkpoint,
        pod=pod,
    )


def restore_or_init(run: Run, checkpoints: Checkpoints, say) -> tuple[TrainState, Progressed]:
    restored = checkpoints.restore_latest(run.abstract, run.config)
    if restored:
        state, meta = restored
        for what, mine in (("tokenizer", run.corpus.tokenizers.digest), ("training data", run.corpus.train.digest)):
            saved = meta["digests"][what]
            if saved != mine:
                raise UserError(
                    f"checkpoint {meta['step']} in {run.workdir} was made with other {what} (digest {saved[:12]}, now "
                    f"{mine[:12]}): use another --workdir, or bring the data back."
                )
        say(f"resuming {run.workdir} after update {meta['step']}")
        return state, Progressed(**meta["progress"])
    state, _ = init_state(run.config, run.model, run.tx, run.mesh)
    if run.config.train.init_from:
        params = params_of_finished(run, epath.Path(run.config.train.init_from))
        state = state.replace(params=params)
        if state.ema is not None:
            state = state.replace(ema=jax.tree.map(jax.numpy.copy, params))
        say(f"parameters start from {run.config.train.init_from}")
    return state, Progressed()


def params_of_finished(run: Run, workdir: epath.Path) -> Any:
    """The newest parameters of another run, which must have the same model. Raises UserError otherwise."""
    folder = workdir / "checkpoints"
    checkpoints = Checkpoints(folder, keep_last=10**6) if folder.exists() else None
    steps = checkpoints.steps() if checkpoints else []
    if not steps:
        raise UserError(f"config.train.init_from = {workdir}: no checkpoint there.")
    try:
        meta = checkpoints.meta(steps[-1])
        stored = config_lib.from_json(json.dumps(meta["config"]))
        check_same_model(stored, run.config, f"config.train.init_from = {workdir}")
        item = "ema" if stored.optimizer.ema_decay else "params"
        return checkpoints.restore_params(steps[-1], run.abstract.params, item)
    except DamagedCheckpoint as damage:
        raise UserError(f"config.train.init_from = {workdir}: checkpoint {steps[-1]} is damaged: {damage}") from damage
    finally:
        checkpoints.close()


def save(run: Run, checkpoints: Checkpoints, state: TrainState, done: Progressed, metric: float | None) -> None:
    meta = {
        "step": done.step,
        "scheduled": done.scheduled,
        "config": config_lib.as_json(run.config),
        "digests": {"tokenizer": run.corpus.tokenizers.digest, "training data": run.corpus.train.digest},
        "progress": dataclasses.asdict(done),
    }
    on_disk(checkpoints, lambda: checkpoints.save(state, meta, metric))


@contextlib.contextmanager
def finish_saves_on_error(checkpoints: Checkpoints):
    """Where the block fails, what is being written is still written: the run will want to continue from it.

    One process of several does not wait for long: another may be gone, without which a save is never complete.
    """
    try:
        yield
    except Exception:
        closing = threading.Thread(target=_close_quietly, args=(checkpoints,), daemon=True)
        closing.start()
        closing.join(None if jax.process_count() == 1 else 5.0)
        raise


def _close_quietly(checkpoints: Checkpoints) -> None:
    with contextlib.suppress(Exception):
        checkpoints.close()


def on_disk(checkpoints: Checkpoints, action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:
        if broken_connection(error) or not is_full(error):  # a reason to start again, not to make room
            raise
        kept = ", ".join(map(str, checkpoints.steps_after_failure())) or "none"
        raise UserError(
            f"could not write a checkpoint: {str(error).strip().splitlines()[0][:300]}. Checkpoints that are whole: "
            f"{kept}. {NO_ROOM}"
        ) from error
