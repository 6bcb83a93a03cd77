"""Which checkpoints are regular, and which are kept: functions of the config, the step and the metadata.

Others are written because of a stop, an evaluation or the end of a run; averages skip them, and the next save deletes them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from t2t_flax.config import Config
from t2t_flax.training.config_changes import stored_config


def is_scheduled(config: Config, updates_per_epoch: int, step: int) -> bool:
    """Whether config.checkpoint asks for a checkpoint after update `step` >= 1."""
    c = config.checkpoint
    return any(every and step % every == 0 for every in (c.every_steps, c.every_epochs * updates_per_epoch))


def regular_steps(config: Config, updates_per_epoch: int, last: int) -> Iterator[int]:
    """The regular steps from `last` down to 1: the scheduled ones, and the last update of the run, config.train.steps,
    unless checkpoints go by epochs.

    `config` is the run's own as it is now. The last update of a run that is extended later is therefore regular only if it
    is scheduled, and the longer run averages the same checkpoints as one that was started with its length. After a change of
    checkpoint.every_steps, the new interval says which checkpoints an average wants, older ones included.
    """
    end = 0 if config.checkpoint.every_epochs else config.train.steps
    return (step for step in range(last, 0, -1) if step == end or is_scheduled(config, updates_per_epoch, step))


def was_scheduled(meta: dict[str, Any]) -> bool:
    """Whether the checkpoint with this metadata was scheduled when it was written: by its own config, so that another
    interval in a resumed run deletes none of the older checkpoints at once.
    """
    return not meta.get("params_only") and is_scheduled(stored_config(meta), meta["updates_per_epoch"], meta["step"])


def kept_steps(facts: Mapping[int, tuple[bool | None, float | None]], last: int, best: int) -> set[int]:
    """Which checkpoints to keep: the newest, the `last` scheduled ones, the `best` by metric (the earlier of two equal ones),
    and those whose metadata cannot be read, which are not counted. It does not depend on what was deleted before, so it may
    be applied at any time.

    facts: {step: (whether it was scheduled, None = unknown; metric, higher is better, None = none)}.
    """
    steps = sorted(facts)
    scheduled = [step for step in steps if facts[step][0]]
    unknown = [step for step in steps if facts[step][0] is None]
    measured = sorted((-metric, step) for step in steps if (metric := facts[step][1]) is not None)
    return {*scheduled[-last:], *unknown, *(step for _, step in measured[:best]), *steps[-1:]}
