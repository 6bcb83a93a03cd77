"""Evaluation records: their identity, their names in WORKDIR/eval, and reading them.

A record is identified by its checkpoints, its test set (by content) and the settings that affect scores.
Records of different evaluations have different names, so none overwrites another; repeating an
evaluation writes to the same name.
"""

import dataclasses
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.config import Config, Data, Eval
from t2t_flax.config.keys import SCORES, TRANSLATIONS
from t2t_flax.config.schema import fields, keys_that_change
from t2t_flax.data.dataset import split_source
from t2t_flax.errors import UserError
from t2t_flax.json_file import parse_json
from t2t_flax.tasks import Task, make_task, task_of
from t2t_flax.tasks.translation.target_language import tokenizer_of

if TYPE_CHECKING:  # comparing records needs no JAX
    from t2t_flax.evaluation.restore import TrainedModel

_HINT = "Give the file WORKDIR/eval/<split>-<step>.json written by `evaluate`."


def question(record: dict[str, Any]) -> dict[str, Any]:
    """The identity of a record: test set, checkpoints, and settings that differ from the defaults."""
    checkpoint, config = record["checkpoint"], record["config"]
    settings = {}
    for name in keys_that_change(TRANSLATIONS, SCORES):
        group, key = name.split(".")
        default = fields()[name].default
        value = config.get(group, {}).get(key, default)
        settings |= {} if value == default else {name: value}
    return {
        "split": record["split"],
        "data": record["data"]["digest"],
        "steps": list(checkpoint["averaged"]),
        "best": "best" in checkpoint,
        "settings": settings,
    }


def record_name(loaded: "TrainedModel", split: str, digest: str) -> str:
    """The name of the record of a loaded run on a test set whose content has this digest.

    `test-500`, `test-500-best`, or `test-500-mean5` for an average, if text and settings are those of the
    run's own config. For other settings, or if another evaluation already uses the name, a digest of the
    identity is appended.
    """
    config = config_lib.as_json(loaded.config)
    checkpoint = {"averaged": loaded.steps} | ({} if loaded.checkpoint.metric is None else {"best": True})
    current = question({"split": split, "data": {"digest": digest}, "checkpoint": checkpoint, "config": config})
    count = len(loaded.steps)
    base = f"{split}-{loaded.steps[0]}" + (f"-mean{count}" if count > 1 else "-best" if current["best"] else "")
    folder = loaded.workdir / "eval"
    existing = {path.stem: _question_in(path) for path in folder.glob(f"{base}*.json")} if folder.exists() else {}
    for name in sorted(existing):
        if existing[name] == current:
            return name
    own_config = loaded.stored
    default = question(
        {"split": split, "data": {"digest": _own_digest(loaded, split, digest)}, "checkpoint": checkpoint,
         "config": config_lib.as_json(own_config)}
    )  # fmt: skip
    if default == current and existing.get(base) is None:
        return base
    return f"{base}-{hashlib.sha256(json.dumps(current, sort_keys=True).encode()).hexdigest()[:8]}"


def _question_in(path: epath.Path) -> dict[str, Any] | None:
    """None for a file that is not a record."""
    try:
        return question(parse_json(path.read_bytes()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _own_digest(loaded: "TrainedModel", split: str, digest: str) -> str:
    """The digest of the test set in the run's own config; if its text is missing, equal specs count as
    equal text.
    """
    own_config, config = loaded.stored, loaded.config
    specs = [
        (config_lib.parse_valid_sets(c.data.valid) | config_lib.parse_test_sets(c.data.test)).get(split)
        for c in (own_config, config)
    ]
    same_root = own_config.data.root == config.data.root
    if specs[0] == specs[1] and same_root and own_config.seed == config.seed:
        return digest
    try:
        return split_source(task_of(own_config), split).fingerprint()
    except (UserError, OSError):
        return digest if specs[0] == specs[1] else ""


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


def task_of_record(record: dict[str, Any]) -> Task:
    """The task of a record with its settings. Raises UserError for a task that this version does not have."""
    keys = {item.name for item in dataclasses.fields(Data)}
    data = Data(**{key: value for key, value in record["config"]["data"].items() if key in keys})
    config = Config(data=data, eval=Eval(sacrebleu_tokenizer=tokenizer_of_record(record)))
    return make_task(config)


def tokenizer_of_record(record: dict[str, Any]) -> str:
    """sacreBLEU's tokenizer in a record; 13a in records from before eval.sacrebleu_tokenizer existed."""
    setting = record["config"].get("eval", {}).get("sacrebleu_tokenizer", "13a")
    return tokenizer_of(setting, record["config"]["data"].get("target_language", Data.target_language))
