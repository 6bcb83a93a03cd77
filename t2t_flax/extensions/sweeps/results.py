"""Scores of the trials of a sweep."""

import contextlib
import hashlib
import math
import os
from collections.abc import Iterator
from typing import Any

from t2t_flax.config import Config
from t2t_flax.config.data_keys import VALID_PREFIX
from t2t_flax.errors import UserError
from t2t_flax.extensions.sweeps.compare import read_record
from t2t_flax.extensions.sweeps.folder import Folder
from t2t_flax.json_file import parse_json
from t2t_flax.tasks import NAMES_IN_RECORDS, find_metric, lower_is_better, model_metrics, task_of
from t2t_flax.training.progress import read_metrics


class MissingScore(UserError):
    """Error for a record without the requested score."""


def default_score(config: Config) -> str:
    """Return the validation score that selects checkpoints, or the loss.

    If the trials evaluate neither, it is the task's main score on the test set.
    """
    return validation_score(config) or (
        task_of(config).metrics[0].name if config.data.test else "valid_nll"
    )


def validation_score(config: Config) -> str:
    """Return `valid_NAME` of eval.metric or of nll.

    It is the first that a run of this config will have. Empty if it will have neither. The loss is
    not used, since label smoothing changes it: rows would be compared by different measures.
    """
    metric = config.eval.metric if config.eval.metric != "loss" else "nll"
    for name in (f"valid_{metric}", "valid_nll"):
        with contextlib.suppress(UserError):
            check_score(name, config)
            return name
    return ""


def check_score(name: str, config: Config) -> None:
    """Raise UserError if a run of this config will not have the score.

    `SET:score` is the score on a named test set, `valid_score/SET` on one of several validation
    sets.
    """
    task, split = task_of(config), "valid" if name.startswith("valid_") else "test"
    final = [metric.name for metric in task.metrics] + list(NAMES_IN_RECORDS.values())
    with_loss = [f"valid_{metric.training_name}" for metric in model_metrics()]
    decoded = [f"valid_{metric.training_name}" for metric in task.validation_metrics()]
    if split == "valid":
        score, _, of_set = name.partition("/")
        sets = [
            each.removeprefix(VALID_PREFIX) for each in config.data.valid_sets if each != "valid"
        ]
    else:
        of_set, _, score = name.rpartition(":")
        sets = list(config.data.test_sets)
    if score not in (final if split == "test" else with_loss + decoded):
        scores = ", ".join(final + with_loss + decoded)
        raise UserError(
            f"there is no score {name!r} for data.task = {config.data.task}; the scores are"
            f" {scores}, and of named sets SET:SCORE and valid_SCORE/SET."
        )
    if of_set and of_set not in sets:
        raise UserError(
            f"there is no score {name}: config.data.{split} has"
            f" {', '.join(sets) or 'no sets with names'}."
        )
    if not getattr(config.data, split):
        raise UserError(
            f"the score {name} is of config.data.{split}, and config.data.{split} is empty."
        )
    e, steps = config.eval, config.train.steps
    if score in with_loss and not (0 < e.every_steps <= steps or e.every_epochs):
        raise UserError(
            f"the score {name} needs config.eval.every_epochs, or config.eval.every_steps of 1 to"
            f" {steps} (config.train.steps)."
        )
    if score in decoded and not 0 < e.decode_every_steps <= steps:
        raise UserError(
            f"the score {name} needs config.eval.decode_every_steps of 1 to {steps}"
            " (config.train.steps)."
        )


def trial_score(folder: Folder, name: str, metric: str) -> float | None:
    """Return a score of a complete trial.

    It comes from its final record (`SET:score`: the record of that test set, else of the first), or
    for `valid_...` from the best evaluation during training. Raises UserError for a record that
    cannot be read, MissingScore for a score or test set that it does not have.
    """
    if metric.startswith("valid_"):
        values = [value for _, value in evaluations(folder, name, metric) if math.isfinite(value)]
        return (min(values) if lower_is_better(metric) else max(values)) if values else None
    path, metric = record_path(folder, name, metric), metric.rpartition(":")[2]
    if not path:
        return None
    with _damage_as_user_error(path):
        scores = read_record(path).get("scores", {})
        if metric not in scores:
            raise MissingScore(f"{path} has no score {metric!r}; it has {', '.join(scores)}.")
        value = scores[metric]["score"] if isinstance(scores[metric], dict) else scores[metric]
        return float(value) if value is not None and math.isfinite(value) else None


def is_per_token(score: str) -> bool:
    """Return True if a score is a mean over tokens.

    Such a score does not compare models with different tokenizers.
    """
    return find_metric(model_metrics(), score.partition("/")[0]) is not None


def tokenizer_digest(folder: Folder, name: str) -> str:
    """Return a digest of the tokenizers of a trial."""
    files = sorted((folder.workdir(name) / "tokenizer").glob("*.model"))
    return hashlib.sha256(
        b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)
    ).hexdigest()


def selection_score(sweep: dict[str, Any], metric: str) -> str:
    """Return the score that ranks rows when `metric` is reported.

    It is a score of the validation set, if there is any.
    """
    return metric if metric.startswith("valid_") else sweep["selection"] or metric


def record_path(folder: Folder, name: str, metric: str) -> str:
    """Return the path of a trial's final record of the metric's test set.

    "" if its config has no test set.
    """
    path, test_set = folder.workdir(name) / "complete.json", metric.rpartition(":")[0]
    with _damage_as_user_error(path):
        records = complete_marker(folder, name)["records"]
        file = records.get(test_set, "") if test_set else next(iter(records.values()), "")
        if test_set and not file:
            raise MissingScore(
                f"{folder.workdir(name)} has no record of the test set {test_set!r}."
            )
        if os.path.basename(file) != file:
            raise UserError(f"{path} has the record {file}: expected the name of a file in eval/.")
    return str(folder.workdir(name) / "eval" / file) if file else ""


def complete_marker(folder: Folder, name: str) -> dict[str, Any]:
    """Return a trial's complete.json. Raises UserError if it is damaged."""
    path = folder.workdir(name) / "complete.json"
    with _damage_as_user_error(path):
        marker = parse_json(path.read_text())
        if not isinstance(marker, dict):
            raise ValueError("not an object")
    return marker


@contextlib.contextmanager
def _damage_as_user_error(path: str | os.PathLike) -> Iterator[None]:
    """Turn any error of reading a damaged file into a UserError with the file's name."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be used ({type(error).__name__}: {error}).") from None


def evaluations(folder: Folder, name: str, key: str) -> list[tuple[int, float]]:
    """Return (update, value) for each line of metrics.jsonl that has the key."""
    return [(line["step"], line[key]) for line in read_metrics(folder.workdir(name)) if key in line]
