"""Tasks of the encoder-decoder: one module or package each, listed in `registry.TASKS` under their data.task."""

import difflib

from t2t_flax.config import Config
from t2t_flax.errors import UserError
from t2t_flax.registry import TASKS, absent_extension, load_extensions
from t2t_flax.tasks.base import Task, find_metric
from t2t_flax.tasks.metrics import model_metrics


def task_of(config: Config) -> Task:
    """The task named by data.task. Raises UserError for an unknown task, or settings it cannot have."""
    task = make_task(config)
    task.validate_config()
    return task


def make_task(config: Config) -> Task:
    """As `task_of`, for a config that need not be complete, such as that of an old record."""
    load_extensions()
    name = config.data.task
    if name not in TASKS:
        close = difflib.get_close_matches(name, TASKS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        hint = absent_extension("data.task", name) or hint
        raise UserError(f"unknown task config.data.task = {name!r}: expected one of {', '.join(TASKS)}.{hint}")
    return TASKS.load(name).TASK(config)


def lower_is_better(name: str) -> bool:
    """The direction of a metric of any task, by any of the names that `Task.metric` takes.

    A metric has the same direction in all tasks, and on each of several sets (`NAME/SET`). Raises UserError for a name that no
    task has.
    """
    known = list(model_metrics())
    for task in (None, *TASKS):
        known += TASKS.load(task).TASK.metrics if task else ()
        if metric := find_metric(known, name.partition("/")[0]):
            return not metric.higher_is_better
    raise UserError(f"no task has a metric {name!r}; known: {', '.join(dict.fromkeys(m.name for m in known))}.")
