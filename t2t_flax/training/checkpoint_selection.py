"""Choose checkpoints of a run, restore their parameters, and average them (6.1)."""

import contextlib
import dataclasses
import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp
from etils import epath

from t2t_flax.config import Config
from t2t_flax.config.overrides import recorded_changes, stored_config
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.mesh import Params
from t2t_flax.errors import UserError
from t2t_flax.model_forms import StoredModel, open_model
from t2t_flax.training.checkpoints import Checkpoints, DamagedCheckpoint, Meta, is_scheduled
from t2t_flax.training.parametrization import merged, parametrization_of

log = logging.getLogger("t2t_flax")


@dataclasses.dataclass(frozen=True)
class CheckpointChoice:
    """Choice of checkpoints of a run; by default the newest.

    Args:
        step: choose the checkpoint of this step.
        average: choose this many regular checkpoints (`regular_steps`), the last ones. With `step`
            they end with that step, even if it is not a regular one.
        best: choose the best checkpoint by eval.metric.
        at_most: take fewer checkpoints if there are fewer or some are damaged, and the newest one
            if no checkpoint has a metric.
    """

    step: int | None = None
    average: int = 0
    best: bool = False
    at_most: bool = False

    def __post_init__(self):
        if self.best and (self.step is not None or self.average):
            raise UserError(
                "--best cannot be combined with --step or --average: give one or the other."
            )


@dataclasses.dataclass(frozen=True)
class RestoredParams:
    """Parameters of one checkpoint, or the mean of several.

    Args:
        steps: steps of these checkpoints.
        metric: eval.metric if the best checkpoint was chosen, higher is better.
        config_changes: changes of optimization keys during the run (`config.overrides`).
        dtype: dtype to which the parameters were rounded when they were stored.
    """

    params: Params
    steps: tuple[int, ...]
    metric: float | None = None
    config_changes: tuple[Meta, ...] = ()
    dtype: str = "float32"


def named_steps(steps: Sequence[int]) -> str:
    """Return "step 500", or "mean of steps 500, 400" for several."""
    return f"{'mean of steps' if len(steps) > 1 else 'step'} {', '.join(map(str, steps))}"


def restore_chosen(
    workdir: epath.Path,
    config: Config,
    choice: CheckpointChoice,
    abstract: Params,
    tokenizer: str,
    group: ProcessGroup | None,
) -> Iterator[RestoredParams]:
    """Yield the chosen checkpoints, newest first, each restored on demand.

    All processes yield the same checkpoints.

    Args:
        config: config of the run.
        abstract: shapes and shardings of the parameters.
        tokenizer: digest of the run's tokenizer.

    Raises:
        UserError: the choice cannot be satisfied, or a chosen checkpoint is damaged. With
            `choice.at_most`, all chosen checkpoints are damaged.
    """
    if model := open_model(workdir):
        _check_tokenizer(workdir, "the model", model.tokenizer, tokenizer)
        yield _only_part(workdir, model, choice, abstract)
        return
    with contextlib.closing(Checkpoints(workdir / "checkpoints", group=group)) as checkpoints:
        item = "ema" if config.optimizer.averages else "params"
        chosen, metric = _chosen_steps(workdir, config, checkpoints, choice)
        intact = 0
        for step in chosen:
            try:
                params, meta = restore_params(checkpoints, step, abstract, item)
            except DamagedCheckpoint as damage:
                if not choice.at_most or (step == chosen[-1] and not intact):
                    raise
                log.warning("%s: left out of the average", damage)
                continue
            intact += 1
            _check_tokenizer(workdir, f"checkpoint {step}", meta["digests"]["tokenizer"], tokenizer)
            steps = tuple(other for _, other in meta.get("averaged", [])) or (step,)
            one = RestoredParams(params, steps, metric, tuple(recorded_changes(meta)))
            del params
            yield one
            del one  # frees it before the next one is restored


def restore_params(
    checkpoints: Checkpoints, step: int, abstract: Params, item: str = "params"
) -> tuple[Params, Meta]:
    """Restore the model's parameters onto the shardings of `abstract`.

    Args:
        item: "params", or "ema" for their moving average.

    Returns:
        (parameters, metadata).

    Raises:
        DamagedCheckpoint: on all processes, if one of them cannot read its part.
    """
    meta = checkpoints.meta(step)
    parametrization = parametrization_of(stored_config(meta))
    trees = checkpoints.read(step, meta, {item: parametrization.extend(abstract)})
    return merged(parametrization, trees[item]), meta


def _chosen_steps(
    workdir: epath.Path, config: Config, checkpoints: Checkpoints, choice: CheckpointChoice
) -> tuple[list[int], float | None]:
    """Return the chosen steps, newest first, and the metric if `choice.best`."""
    steps, step, key = checkpoints.steps(), choice.step, config.eval.metric
    if not steps or (step is not None and step not in steps):
        what = "checkpoint" if step is None else f"checkpoint of step {step}"
        raise UserError(f"{workdir} has no {what}: it has {steps or 'none'}.")
    newest = [steps[-1] if step is None else step]
    if choice.average:
        return _last_regular(workdir, config, checkpoints, choice) or newest, None
    metrics = checkpoints.metrics() if choice.best else {}
    if not metrics and choice.best and not choice.at_most:
        raise UserError(
            f"no checkpoint in {workdir} has a config.eval.metric = {key}: train with a validation"
            " set (config.data.valid), eval.every_steps or eval.decode_every_steps, and"
            " checkpoint.keep_best."
        )
    if not metrics:
        return newest, None
    best = max(metrics, key=lambda step: (metrics[step], -step))
    with contextlib.suppress(DamagedCheckpoint):
        progress = checkpoints.meta(steps[-1])["progress"]
        if (progress.get("best_metric") or -math.inf) > metrics[best]:
            log.warning(
                "%s had its best %s at step %d, which has no intact checkpoint: using step %d, the"
                " best of the others",
                *(workdir, key, progress["best_step"], best),
            )
    return [best], metrics[best]


def regular_steps(config: Config, updates_per_epoch: int, last: int) -> Iterator[int]:
    """Yield the regular steps, which averages use, from `last` down.

    They are the scheduled steps and the end of the run. The end is config.train.steps, unless
    checkpoints are scheduled by epochs. A run that is extended later therefore averages the same
    checkpoints as a run that was started with the final length.
    """
    end = 0 if config.checkpoint.every_epochs else config.train.steps
    return (
        step
        for step in range(last, 0, -1)
        if step == end or is_scheduled(config, updates_per_epoch, step)
    )


def _last_regular(
    workdir: epath.Path, config: Config, checkpoints: Checkpoints, choice: CheckpointChoice
) -> list[int]:
    """Return the steps to average, newest first.

    Missing steps raise UserError, or log a warning with `choice.at_most`.
    """
    steps = checkpoints.steps()
    last = steps[-1] if choice.step is None else choice.step
    meta = checkpoints.meta(last)
    if meta.get("params_only"):
        regular: Iterable[int] = steps[::-1]
    elif choice.step is None:
        regular = regular_steps(config, meta["updates_per_epoch"], last)
    else:
        regular = [last, *regular_steps(config, meta["updates_per_epoch"], last - 1)]
    wanted = list(itertools.islice(regular, choice.average))
    there = list(itertools.takewhile(steps.__contains__, wanted))
    c = config.checkpoint
    found = f"{there}" if there == wanted else f"{there} of {wanted}"
    why = (
        f"{workdir} has the regular checkpoints {found}"
        f" (config.checkpoint.every_steps = {c.every_steps}, keep_last = {c.keep_last}); those of a"
        " stop or an evaluation do not count"
    )
    if len(there) < choice.average and not choice.at_most:
        raise UserError(
            f"cannot average {choice.average} checkpoints: {why}. Choose a smaller number, leave"
            " --average out for the newest checkpoint, or continue training."
        )
    if there != wanted:
        log.warning("averaging fewer than %d checkpoints: %s", choice.average, why)
    return there


def _check_tokenizer(workdir: epath.Path, what: str, digest: str, tokenizer: str) -> None:
    if digest != tokenizer:
        raise UserError(
            f"{what} in {workdir} belongs to another tokenizer (digest {digest[:12]}) than"
            f" {workdir / 'tokenizer'} (digest {tokenizer[:12]}): restore its own tokenizer."
        )


def _only_part(
    workdir: epath.Path, model: StoredModel, choice: CheckpointChoice, abstract: Params
) -> RestoredParams:
    """Return the parameters of a model without its run, if they satisfy the choice."""
    several = choice.best or choice.average > 1
    if choice.step not in (None, *model.steps[:1]) or several and not choice.at_most:
        raise UserError(
            f"{workdir} is a model of step {' and '.join(map(str, model.steps))}, not a run with"
            " checkpoints: leave out --step, --average and --best."
        )
    return RestoredParams(model.params(abstract), model.steps, dtype=model.dtype)


def mean(several: Iterable[RestoredParams]) -> RestoredParams:
    """Return the mean in float32, weighted by the number of checkpoints of each item.

    A single item is returned unchanged. Items are restored one by one and their arrays donated, so
    at most two trees are in memory at once.
    """
    several = iter(several)
    first, other = next(several), next(several, None)
    if other is None:
        return first
    steps, changes = first.steps, first.config_changes
    total = jax.tree.map(lambda x: _scaled(x, len(steps)), first.params)
    while other is not None:
        weight = len(other.steps)
        total = jax.tree.map(
            lambda sum_, x, weight=weight: _add_weighted(sum_, x, weight), total, other.params
        )
        steps += other.steps
        changes += tuple(change for change in other.config_changes if change not in changes)
        other = None  # frees it before the next one is restored
        other = next(several, None)
    return RestoredParams(
        jax.tree.map(lambda x: _divided(x, len(steps)), total), steps, None, changes
    )


_scaled = jax.jit(lambda x, by: by * x.astype(jnp.float32), donate_argnums=0)
_add_weighted = jax.jit(
    lambda total, x, weight: total + weight * x.astype(jnp.float32), donate_argnums=0
)
_divided = jax.jit(lambda total, by: total / by, donate_argnums=0)
