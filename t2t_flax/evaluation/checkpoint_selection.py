"""Which checkpoints of a run are evaluated, and their parameters, restored one after the other."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

from t2t_flax.config import Config
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.errors import UserError
from t2t_flax.filesystem import list_numbers
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.config_changes import recorded_changes
from t2t_flax.training.damage import DamagedCheckpoint

log = logging.getLogger("t2t_flax")


@dataclasses.dataclass(frozen=True)
class Choice:
    """The newest checkpoint; checkpoint `step`; the mean of the last `average` regular ones up to it; or the `best` by
    eval.metric. at_most: an average takes fewer where there are fewer, or some are damaged.
    """

    step: int | None = None
    average: int = 0
    best: bool = False
    at_most: bool = False

    def __post_init__(self):
        if self.best and (self.step is not None or self.average):
            raise UserError("the best checkpoint is a choice of its own: give --best, or --step and --average.")

    def asked(self, workdir: str | epath.Path) -> dict[str, Any]:
        """The choice with the checkpoints that there are, as JSON values: the same later means the same parameters."""
        asked: dict[str, Any] = {"step": self.step, "average": self.average}
        asked["of"] = list_numbers(epath.Path(workdir) / "checkpoints")
        return asked | {name: True for name in ("best", "at_most") if getattr(self, name)}


@dataclasses.dataclass(frozen=True)
class Part:
    """Parameters, and the steps of which they are the mean. metric: that by which a best checkpoint was chosen, higher is
    better. config_changes: of optimization, in the runs that they come from (`training.config_changes`).
    """

    params: Any
    steps: tuple[int, ...]
    metric: float | None = None
    config_changes: tuple[dict[str, Any], ...] = ()


def restored(
    workdir: epath.Path, config: Config, choice: Choice, abstract: Any, tokenizer: str, group: ProcessGroup | None
) -> Iterator[Part]:
    """The chosen checkpoints of a run, newest first, each restored when it is asked for.

    config: the run's own. abstract: the parameters' shapes and shardings. tokenizer: the digest of the run's tokenizer.
    Of several processes (`group`) all take the same. Raises UserError where the choice is impossible, at the latest when
    the last part has been taken.
    """
    folder, item = workdir / "checkpoints", "ema" if config.optimizer.ema_decay else "params"
    if not folder.exists():
        raise UserError(f"{workdir} has no checkpoint yet.")
    checkpoints = Checkpoints(folder, group=group)
    try:
        steps, step = checkpoints.steps(), choice.step
        if not steps or (step is not None and step not in steps):
            raise UserError(
                f"{workdir} has no checkpoint{'' if step is None else f' of step {step}'}: it has {steps or 'none'}."
            )
        metrics = checkpoints.metrics() if choice.best else {}
        if choice.best:
            candidates = _best_first(workdir, config, checkpoints, metrics, choice.at_most)
        else:
            candidates = [s for s in reversed(steps) if step is None or s <= step]
        regular, taken = _Regular(config), []
        for s in candidates:
            try:
                meta = checkpoints.meta(s)
                if choice.average and s != step and not regular.continues(s, meta):
                    continue
                _check_tokenizer(workdir, s, meta["digests"]["tokenizer"], tokenizer)
                params = checkpoints.restore_params(s, abstract, item)
            except DamagedCheckpoint as damage:
                if (step is not None or choice.average or choice.best) and not choice.at_most:
                    raise UserError(f"checkpoint {s} in {workdir} is damaged: {damage}") from damage
                log.warning("checkpoint %d in %s is damaged (%s); using the previous one", s, workdir, damage)
                regular.unknown()
                continue
            taken.append(s)
            regular.took(meta)
            means = tuple(part for _, part in meta.get("averaged", []))
            part = Part(params, means or (s,), metrics.get(s), tuple(recorded_changes(meta)))
            del params
            yield part
            del part  # before the next one is restored
            if len(taken) == max(1, choice.average):
                return
    finally:
        checkpoints.close()
    if taken and choice.at_most:
        return
    if not taken and regular.unscheduled and choice.at_most:
        yield from restored(workdir, config, dataclasses.replace(choice, average=0), abstract, tokenizer, group)
        return
    left_out = regular.left_out()
    if not taken and regular.unscheduled:
        raise UserError(
            f"{workdir} has no regular checkpoint yet{left_out}: leave out --average, or train on to the next one."
        )
    if not taken:
        raise UserError(f"all checkpoints in {workdir} are damaged.")
    raise UserError(
        f"an average of {choice.average} checkpoints was asked for; {workdir} has {sorted(taken)}{left_out}."
    )


class _Regular:
    """Which of a run's checkpoints, looked at from the newest to the oldest, are the last regular ones without a gap."""

    def __init__(self, config: Config):
        self._kept = max(config.checkpoint.keep_last, config.checkpoint.average_last)
        self._before: int | None = None
        self._count = 0
        self.unscheduled: list[int] = []
        self.only_best: list[int] = []

    def continues(self, step: int, meta: dict[str, Any]) -> bool:
        """False for a checkpoint that only a stop or an evaluation asked for, and for a regular one that stands behind a
        gap: its neighbours have been deleted, it was kept as one of the best.
        """
        if not meta.get("scheduled", True):
            self.unscheduled.append(step)
            return False
        # Checkpoints of older versions do not name the regular one before them.
        gap = self._count >= self._kept if self._before is None else step < self._before
        if gap and self._count:
            self.only_best.append(step)
        return not (gap and self._count)

    def took(self, meta: dict[str, Any]) -> None:
        self._count += 1
        self._before = meta.get("regular_before")

    def unknown(self) -> None:
        """What stood before a damaged checkpoint."""
        self._before = None

    def left_out(self) -> str:
        """In words, for an error."""
        why = {"made when it was stopped or evaluated": self.unscheduled, "kept only as best": self.only_best}
        told = "; ".join(f"{what}: {steps}" for what, steps in why.items() if steps)
        return f" (left out, {told})" if told else ""


def _best_first(
    workdir: epath.Path, config: Config, checkpoints: Checkpoints, metrics: dict[int, float], at_most: bool
) -> list[int]:
    """The steps by falling metric, the earliest of equal ones first; by age, the newest first, where none has one and
    `at_most` makes do with it.
    """
    steps = checkpoints.steps()
    if not metrics and at_most:
        return steps[::-1]
    if not metrics:
        raise UserError(
            f"no checkpoint in {workdir} has a config.eval.metric = {config.eval.metric}: an evaluation of the validation "
            "set gives it one (config.data.valid, eval.every_steps, eval.decode_every_steps), and checkpoint.keep_best keeps it."
        )
    ranked = sorted(metrics, key=lambda step: (-metrics[step], step))
    progress: dict[str, Any] = {}
    with contextlib.suppress(DamagedCheckpoint):
        progress = checkpoints.meta(steps[-1]).get("progress", {})
    best = progress.get("best_metric")
    if best is not None and best > metrics[ranked[0]]:
        log.warning(
            "%s had its best %s at step %d, whose checkpoint is gone (config.checkpoint.keep_best = %d): of those that are "
            "there, %d is the best.",
            workdir, config.eval.metric, progress["best_step"], config.checkpoint.keep_best, ranked[0],
        )  # fmt: skip
    return ranked


def _check_tokenizer(workdir: epath.Path, step: int, digest: str, own: str) -> None:
    if digest != own:
        raise UserError(
            f"checkpoint {step} in {workdir} belongs to another tokenizer (digest {digest[:12]}) than "
            f"{workdir / 'tokenizer'} (digest {own[:12]}): bring the run's own tokenizer back."
        )


def mean(parts: Iterable[Part]) -> Part:
    """The arithmetic mean of parameters in float32 (6.1), each part weighted by the checkpoints that it is of; a single
    part stays as it is.

    Takes the parts one by one and consumes their arrays, so that no more than two trees are in memory at once.
    """
    parts = iter(parts)
    first = next(parts)
    steps, metric, count, changes = first.steps, first.metric, 1, first.config_changes
    total, structure = jax.tree.flatten(first.params)
    del first
    for part in parts:
        if count == 1:
            total = [_scaled(x, len(steps)) for x in total] if len(steps) > 1 else total
        leaves, weight = jax.tree.leaves(part.params), len(part.steps)
        steps, count = steps + part.steps, count + 1
        changes += tuple(change for change in part.config_changes if change not in changes)
        del part
        for i, x in enumerate(total):
            total[i], leaves[i] = _added(x, leaves[i], weight), None
        del leaves
    if count > 1:
        total = [_divided(x, len(steps)) for x in total]
    return Part(jax.tree.unflatten(structure, total), steps, metric if count == 1 else None, changes)


@functools.partial(jax.jit, donate_argnums=0)
def _added(total: jax.Array, x: jax.Array, weight: float) -> jax.Array:
    return total + weight * x.astype(jnp.float32)


@functools.partial(jax.jit, donate_argnums=0)
def _divided(total: jax.Array, by: float) -> jax.Array:
    return total / by


@functools.partial(jax.jit, donate_argnums=0)
def _scaled(x: jax.Array, by: float) -> jax.Array:
    return by * x.astype(jnp.float32)
