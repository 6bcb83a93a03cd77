"""Selects checkpoints of a run, restores their parameters one at a time and averages them."""

import contextlib
import dataclasses
import functools
import itertools
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from t2t_flax.config import Config
from t2t_flax.config.overrides import recorded_changes
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.errors import UserError
from t2t_flax.model_forms import StoredModel, open_model
from t2t_flax.training.checkpoint_files import DamagedCheckpoint, regular_steps
from t2t_flax.training.checkpoints import Checkpoints

log = logging.getLogger("t2t_flax")


@dataclasses.dataclass(frozen=True)
class CheckpointChoice:
    """Which checkpoints: the newest; checkpoint `step`; the last `average` regular ones up to it (`checkpoint_files`), of
    which `step` itself is always one; or the `best` by eval.metric. at_most: average fewer if there are fewer or some are
    damaged.
    """

    step: int | None = None
    average: int = 0
    best: bool = False
    at_most: bool = False

    def __post_init__(self):
        if self.best and (self.step is not None or self.average):
            raise UserError("--best cannot be combined with --step or --average: give one or the other.")


@dataclasses.dataclass(frozen=True)
class RestoredParams:
    """Parameters, and the steps that they are the mean of. metric: value by which a best checkpoint was chosen, higher is
    better. config_changes: changes of optimization keys during the run (`config.overrides`). dtype: to which the
    parameters were rounded when they were stored.
    """

    params: Any
    steps: tuple[int, ...]
    metric: float | None = None
    config_changes: tuple[dict[str, Any], ...] = ()
    dtype: str = "float32"


def restore_chosen(
    workdir: epath.Path,
    config: Config,
    choice: CheckpointChoice,
    abstract: Any,
    tokenizer: str,
    group: ProcessGroup | None,
) -> Iterator[RestoredParams]:
    """Yields the chosen checkpoints of a run, newest first, each restored on demand.

    config: the run's own. abstract: shapes and shardings of the parameters. tokenizer: digest of the run's tokenizer.
    All processes of `group` choose the same checkpoints. Raises UserError if the choice cannot be satisfied, at the
    latest when the iterator ends.
    """
    if model := open_model(workdir):
        yield _only_part(workdir, model, choice, abstract, tokenizer)
        return
    if not (workdir / "checkpoints").exists():
        raise UserError(f"{workdir} has no checkpoint yet.")
    with contextlib.closing(Checkpoints(workdir / "checkpoints", group=group)) as checkpoints:
        steps, step, metrics = checkpoints.steps(), choice.step, dict[int, float]()
        if not steps or (step is not None and step not in steps):
            raise UserError(
                f"{workdir} has no checkpoint{'' if step is None else f' of step {step}'}: it has {steps or 'none'}."
            )
        candidates, count = [s for s in reversed(steps) if step is None or s <= step], 1
        if choice.best:
            metrics = checkpoints.metrics()
            candidates = _best_first(workdir, config, checkpoints, metrics, choice.at_most)
        elif choice.average and (regular := _regular_first(workdir, config, checkpoints, choice)):
            candidates, count = regular, choice.average
        item, restored = "ema" if config.optimizer.ema_decay else "params", 0
        for s in candidates:
            try:
                meta = checkpoints.meta(s)
                _check_tokenizer(workdir, s, meta["digests"]["tokenizer"], tokenizer)
                params = checkpoints.restore_params(s, abstract, item)
                if name := _not_finite(params):
                    raise DamagedCheckpoint(f"{name} holds numbers that are not finite")
            except DamagedCheckpoint as damage:
                if (step is not None or choice.average or choice.best) and not choice.at_most:
                    raise UserError(f"checkpoint {s} in {workdir} is damaged: {damage}") from damage
                log.warning("checkpoint %d in %s is damaged (%s); using the one before", s, workdir, damage)
                continue
            steps_of_mean = tuple(step for _, step in meta.get("averaged", []))
            one = RestoredParams(params, steps_of_mean or (s,), metrics.get(s), tuple(recorded_changes(meta)))
            del params
            yield one
            del one  # frees it before the next one is restored
            restored += 1
            if restored == count:
                return
    if not restored:
        raise UserError(f"all checkpoints in {workdir} are damaged.")


def _regular_first(
    workdir: epath.Path, config: Config, checkpoints: Checkpoints, choice: CheckpointChoice
) -> list[int]:
    """The regular steps without a gap, newest first: those to average, and older ones in case some of these are damaged.

    Where some of those to average are missing or not yet written, raises UserError; with `at_most` warns of missing ones.
    """
    steps, meta = checkpoints.steps(), _newest_meta(workdir, checkpoints)
    if meta.get("params_only"):
        regular = steps[::-1]
    else:
        last = choice.step - 1 if choice.step else steps[-1]
        regular = [choice.step] if choice.step else []
        regular += regular_steps(config, meta["updates_per_epoch"], last)
    wanted = regular[: choice.average]
    there = [s for s in wanted if s in steps]
    why = (
        f"of the regular checkpoints {wanted} {workdir} has {there} (config.checkpoint.every_steps = "
        f"{config.checkpoint.every_steps}, keep_last = {config.checkpoint.keep_last}); those of a stop or an evaluation do not "
        "count"
    )
    if len(there) < choice.average and not choice.at_most:
        raise UserError(
            f"cannot average {choice.average} checkpoints: {why}. Choose a smaller number, or continue training."
        )
    if there != wanted:
        log.warning("averaging fewer than %d checkpoints: %s", choice.average, why)
    return list(itertools.takewhile(set(steps).__contains__, regular))


def _newest_meta(workdir: epath.Path, checkpoints: Checkpoints) -> dict[str, Any]:
    """The metadata of the newest checkpoint whose metadata is intact. Raises UserError if there is none."""
    for step in reversed(checkpoints.steps()):
        with contextlib.suppress(DamagedCheckpoint):
            return checkpoints.meta(step)
    raise UserError(f"all checkpoints in {workdir} are damaged.")


def _only_part(
    workdir: epath.Path, model: StoredModel, choice: CheckpointChoice, abstract: Any, tokenizer: str
) -> RestoredParams:
    """The parameters of a model without its run, if they satisfy the choice. Raises UserError."""
    if choice.step not in (None, *model.steps[:1]) or not choice.at_most and (choice.best or choice.average > 1):
        raise UserError(
            f"{workdir} is a model of step {' and '.join(map(str, model.steps))}, not a run with checkpoints: leave "
            "out --step, --average and --best."
        )
    if model.tokenizer != tokenizer:
        raise UserError(
            f"{workdir / 'tokenizer'} (digest {tokenizer[:12]}) is not the tokenizer of the model beside it (digest "
            f"{model.tokenizer[:12]}): restore the model's own."
        )
    return RestoredParams(model.params(abstract), model.steps, dtype=model.dtype)


def _best_first(
    workdir: epath.Path, config: Config, checkpoints: Checkpoints, metrics: dict[int, float], at_most: bool
) -> list[int]:
    """Steps by decreasing metric, the earliest first among equals. With `at_most`, newest first if none has a metric."""
    steps = checkpoints.steps()
    if not metrics and at_most:
        return steps[::-1]
    if not metrics:
        raise UserError(
            f"no checkpoint in {workdir} has a config.eval.metric = {config.eval.metric}: train with a validation set "
            "(config.data.valid), eval.every_steps or eval.decode_every_steps, and checkpoint.keep_best."
        )
    ranked = sorted(metrics, key=lambda step: (-metrics[step], step))
    progress: dict[str, Any] = {}
    with contextlib.suppress(DamagedCheckpoint):
        progress = checkpoints.meta(steps[-1]).get("progress", {})
    best = progress.get("best_metric")
    if best is not None and best > metrics[ranked[0]]:
        if progress["best_step"] in steps and not at_most:
            raise UserError(f"checkpoint {progress['best_step']} in {workdir}, the best one, is damaged.")
        log.warning(
            "%s had its best %s at step %d, whose checkpoint no longer exists (config.checkpoint.keep_best = %d): using "
            "step %d, the best of the remaining ones.",
            workdir, config.eval.metric, progress["best_step"], config.checkpoint.keep_best, ranked[0],
        )  # fmt: skip
    return ranked


def _check_tokenizer(workdir: epath.Path, step: int, digest: str, expected: str) -> None:
    if digest != expected:
        raise UserError(
            f"checkpoint {step} in {workdir} belongs to another tokenizer (digest {digest[:12]}) than "
            f"{workdir / 'tokenizer'} (digest {expected[:12]}): restore the run's own tokenizer."
        )


def mean(several: Iterable[RestoredParams]) -> RestoredParams:
    """The arithmetic mean of parameters in float32 (6.1), each weighted by its number of checkpoints; of one alone it is that,
    unchanged.

    Consumes them one by one, donating their arrays: at most two trees are in memory at once.
    """
    several = iter(several)
    first, other = next(several), next(several, None)
    if other is None:
        return first
    steps, changes = first.steps, first.config_changes
    total = jax.tree.map(functools.partial(_scaled, by=len(steps)), first.params)
    while other is not None:
        total = jax.tree.map(functools.partial(_add_weighted, weight=len(other.steps)), total, other.params)
        steps += other.steps
        changes += tuple(change for change in other.config_changes if change not in changes)
        other = None  # frees it before the next one is restored
        other = next(several, None)
    return RestoredParams(jax.tree.map(functools.partial(_divided, by=len(steps)), total), steps, None, changes)


@functools.partial(jax.jit, donate_argnums=0)
def _scaled(x: jax.Array, by: float) -> jax.Array:
    return by * x.astype(jnp.float32)


@functools.partial(jax.jit, donate_argnums=0)
def _add_weighted(total: jax.Array, x: jax.Array, weight: float) -> jax.Array:
    return total + weight * x.astype(jnp.float32)


@functools.partial(jax.jit, donate_argnums=0)
def _divided(total: jax.Array, by: float) -> jax.Array:
    return total / by


def _not_finite(params: Any) -> str | None:
    """The path of the first parameter with a number that is not finite, such as "encoder_0/feed_forward/Einsum_0/kernel"; None
    if all are finite. The same answer on all processes that hold shards of them.
    """
    paths, leaves = zip(*jax.tree.leaves_with_path(params), strict=True)
    finite = np.asarray(_all_finite(leaves))
    return None if finite.all() else "/".join(str(entry.key) for entry in paths[int(np.argmin(finite))])


@jax.jit
def _all_finite(leaves: tuple[jax.Array, ...]) -> jax.Array:
    return jnp.stack([jnp.isfinite(x).all() for x in leaves])
