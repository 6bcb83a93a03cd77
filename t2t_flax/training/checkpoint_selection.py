"""Selects checkpoints of a run, restores their parameters one at a time and averages them."""

import contextlib
import dataclasses
import functools
import itertools
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from etils import epath

from t2t_flax.config import Config
from t2t_flax.config.overrides import recorded_changes
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.errors import UserError
from t2t_flax.model_forms import StoredModel, open_model
from t2t_flax.training.checkpoint_files import DamagedCheckpoint, regular_steps

if TYPE_CHECKING:
    from t2t_flax.training.checkpoints import Checkpoints

log = logging.getLogger("t2t_flax")


@dataclasses.dataclass(frozen=True)
class CheckpointChoice:
    """Which checkpoints: the newest; checkpoint `step`; the last `average` regular ones up to it (`checkpoint_files`), of
    which `step` itself is always one; or the `best` by eval.metric. at_most: average fewer if there are fewer, and take the
    newest if none has a metric.
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
    All processes of `group` choose the same checkpoints. Raises UserError if the choice cannot be satisfied or one of them is
    damaged; with `at_most` a damaged one is left out with a warning, if others are left.
    """
    if model := open_model(workdir):
        yield _only_part(workdir, model, choice, abstract, tokenizer)
        return
    if not (workdir / "checkpoints").exists():
        raise UserError(f"{workdir} has no checkpoint yet.")
    from t2t_flax.training.checkpoints import Checkpoints  # a model without its run needs no Orbax, which takes 0.2 s

    with contextlib.closing(Checkpoints(workdir / "checkpoints", group=group)) as checkpoints:
        steps, metrics = checkpoints.steps(), checkpoints.metrics() if choice.best else {}
        if not steps or (choice.step is not None and choice.step not in steps):
            of_step = "" if choice.step is None else f" of step {choice.step}"
            raise UserError(f"{workdir} has no checkpoint{of_step}: it has {steps or 'none'}.")
        chosen, count = [steps[-1] if choice.step is None else choice.step], 1
        if choice.best and (metrics or not choice.at_most):
            chosen = _best_first(workdir, config, checkpoints, metrics)[: len(metrics) if choice.at_most else 1]
        elif choice.average:
            chosen = _last_regular(workdir, config, checkpoints, choice) or chosen
            count = len(chosen)
        restored, item = 0, "ema" if config.optimizer.averages else "params"
        for s in chosen:
            try:
                meta = checkpoints.meta(s)
                params = checkpoints.restore_params(s, abstract, item)
            except DamagedCheckpoint as damage:
                if not choice.at_most or s == chosen[-1] and not restored:
                    raise
                log.warning("%s: left out, because it is damaged", damage)
                continue
            if (digest := meta["digests"]["tokenizer"]) != tokenizer:
                raise UserError(
                    f"checkpoint {s} in {workdir} belongs to another tokenizer (digest {digest[:12]}) than "
                    f"{workdir / 'tokenizer'} (digest {tokenizer[:12]}): restore the run's own tokenizer."
                )
            steps_of_mean = tuple(step for _, step in meta.get("averaged", [])) or (s,)
            one = RestoredParams(params, steps_of_mean, metrics.get(s), tuple(recorded_changes(meta)))
            del params
            yield one
            del one  # frees it before the next one is restored
            if (restored := restored + 1) == count:
                return


def _last_regular(
    workdir: epath.Path, config: Config, checkpoints: "Checkpoints", choice: CheckpointChoice
) -> list[int]:
    """The steps to average, newest first. Where some of them are missing or not yet written, raises UserError; with `at_most`
    warns of it.
    """
    steps = checkpoints.steps()
    newest = checkpoints.meta(steps[-1] if choice.step is None else choice.step)
    if newest.get("params_only"):
        regular = steps[::-1]
    else:
        last = steps[-1] if choice.step is None else choice.step - 1
        regular = [] if choice.step is None else [choice.step]
        regular += regular_steps(config, newest["updates_per_epoch"], last)
    wanted = regular[: choice.average]
    there = list(itertools.takewhile(set(steps).__contains__, wanted))
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
    return there


def _best_first(
    workdir: epath.Path, config: Config, checkpoints: "Checkpoints", metrics: dict[int, float]
) -> list[int]:
    """Steps by falling metric, the earliest first among equals."""
    if not metrics:
        raise UserError(
            f"no checkpoint in {workdir} has a config.eval.metric = {config.eval.metric}: train with a validation set "
            "(config.data.valid), eval.every_steps or eval.decode_every_steps, and checkpoint.keep_best."
        )
    best, *others = sorted(metrics, key=lambda step: (-metrics[step], step))
    progress: dict[str, Any] = {}
    with contextlib.suppress(DamagedCheckpoint):
        progress = checkpoints.meta(checkpoints.steps()[-1]).get("progress", {})
    if (of_run := progress.get("best_metric")) is not None and of_run > metrics[best]:
        log.warning(
            "%s had its best %s at step %d, of which there is no intact checkpoint: using step %d, the best of the others.",
            workdir, config.eval.metric, progress["best_step"], best,
        )  # fmt: skip
    return [best, *others]


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
