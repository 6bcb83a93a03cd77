"""Decisions of a run: start, work due after an update, best evaluation, end."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.config.overrides import changes_of_training, stored_config
from t2t_flax.distributed.mesh import Params
from t2t_flax.errors import NonFiniteUpdate
from t2t_flax.tasks import lower_is_better
from t2t_flax.training.checkpoints import Checkpoints, Meta, is_scheduled
from t2t_flax.training.parts import TrainingSetup, TrainProgress, TrainState
from t2t_flax.training.progress import read_metrics
from t2t_flax.training.train_state import init_state

MOST_SKIPPED = 10
"""Limit of consecutive skipped updates with train.non_finite = skip."""


def restore_or_init(
    setup: TrainingSetup, checkpoints: Checkpoints, say: Callable[[str], None]
) -> tuple[TrainState, TrainProgress]:
    """Restore the newest checkpoint, or make a new state. Raises UserError."""
    restored = checkpoints.restore_latest(setup.abstract, setup.config, setup.digests)
    if restored:
        state, meta = restored
        progress = TrainProgress(**meta["progress"])
        note = f"resuming {setup.workdir} after update {meta['step']}"
        if progress.metric_digest != setup.metric_digest:
            if progress.best_metric is not None:
                note += (
                    f"; config.eval.metric = {setup.config.eval.metric}: the validation data or"
                    " translations changed, so earlier values are ignored"
                )
            progress.metric_digest = setup.metric_digest
            progress.best_metric = None
            progress.best_step = progress.evaluations_without_better = 0
        if changed := changes_of_training(stored_config(meta), setup.config):
            progress.config_changes.append({"step": meta["step"], "changed": changed})
            note += ", with " + ", ".join(
                f"{key} {old} -> {new}" for key, (old, new) in changed.items()
            )
        say(note)
        return state, progress
    start = setup.parametrization.start

    def started(initial: Params) -> Params:
        return start(setup, initial, checkpoints.group, say) if start else initial

    parts = setup.config, setup.model, setup.tx, setup.parametrization, setup.mesh
    state, _ = init_state(*parts, start=started)
    return state, TrainProgress(metric_digest=setup.metric_digest, evaluation_pending=bool(start))


def checkpoint_meta(setup: TrainingSetup, progress: TrainProgress) -> Meta:
    """Return the metadata of a checkpoint for `restore_or_init`."""
    return {
        "step": progress.step,
        "updates_per_epoch": setup.batches.updates_per_epoch,
        "corpus_target_tokens": setup.corpus.train.meta["target"]["tokens"],
        "config": config_lib.as_json(setup.config),
        "digests": setup.digests,
        "progress": dataclasses.asdict(progress),
    }


class DueAfterUpdate(NamedTuple):
    """Work that is due after an update.

    Attributes:
        loss: compute the validation losses.
        decoding: decode the validation sets.
        checkpoint: save a scheduled checkpoint.
    """

    loss: bool
    decoding: bool
    checkpoint: bool

    @property
    def evaluation(self) -> bool:
        return self.loss or self.decoding


def due_after(setup: TrainingSetup, step: int) -> DueAfterUpdate:
    """Return the work after update `step`: a function of the config and the step."""
    c, epoch = setup.config, setup.batches.updates_per_epoch

    def every(*intervals: int) -> bool:
        return any(n and step % n == 0 for n in intervals)

    return DueAfterUpdate(
        loss=every(c.eval.every_steps, c.eval.every_epochs * epoch),
        decoding=every(c.eval.decode_every_steps),
        checkpoint=is_scheduled(c, epoch, step),
    )


def reason_to_end(config: Config, progress: TrainProgress, step: int, signal: str = "") -> str:
    """Return the reason to end after `step` (see `TrainingEnd`), or "" to continue."""
    if config.eval.patience and progress.evaluations_without_better >= config.eval.patience:
        return "patience"
    return signal or ("steps" if step >= config.train.steps else "")


def skip_or_fail(
    config: Config, progress: TrainProgress, step: int, metrics: Mapping[str, float]
) -> str:
    """Count an update that was not finite, and return a description of it.

    Raises NonFiniteUpdate where it ends the run.
    """
    progress.skipped_in_a_row += 1
    loss, norm = metrics["loss"], metrics["grad_norm"]
    why = f"update {step}: loss {loss}, gradient norm {norm}"
    if math.isfinite(loss) and math.isfinite(norm):
        why += ", and parameters that are not finite"
    if config.train.non_finite == "stop":
        raise NonFiniteUpdate(step, f"{why}.")
    if progress.skipped_in_a_row > MOST_SKIPPED:
        raise NonFiniteUpdate(step, f"{why}; {MOST_SKIPPED} updates before it were skipped.")
    progress.skipped_updates += 1
    return why


def note_metric(
    progress: TrainProgress, values: dict[str, float], step: int, name: str
) -> float | None:
    """Update the best metric and the patience in `progress`; return the metric.

    The sign is such that higher is better. Returns None if `values` lack the metric. A metric that
    is not finite counts as worse than any other, and also returns None.

    Args:
        name: config.eval.metric.
    """
    value = values.get(f"valid_{name}")
    if value is None:
        return None
    metric = -value if lower_is_better(name) else value
    if math.isfinite(metric) and (progress.best_metric is None or metric > progress.best_metric):
        progress.best_metric, progress.best_step = metric, step
        progress.evaluations_without_better = 0
    else:
        progress.evaluations_without_better += 1
    return metric if math.isfinite(metric) else None


def worse_than_start(setup: TrainingSetup) -> str:
    """Return a note if eval.metric got worse since before the first update, else ""."""
    name = f"valid_{setup.config.eval.metric}"
    values = [(line["step"], line[name]) for line in read_metrics(setup.workdir) if name in line]
    if not values or values[0][0]:
        return ""
    (_, start), (last, end) = values[0], values[-1]
    as_good = end <= start if lower_is_better(setup.config.eval.metric) else end >= start
    if as_good or math.isnan(start):
        return ""
    return (
        f"{name} is {end:.4f} after update {last}, worse than the {start:.4f} of the parameters"
        " that the run started from: use --best, or those"
    )
