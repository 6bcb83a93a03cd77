"""Results of a sweep: the scores of its trials, and each row's mean, spread and significance."""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from t2t_flax.config import Config, parse_test_sets, parse_valid_sets
from t2t_flax.config.keys import SCORES, TRANSLATIONS
from t2t_flax.config.named_sources import VALID_PREFIX
from t2t_flax.config.renamed import upgraded
from t2t_flax.config.schema import fields, keys_that_change
from t2t_flax.errors import UserError
from t2t_flax.evaluation import significance
from t2t_flax.evaluation.compare import SeedPairs, check_comparable, compare_seeds, pair_seeds
from t2t_flax.evaluation.records import read_record, task_of_record, texts
from t2t_flax.evaluation.significance import LEVEL, multipliers, resamples_for, seed_variance
from t2t_flax.monitoring.metrics_writer import read_metrics
from t2t_flax.sweeps.folder import COMPLETE, Folder
from t2t_flax.sweeps.trials import folder_name
from t2t_flax.tasks import lower_is_better, task_of
from t2t_flax.tasks.metrics import model_metrics


@dataclasses.dataclass(frozen=True)
class Result:
    """One complete trial. score: None without one. record: path of its evaluation record, empty if the config has no test
    set. problem: why the record cannot be used (missing, damaged, or made with other settings).
    """

    name: str
    row: str
    seed: int
    score: float | None = None
    record: str = ""
    steps: int = 0
    seconds: float = 0.0
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    """The trials of a row. spread: standard deviation over seeds (n - 1), None for one seed. comparison: of `compare_seeds`
    with the baseline on the seeds that both have, corrected for the table; None for the baseline itself, or without
    records. problem: why the row cannot be compared.
    """

    name: str
    overrides: dict[str, str]
    trials: tuple[str, ...]
    states: dict[str, int]
    results: tuple[Result, ...]
    mean: float | None = None
    spread: float | None = None
    comparison: dict[str, Any] | None = None
    problem: str = ""


class MissingScore(UserError):
    """A record does not have the requested score."""


def default_score(config: Config) -> str:
    """The task's main score on the test set; without a test set the validation loss."""
    return task_of(config).primary_metric.name if config.data.test else "valid_nll"


def check_score(name: str, config: Config) -> None:
    """Raises UserError if a run of this config will not have the score. `SET:score` is that of a named test set,
    `valid_score/SET` of one of several validation sets.
    """
    test_set, _, name = name.rpartition(":")
    test_sets = parse_test_sets(config.data.test)
    if test_set and name.startswith("valid_"):
        raise UserError(
            f"{name} is a score of config.data.valid, the mean over all its sets: use --score={name}, or --score={name}/SET for "
            "that of one set."
        )
    if name.startswith("valid_"):
        name, slash, valid_set = name.partition("/")
        valid_sets = [
            each.removeprefix(VALID_PREFIX) for each in parse_valid_sets(config.data.valid) if each != "valid"
        ]
        if slash and valid_set not in valid_sets:
            names = ", ".join(valid_sets) or "no sets with names"
            raise UserError(f"there is no score {name}/{valid_set}: config.data.valid has {names}.")
    if test_set and test_set not in test_sets:
        names = ", ".join(test_sets) or "no test set"
        raise UserError(f"there is no score {test_set}:{name}: config.data.test has {names}.")
    task = task_of(config)
    final = task.record_metrics()
    with_loss, decoded = (
        [f"valid_{metric.training_name}" for metric in metrics]
        for metrics in (model_metrics(), task.validation_metrics())
    )
    if name not in (*final, *with_loss, *decoded):
        scores = ", ".join([*final, *with_loss, *decoded])
        raise UserError(f"there is no score {name!r} for data.task = {config.data.task}; the scores are {scores}.")
    if name in final and not config.data.test:
        raise UserError(f"the score {name} needs a test set, and config.data.test is empty.")
    if name not in final and not config.data.valid:
        raise UserError(f"the score {name} needs a validation set, and config.data.valid is empty.")
    if name in with_loss and not (config.eval.every_steps or config.eval.every_epochs):
        raise UserError(f"the score {name} needs config.eval.every_steps or eval.every_epochs.")
    if name in decoded and not config.eval.decode_every_steps:
        raise UserError(f"the score {name} needs config.eval.decode_every_steps.")


def trial_score(folder: Folder, name: str, metric: str) -> float | None:
    """A score of a complete trial: from its final record (`SET:score`: the record of that test set, else of the first), or
    for `valid_...` the best evaluation during training.

    Raises UserError for a record that cannot be read, MissingScore for a score or test set that it does not have.
    """
    if metric.startswith("valid_"):
        values = [line[metric] for line in read_metrics(folder.workdir(name)) if metric in line]
        values = [value for value in values if math.isfinite(value)]
        return (min(values) if lower_is_better(metric) else max(values)) if values else None
    path, metric = _record_path(folder, name, metric), metric.rpartition(":")[2]
    if not path:
        return None
    with _damage_as_user_error(path):
        scores = read_record(path).get("scores", {})
        if metric not in scores:
            raise MissingScore(f"{path} has no score {metric!r}; it has {', '.join(scores)}.")
        value = scores[metric]["score"] if isinstance(scores[metric], dict) else scores[metric]
        return float(value) if value is not None and math.isfinite(value) else None


def results(folder: Folder, sweep: dict[str, Any], metric: str) -> list[Result]:
    """The complete trials in the order of the sweep; a record that cannot be used is a `problem` of its result.

    Raises UserError for a score that no trial has.
    """
    complete, missing = [], None
    for name, trial in sweep["trials"].items():
        if folder.state(name) != COMPLETE:
            continue
        values: dict[str, Any] = {}
        try:
            if metric.startswith("valid_"):
                values["score"] = trial_score(folder, name, metric)
            marker = _read_marker(folder, name)
            with _damage_as_user_error(folder.workdir(name) / "complete.json"):
                values["steps"] = int(marker["step"])
                values["seconds"] = round(sum(marker.get("seconds", {}).values()), 1)
            values["record"] = _record_path(folder, name, metric)
            if values["record"]:
                _check_record(folder, name, values["record"], metric)
            values.setdefault("score", trial_score(folder, name, metric))
        except UserError as error:
            values["problem"] = str(error)
            missing = error if isinstance(error, MissingScore) else missing
        complete.append(Result(name, trial["row"], trial["seed"], **values))
    if missing and all(result.score is None for result in complete):
        raise missing
    return complete


def _check_record(folder: Folder, name: str, path: str, metric: str) -> None:
    """Raises UserError for a record that is damaged, has lost its texts, or was made with other settings than the trial's."""
    with _damage_as_user_error(folder.config(name)):
        config = upgraded(json.loads(folder.config(name).read_text()))
    with _damage_as_user_error(path):
        record = read_record(path)
        if changed := _changed_settings(config, record["config"]):
            averaged = record.get("checkpoint", {}).get("averaged", [])
            command = f"python -m t2t_flax evaluate --workdir={folder.workdir(name)}"
            command += f" --average={len(averaged)}" if len(averaged) > 1 else ""
            command += " --best" if (record.get("checkpoint", {}).get("asked") or {}).get("best") else ""
            raise UserError(
                f"{path} was made with {'; '.join(changed)}: move it away and run `{command}` to restore the trial's record."
            )
        if metric in task_of_record(record).comparable_names:
            texts(record, path)


def _changed_settings(config: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """The settings of the evaluation in which a record's config differs from the trial's."""
    keys = [name.split(".") for name in keys_that_change(TRANSLATIONS, SCORES) if fields()[name].metadata["mutable"]]
    return [
        f"{group}.{key} = {record[group][key]} (the trial has {config[group][key]})"
        for group, key in keys
        if key in record.get(group, {}) and key in config.get(group, {}) and record[group][key] != config[group][key]
    ]


def _record_path(folder: Folder, name: str, metric: str) -> str:
    """The path of a trial's final record of the metric's test set; empty if its config has no test set."""
    path, test_set = folder.workdir(name) / "complete.json", metric.rpartition(":")[0]
    marker = _read_marker(folder, name)
    with _damage_as_user_error(path):
        file = (marker.get("records", {}).get(test_set) if test_set else marker.get("record")) or ""
        if test_set and not file:
            raise MissingScore(f"{folder.workdir(name)} has no record of the test set {test_set!r}.")
        if os.path.basename(file) != file:
            raise UserError(f"{path} has the record {file}: expected the name of a file in eval/.")
    return str(folder.workdir(name) / "eval" / file) if file else ""


def _read_marker(folder: Folder, name: str) -> dict[str, Any]:
    """A trial's complete.json. Raises UserError if it is damaged."""
    path = folder.workdir(name) / "complete.json"
    with _damage_as_user_error(path):
        marker = json.loads(path.read_text())
        if not isinstance(marker, dict):
            raise ValueError("not an object")
    return marker


@contextlib.contextmanager
def _damage_as_user_error(path: str | os.PathLike) -> Iterator[None]:
    """Turns whatever reading a truncated or damaged file raises into a UserError with the file's name."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be used ({type(error).__name__}: {error}).") from None


def learning_curve(folder: Folder, name: str) -> list[tuple[int, float]]:
    """(update, validation nll) of a trial so far."""
    lines = read_metrics(folder.workdir(name))
    return [(line["step"], line["valid_nll"]) for line in lines if math.isfinite(line.get("valid_nll", math.nan))]


def rows(folder: Folder, sweep: dict[str, Any], metric: str, baseline: str = "") -> tuple[list[Row], str]:
    """The rows of the sweep, best first, and the name of the row that the others are compared with: `baseline`, or the best.
    Raises UserError if `baseline` is not a row.
    """
    names = list(dict.fromkeys(trial["row"] for trial in sweep["trials"].values()))
    reference = baseline and folder_name(baseline)
    if reference and reference not in names:
        raise UserError(f"there is no row {baseline!r} to compare with; the rows are {', '.join(names)}.")
    complete = results(folder, sweep, metric)
    table = [_row(folder, sweep, name, complete) for name in names]
    sign = 1 if lower_is_better(metric) else -1
    table.sort(key=lambda row: math.inf if row.mean is None else sign * row.mean)
    if not reference and table and table[0].mean is not None:
        reference = table[0].name
    base = next((row for row in table if row.name == reference), None)
    if base:
        table = _compare_rows(table, base, metric, named=bool(baseline))
    return table, reference


def _row(folder: Folder, sweep: dict[str, Any], name: str, complete: list[Result]) -> Row:
    trials = {n: t for n, t in sweep["trials"].items() if t["row"] == name}
    states = [folder.displayed_state(n) for n in trials]
    row_results = tuple(result for result in complete if result.row == name)
    scores = [result.score for result in row_results if result.score is not None]
    seed_keys = {key for t in trials.values() for key in t["overrides"] if key.startswith("seed.") and t["seed"]}
    overrides = {k: v for k, v in next(iter(trials.values()))["overrides"].items() if k not in seed_keys}
    return Row(
        name,
        overrides,
        tuple(trials),
        {state: states.count(state) for state in dict.fromkeys(states)},
        row_results,
        mean=float(np.mean(scores)) if scores else None,
        spread=float(np.std(scores, ddof=1)) if len(scores) > 1 else None,
    )


def _compare_rows(table: list[Row], base: Row, metric: str, *, named: bool) -> list[Row]:
    """Adds `comparison` to the rows that share a seed with `base`. The spread over seeds is estimated from all of them
    together, because a few seeds of one row give a poor estimate. named: the user chose `base`; otherwise it is the best row.
    """
    paired, problems, count = {}, {}, len(table) - 1
    one_seed = all(len(row.results) < 2 for row in table)  # with more, the draws over seeds resolve small p-values
    resamples = resamples_for((count if named else count * (count + 1) // 2) * one_seed)
    for row in table:
        seeds = [] if row is base else _shared_seeds(row, base)
        unusable = [r.problem for r in row.results if r.problem and r.score is None]
        try:
            if unusable:
                problems[row.name] = unusable[0]
            elif seeds:
                paired[row.name] = seeds, _pair(row, base, seeds, metric, resamples)
        except UserError as error:  # such as another test set; the other rows are compared all the same
            problems[row.name] = str(error)
    comparable = [row for row in table if row is base or row.name in paired]
    scores = {(r.row, r.seed): r.score for row in comparable for r in row.results if r.score is not None}
    spread = seed_variance(scores)
    _, freedom = spread
    paired = {name: (seeds, pairs) for name, (seeds, pairs) in paired.items() if freedom or len(pairs.differences)}
    p_values = [compare_seeds(pairs, spread)["p_value"] for _, pairs in paired.values()]
    comparisons = {
        name: compare_seeds(pairs, spread, factor) | {"seeds": seeds}
        for (name, (seeds, pairs)), factor in zip(paired.items(), multipliers(p_values, holm=named), strict=True)
    }
    return [
        dataclasses.replace(row, comparison=comparisons.get(row.name), problem=problems.get(row.name, ""))
        for row in table
    ]


def _shared_seeds(row: Row, base: Row) -> list[int]:
    a, b = ({r.seed for r in side.results if r.score is not None} for side in (row, base))
    return sorted(a & b)


def _pair(row: Row, base: Row, seeds: list[int], metric: str, resamples: int) -> SeedPairs:
    """Both rows' scores on these seeds, resampled over sentences if the score can be. Raises UserError if their records are
    not comparable.
    """
    a, b = ({r.seed: r for r in side.results} for side in (row, base))
    pairs = [(a[seed], b[seed]) for seed in seeds]
    records = [(x.record, y.record) for x, y in pairs if x.record and y.record]
    if len(records) == len(pairs) and not metric.startswith("valid_"):
        score = metric.rpartition(":")[2]
        if score in task_of_record(read_record(records[0][0])).comparable_names:
            return pair_seeds(records, score=score, resamples=resamples)
        for x, y in records:
            check_comparable(read_record(x), read_record(y), x, y)
    return SeedPairs(metric, np.array([[x.score, y.score] for x, y in pairs]))


def format_difference(row: Row) -> str:
    """A row's comparison as a table cell, `-0.41 [-0.92, +0.08] p 0.1`, with interval and p corrected for the table."""
    comparison = row.comparison
    if not comparison:
        return "see the note" if row.problem else ""
    interval, digits = comparison["interval_corrected"], 2 if abs(comparison["a"]) >= 10 else 4
    ends = interval["low"], interval["high"]
    return significance.format_difference(comparison["difference"], *ends, comparison["p_corrected"], digits)


def verdict(row: Row, reference: str, names: Sequence[str] = ("better", "worse", "no clear difference")) -> str:
    """Whether the row differs from the reference row, at 5% for the whole table."""
    if row.name == reference:
        return "compared with"
    if not row.comparison:
        return ""
    if row.comparison["p_corrected"] >= LEVEL:
        return names[2]
    better = (row.comparison["difference"] > 0) != lower_is_better(row.comparison["score"])
    return names[0] if better else names[1]
