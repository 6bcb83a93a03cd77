"""Reads evaluation records with their texts. Does not import JAX."""

import dataclasses
import hashlib
import os
from typing import Any

from etils import epath

from t2t_flax.config import Config, Data, Eval
from t2t_flax.errors import UserError
from t2t_flax.json_file import parse_json
from t2t_flax.tasks import Task, make_task
from t2t_flax.tasks.translation import tokenizer_of

_HINT = "Give the file WORKDIR/eval/<split>-<step>.json written by `evaluate`."


def read_record(path: str | os.PathLike) -> dict[str, Any]:
    """The evaluation record in a file. Raises UserError if it is not one."""
    file = epath.Path(path)
    if not file.exists() or file.is_dir():
        raise UserError(f"there is no record {path}. {_HINT}" if not file.exists() else f"{path} is a folder. {_HINT}")
    try:
        record = parse_json(file.read_bytes())
    except ValueError:
        raise UserError(f"{path} is not an evaluation record: it is not JSON. {_HINT}") from None
    required = {"record_version", "data", "hypotheses", "references", "config", "digests"}
    if not isinstance(record, dict) or not required <= set(record):
        missing = ", ".join(sorted(required - set(record)))
        raise UserError(f"{path} is not an evaluation record: it lacks {missing}. {_HINT}")
    if not isinstance(record["config"], dict):
        raise UserError(f"{path} is not an evaluation record: its config is not a config. {_HINT}")
    return record


def texts(record: dict[str, Any], path: str | os.PathLike) -> tuple[list[str], list[list[str]]]:
    """(hypotheses, sets of references) stored beside a record. Raises UserError if missing or changed."""
    (hypotheses,) = _read_lines("hypotheses", record, path)
    return hypotheses, _read_lines("references", record, path)


def _read_lines(kind: str, record: dict[str, Any], path: str | os.PathLike) -> list[list[str]]:
    """The lines of each file of that kind ("hypotheses" or "references")."""
    names, digests = (x if isinstance(x, list) else [x] for x in (record[kind], record["digests"][kind]))
    sets = []
    for name, digest in zip(names, digests, strict=True):
        if os.path.basename(name) != name:
            raise UserError(f"{path} names {name} as its {kind}, but they must be in the record's folder.")
        file = epath.Path(path).parent / name
        if not file.exists():
            raise UserError(f"the {kind} of {path} are missing: {file}. They must be in the record's folder.")
        data = file.read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            count = data.count(b"\n")
            raise UserError(f"{file} does not match {path} ({count} lines, another digest): run `evaluate` again.")
        sets.append(data.decode("utf-8").split("\n")[:-1])
    return sets


def comparable_names(task: Task) -> list[str]:
    """The names of the metrics by which two systems can be compared, the primary one first."""
    return [metric.name for metric in task.metrics if metric.statistics]


def task_of_record(record: dict[str, Any]) -> Task:
    """The task of a record with its settings. Raises UserError for a task that this version does not have."""
    keys = {item.name for item in dataclasses.fields(Data)}
    data = Data(**{key: value for key, value in record["config"]["data"].items() if key in keys})
    config = Config(data=data, eval=Eval(sacrebleu_tokenizer=tokenizer_of_record(record)))
    return make_task(config)


def tokenizer_of_record(record: dict[str, Any]) -> str:
    """sacreBLEU's tokenizer in a record."""
    setting = record["config"].get("eval", {}).get("sacrebleu_tokenizer", "13a")
    return tokenizer_of(setting, record["config"]["data"].get("target_language", Data.target_language))
