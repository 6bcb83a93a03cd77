"""Which evaluations of many runs and checkpoints are there already, and how they compare."""

import json
import os
from collections.abc import Sequence
from typing import Any

from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.data.corpus import split_source
from t2t_flax.data.task import task_class
from t2t_flax.errors import UserError
from t2t_flax.evaluation.compare import compare, read_record
from t2t_flax.evaluation.load import stored_config

COLUMNS = ("run", "checkpoint", "score", "difference", "p", "sentences")


def newest_step(workdir: str | os.PathLike) -> int:
    """The newest checkpoint of a run, by its name. Raises UserError where there is none."""
    folder = epath.Path(workdir) / "checkpoints"
    steps = [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.exists() else []
    if not steps:
        raise UserError(f"{workdir} has no checkpoint.")
    return max(steps)


def existing_record(
    workdir: str | os.PathLike, split: str, step: int | None, average: int, overrides: dict[str, str]
) -> epath.Path | None:
    """The record of that evaluation, if it was made with the same config of the same text; None where it is to be made.

    Raises UserError where the folder holds no run, or no checkpoint.
    """
    config = stored_config(workdir, overrides)
    step = newest_step(workdir) if step is None else step
    found = sorted((epath.Path(workdir) / "eval").glob(f"{split}-{step}*.json"))
    name = f"{split}-{step}-mean" if average > 1 else f"{split}-{step}.json"
    for path in found:
        if not path.name.startswith(name):
            continue
        record = json.loads(path.read_text())
        same_number = len(record["checkpoint"]["averaged"]) == max(1, average)
        if same_number and record["config"] == config_lib.as_json(config):
            if record["data"]["digest"] == split_source(config, split).fingerprint():
                return path
    return None


def comparison(records: Sequence[os.PathLike], names: Sequence[str], score: str) -> list[list[str]]:
    """A line of `COLUMNS` for each record: its score, and the paired difference to the first one.

    Raises UserError for records of different test sets or tasks.
    """
    lines = []
    for path, name in zip(records, names, strict=True):
        record = read_record(path)
        chosen = score or next(iter(task_class(record["config"]["data"].get("task", "translation")).spoken))
        difference = p_value = ""
        if path != records[0]:
            told = compare(path, records[0], score=chosen)
            interval = told["interval"]
            difference = f"{told['difference']:+.2f} [{interval['low']:+.2f}, {interval['high']:+.2f}]"
            p_value = f"{told['p_value']:.3g}"
        value = f"{record['scores'][chosen]['score']:.2f}"
        lines.append([name, _checkpoint(record), value, difference, p_value, str(record["data"]["sentences"])])
    return lines


def _checkpoint(record: dict[str, Any]) -> str:
    steps = record["checkpoint"]["averaged"]
    return str(steps[0]) if len(steps) == 1 else f"mean of {len(steps)} up to {steps[0]}"
