"""Selects checkpoints of a run, restores their parameters one at a time and averages them."""

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
from t2t_flax.interop.finite import not_finite
from t2t_flax.interop.model_folder import ModelFolder, open_model_folder
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.config_changes import recorded_changes
from t2t_flax.training.damage import DamagedCheckpoint

log = logging.getLogger("t2t_flax")


@dataclasses.dataclass(frozen=True)
class Choice:
    """A selection of checkpoints: the newest; checkpoint `step`; the mean of the last `average` regular ones up to it; or
    the `best` by eval.metric. at_most: average fewer if there are fewer or some are damaged.
    """

    step: int | None = None
    average: int = 0
    best: bool = False
    at_most: bool = False

    def __post_init__(self):
        if self.best and (self.step is not None or self.average):
            raise UserError("--best cannot be combined with --step or --average: give one or the other.")

    def as_json(self, workdir: str | epath.Path) -> dict[str, Any]:
        """The choice and the checkpoints it chose from, as JSON values: equal entries mean equal parameters. Of an
        exported model, the digest of its file stands for the checkpoints.
        """
        entry: dict[str, Any] = {"step": self.step, "average": self.average}
        model = open_model_folder(workdir)
        entry["of"] = [model.digest] if model else list_numbers(epath.Path(workdir) / "checkpoints")
        return entry | {name: True for name in ("best", "at_most") if getattr(self, name)}


@dataclasses.dataclass(frozen=True)
class Part:
    """Parameters, and the steps that they are the mean of. metric: value by which a best checkpoint was chosen, higher is
    better. config_changes: changes of optimization keys during the run (`training.config_changes`). dtype: to which the
    parameters were rounded when they were exported.
    """

    params: Any
    steps: tuple[int, ...]
    metric: float | None = None
    config_changes: tuple[dict[str, Any], ...] = ()
    dtype: str = "float32"


def restore_parts(
    workdir: epath.Path, config: Config, choice: Choice, abstract: Any, tokenizer: str, group: ProcessGroup | None
) -> Iterator[Part]:
    """Yields the chosen checkpoints of a run, newest first, each restored on demand.

    config: the run's own. abstract: shapes and shardings of the parameters. tokenizer: digest of the run's tokenizer.
    All processes of `group` choose the same checkpoints. Raises UserError if the choice cannot be satisfied, at the
    latest when the iterator ends.
    """
    if model := open_model_folder(workdir):
        yield _exported(model, choice, abstract, tokenizer)
        return
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
        regular, restored = _RegularCheckpoints(config), []
        for s in candidates:
            try:
                meta = checkpoints.meta(s)
                if choice.average and s != step and not regular.continues(s, meta):
                    continue
                _check_tokenizer(workdir, s, meta["digests"]["tokenizer"], tokenizer)
                params = checkpoints.restore_params(s, abstract, item)
                if name := not_finite(params):
                    raise DamagedCheckpoint(f"{name} holds numbers that are not finite")
            except DamagedCheckpoint as damage:
                if (step is not None or choice.average or choice.best) and not choice.at_most:
                    raise UserError(f"checkpoint {s} in {workdir} is damaged: {damage}") from damage
                log.warning("checkpoint %d in %s is damaged (%s); using the one before", s, workdir, damage)
                regular.add_damaged()
                continue
            restored.append(s)
            regular.add(meta)
            means = tuple(part for _, part in meta.get("averaged", []))
            part = Part(params, means or (s,), metrics.get(s), tuple(recorded_changes(meta)))
            del params
            yield part
            del part  # frees it before the next one is restored
            if len(restored) == max(1, choice.average):
                return
    finally:
        checkpoints.close()
    if restored and choice.at_most:
        return
    if not restored and regular.unscheduled and choice.at_most:
        yield from restore_parts(workdir, config, dataclasses.replace(choice, average=0), abstract, tokenizer, group)
        return
    left_out = regular.left_out()
    if not restored and regular.unscheduled:
        raise UserError(f"{workdir} has no regular checkpoint yet{left_out}: omit --average, or continue training.")
    if not restored:
        raise UserError(f"all checkpoints in {workdir} are damaged.")
    raise UserError(
        f"cannot average {choice.average} checkpoints: {workdir} has {sorted(restored)}{left_out}. Choose a smaller number."
    )


def _exported(model: ModelFolder, choice: Choice, abstract: Any, tokenizer: str) -> Part:
    """The parameters of an exported model, if they satisfy the choice. Raises UserError."""
    if choice.step not in (None, *model.steps[:1]) or not choice.at_most and (choice.best or choice.average > 1):
        raise UserError(
            f"{model.path} is an exported model of step {' and '.join(map(str, model.steps))}, not a run with checkpoints: leave "
            "out --step, --average and --best."
        )
    if model.tokenizer != tokenizer:
        raise UserError(
            f"{model.path / 'tokenizer'} (digest {tokenizer[:12]}) is not the tokenizer of the model beside it (digest "
            f"{model.tokenizer[:12]}): export the model again."
        )
    return Part(model.params(abstract), model.steps, dtype=model.dtype)


class _RegularCheckpoints:
    """Finds the last regular checkpoints without a gap, visiting a run's checkpoints from the newest to the oldest."""

    def __init__(self, config: Config):
        self._max_kept = max(config.checkpoint.keep_last, config.checkpoint.average_last)
        self._before: int | None = None
        self._count = 0
        self.unscheduled: list[int] = []
        self.only_best: list[int] = []

    def continues(self, step: int, meta: dict[str, Any]) -> bool:
        """False for a checkpoint written only because of a stop or an evaluation, and for a regular one after a gap: its
        neighbours were deleted, and it was kept only as one of the best.
        """
        if not meta.get("scheduled", True):
            self.unscheduled.append(step)
            return False
        # Checkpoints of older versions do not record the previous regular one.
        gap = self._count >= self._max_kept if self._before is None else step < self._before
        if gap and self._count:
            self.only_best.append(step)
        return not (gap and self._count)

    def add(self, meta: dict[str, Any]) -> None:
        self._count += 1
        self._before = meta.get("regular_before")

    def add_damaged(self) -> None:
        """A damaged checkpoint does not say which regular one came before it."""
        self._before = None

    def left_out(self) -> str:
        """The skipped checkpoints with reasons, for an error message."""
        reasons = {"written at a stop or an evaluation": self.unscheduled, "kept only as best": self.only_best}
        text = "; ".join(f"{reason}: {steps}" for reason, steps in reasons.items() if steps)
        return f" (left out, {text})" if text else ""


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


def mean(parts: Iterable[Part]) -> Part:
    """The arithmetic mean of parameters in float32 (6.1), each part weighted by its number of checkpoints; a single part
    is returned unchanged.

    Consumes the parts one by one, donating their arrays: at most two trees are in memory at once.
    """
    parts = iter(parts)
    first = next(parts)
    steps, metric, count, changes, dtype = first.steps, first.metric, 1, first.config_changes, first.dtype
    total, structure = jax.tree.flatten(first.params)
    del first
    for part in parts:
        if count == 1:
            total = [_scale(x, len(steps)) for x in total] if len(steps) > 1 else total
        leaves, weight = jax.tree.leaves(part.params), len(part.steps)
        steps, count = steps + part.steps, count + 1
        changes += tuple(change for change in part.config_changes if change not in changes)
        del part
        for i, x in enumerate(total):
            total[i], leaves[i] = _add_weighted(x, leaves[i], weight), None
        del leaves
    if count > 1:
        total = [_divide(x, len(steps)) for x in total]
    params = jax.tree.unflatten(structure, total)
    return Part(params, steps, metric, changes, dtype) if count == 1 else Part(params, steps, None, changes)


@functools.partial(jax.jit, donate_argnums=0)
def _add_weighted(total: jax.Array, x: jax.Array, weight: float) -> jax.Array:
    return total + weight * x.astype(jnp.float32)


@functools.partial(jax.jit, donate_argnums=0)
def _divide(total: jax.Array, by: float) -> jax.Array:
    return total / by


@functools.partial(jax.jit, donate_argnums=0)
def _scale(x: jax.Array, by: float) -> jax.Array:
    return by * x.astype(jnp.float32)
