"""What the trials of a sweep found: their scores and curves, and each row's mean, spread and significance."""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from t2t_flax.config.renamed import upgraded
from t2t_flax.errors import UserError
from t2t_flax.evaluation.compare import check_comparable, read_record, task_of_record, texts
from t2t_flax.evaluation.compare_seeds import Paired, compare_seeds, pair_seeds, spread_over_seeds, told
from t2t_flax.evaluation.metrics import NO_SCORE, lower_is_better
from t2t_flax.evaluation.significance import LEVEL, multipliers
from t2t_flax.monitoring.metrics_writer import read_metrics
from t2t_flax.sweeps.folder import COMPLETE, ENDED, Folder
from t2t_flax.sweeps.trials import folder_name


@dataclasses.dataclass(frozen=True)
class Result:
    """One complete trial. record: its path, or none where the config names no test set. score: None where it has none.
    changed: why its record cannot be used: it is missing, damaged, or not that of the trial.
    """

    name: str
    row: str
    seed: int
    score: float | None
    record: str
    steps: int
    seconds: float
    changed: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    """A row's trials together. trials: their names. spread: standard deviation over seeds (n - 1); None for one seed.
    against: of `compare_seeds` with the baseline on the `seeds` that both have, corrected for the table; None for the
    baseline itself, or without records. apart: why it cannot be compared.
    """

    name: str
    overrides: dict[str, str]
    trials: tuple[str, ...]
    states: dict[str, int]
    results: tuple[Result, ...]
    mean: float | None = None
    spread: float | None = None
    against: dict[str, Any] | None = None
    apart: str = ""


class NoSuchScore(UserError):
    """A record that does not have the score that is asked for."""


def trial_score(folder: Folder, name: str, metric: str) -> float | None:
    """A score of a complete trial: of its final record (`SET:score`: of that of a named test set, else of the first), or for
    `valid_...` the best of the evaluations in training.

    Raises UserError for a record that cannot be read, NoSuchScore for a score or a test set that it does not have.
    """
    if metric.startswith("valid_"):
        values = [line[metric] for line in read_metrics(folder.workdir(name)) if metric in line]
        values = [value for value in values if math.isfinite(value)]
        return (min(values) if lower_is_better(metric) else max(values)) if values else None
    path, metric = _record(folder, name, metric), metric.rpartition(":")[2]
    if not path:
        return None
    with _readable(path):
        scores = read_record(path).get("scores", {})
        if metric not in scores:
            raise NoSuchScore(f"{path} has no score {metric!r}; it has {', '.join(scores)}.")
        value = scores[metric]["score"] if isinstance(scores[metric], dict) else scores[metric]
        return float(value) if value is not None and math.isfinite(value) else None


def results(folder: Folder, described: dict[str, Any], metric: str) -> list[Result]:
    """The complete trials, in the order of the sweep; one whose record cannot be used says why in `changed`.

    Raises UserError for a score that no trial has.
    """
    found, unknown = [], None
    for name, trial in described["trials"].items():
        if folder.state(name) != COMPLETE:
            continue
        score, record, steps, seconds, changed = None, "", 0, 0.0, ""
        in_training = metric.startswith("valid_")
        try:
            score = trial_score(folder, name, metric) if in_training else None
            marker = _marker(folder, name)
            with _readable(folder.workdir(name) / "complete.json"):
                steps, seconds = int(marker["step"]), round(sum(marker.get("seconds", {}).values()), 1)
            record = _record(folder, name, metric)
            if record:
                _check_record(folder, name, record, metric)
            score = score if in_training else trial_score(folder, name, metric)
        except UserError as error:
            changed = str(error)
            unknown = error if isinstance(error, NoSuchScore) else unknown
        found.append(Result(name, trial["row"], trial["seed"], score, record, steps, seconds, changed))
    if unknown and all(result.score is None for result in found):
        raise unknown
    return found


def _check_record(folder: Folder, name: str, path: str, metric: str) -> None:
    """Raises UserError for a record that is damaged, has lost its texts, or was made again with other settings."""
    with _readable(folder.config(name)):
        own = upgraded(json.loads(folder.config(name).read_text()))
    with _readable(path):
        record = read_record(path)
        changed = _changed(folder, name, path, own, record)
        if changed:
            raise UserError(changed)
        if metric in task_of_record(record).spoken:
            texts(record, path)


@contextlib.contextmanager
def _readable(path: str | os.PathLike) -> Iterator[None]:
    """Whatever a file that was cut short or damaged makes of a reading becomes a UserError with the file's name."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be used ({type(error).__name__}: {error}).") from None


def _changed(folder: Folder, name: str, path: str, own: dict[str, Any], made: dict[str, Any]) -> str:
    """Why a record is not that of the trial with config `own`: it was made again with other settings. Empty where it is."""
    record, averaged = made["config"], made.get("checkpoint", {}).get("averaged", [])
    keys = [("decode", key) for key in own["decode"] if f"decode.{key}" not in NO_SCORE]
    keys.append(("eval", "sacrebleu_tokenizer"))  # of another text the record has another name
    differ = [
        f"{group}.{key} = {record[group][key]}, the trial's is {own[group][key]}"
        for group, key in keys
        if key in record.get(group, {}) and key in own.get(group, {}) and record[group][key] != own[group][key]
    ]
    again = f"python -m t2t_flax evaluate --workdir={folder.workdir(name)}"
    again += f" --average={len(averaged)}" if len(averaged) > 1 else ""
    again += " --best" if (made.get("checkpoint", {}).get("asked") or {}).get("best") else ""
    return (
        f"{path} was made with {'; '.join(differ)}: move it away, and `{again}` makes the trial's own again"
        if differ
        else ""
    )


def curve(folder: Folder, name: str) -> list[tuple[int, float]]:
    """(update, validation nll) of a trial so far."""
    lines = read_metrics(folder.workdir(name))
    return [(line["step"], line["valid_nll"]) for line in lines if math.isfinite(line.get("valid_nll", math.nan))]


def rows(folder: Folder, described: dict[str, Any], metric: str, baseline: str = "") -> tuple[list[Row], str]:
    """The rows of the sweep with the best first, and the name of the one that the others are compared with: `baseline`,
    or the best. Raises UserError for a baseline that is no row.
    """
    names = list(dict.fromkeys(trial["row"] for trial in described["trials"].values()))
    baseline = baseline and folder_name(baseline)
    if baseline and baseline not in names:
        raise UserError(f"there is no row {baseline!r} to compare with; rows: {', '.join(names)}.")
    complete = results(folder, described, metric)
    table = []
    for name in names:
        trials = {n: t for n, t in described["trials"].items() if t["row"] == name}
        states = [shown_state(folder, n) for n in trials]
        own = tuple(r for r in complete if r.row == name)
        scores = [r.score for r in own if r.score is not None]
        seeds = {key for t in trials.values() for key in t["overrides"] if key.startswith("seed.") and t["seed"]}
        overrides = {k: v for k, v in next(iter(trials.values()))["overrides"].items() if k not in seeds}
        mean = float(np.mean(scores)) if scores else None
        spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
        counted = {state: states.count(state) for state in dict.fromkeys(states)}
        table.append(Row(name, overrides, tuple(trials), counted, own, mean, spread))
    sign = 1 if lower_is_better(metric) else -1
    table.sort(key=lambda row: math.inf if row.mean is None else sign * row.mean)
    chosen = baseline or (table[0].name if table and table[0].mean is not None else "")
    base = next((row for row in table if row.name == chosen), None)
    if base:
        table = _compared(table, base, metric, named=bool(baseline))
    return table, chosen


def shown_state(folder: Folder, name: str) -> str:
    """`running` where a worker trains it now, else its state."""
    state = folder.state(name)
    return "running" if state not in ENDED and folder.holder(name) else state


def _compared(table: list[Row], base: Row, metric: str, *, named: bool) -> list[Row]:
    """With `against` where a row shares a seed with `base`. The spread over seeds is that of all these rows: few seeds of one
    row know little of their own. named: somebody named `base`, it was not chosen as the best.
    """
    paired, apart = {}, {}
    for row in table:
        seeds = [] if row is base else _shared_seeds(row, base)
        changed = [r.changed for r in row.results if r.changed and r.score is None]
        try:
            if changed:
                apart[row.name] = changed[0]
            elif seeds:
                paired[row.name] = seeds, _paired(row, base, seeds, metric)
        except UserError as error:  # of another test set: the other rows are told all the same
            apart[row.name] = str(error)
    alike = [row for row in table if row is base or row.name in paired]
    spread = spread_over_seeds({(r.row, r.seed): r.score for row in alike for r in row.results if r.score is not None})
    paired = {name: of for name, of in paired.items() if spread[1] or len(of[1].resampled)}
    factors = multipliers([compare_seeds(pairs, spread)["p_value"] for _, pairs in paired.values()], named=named)
    against = {
        name: compare_seeds(pairs, spread, factor) | {"seeds": seeds}
        for (name, (seeds, pairs)), factor in zip(paired.items(), factors, strict=True)
    }
    return [dataclasses.replace(row, against=against.get(row.name), apart=apart.get(row.name, "")) for row in table]


def _shared_seeds(row: Row, base: Row) -> list[int]:
    own, other = ({r.seed for r in side.results if r.score is not None} for side in (row, base))
    return sorted(own & other)


def _paired(row: Row, base: Row, seeds: list[int], metric: str) -> Paired:
    """Both rows' scores on these seeds, resampled over sentences where the score can be. Raises UserError where the rows
    cannot be compared.
    """
    own, other = ({r.seed: r for r in side.results} for side in (row, base))
    pairs = [(own[seed], other[seed]) for seed in seeds]
    records = [(a.record, b.record) for a, b in pairs if a.record and b.record]
    if len(records) == len(pairs) and not metric.startswith("valid_"):
        score = metric.rpartition(":")[2]
        if score in task_of_record(read_record(records[0][0])).spoken:
            return pair_seeds(records, score=score)
        for a, b in records:
            check_comparable(read_record(a), read_record(b), a, b)
    return Paired(metric, np.array([[a.score, b.score] for a, b in pairs]))


def _record(folder: Folder, name: str, metric: str) -> str:
    """The path of a trial's final record, of the test set that the metric names; empty where its config names no test set."""
    marker, test_set = _marker(folder, name), metric.rpartition(":")[0]
    with _readable(folder.workdir(name) / "complete.json"):
        file = (marker.get("records", {}).get(test_set) if test_set else marker.get("record")) or ""
    if test_set and not file:
        raise NoSuchScore(f"{folder.workdir(name)} has no record of the test set {test_set!r}.")
    with _readable(folder.workdir(name) / "complete.json"):
        if os.path.basename(file) != file:
            raise UserError(f"{folder.workdir(name) / 'complete.json'} names {file} as its record: that lies in eval/.")
    return str(folder.workdir(name) / "eval" / file) if file else ""


def _marker(folder: Folder, name: str) -> dict[str, Any]:
    """What a complete trial says of its end. Raises UserError where that is damaged."""
    path = folder.workdir(name) / "complete.json"
    with _readable(path):
        marker = json.loads(path.read_text())
        if not isinstance(marker, dict):
            raise ValueError("not an object")
    return marker


def told_difference(row: Row) -> str:
    """A row's comparison in a table's cell: `-0.41 [-0.92, +0.08] p 0.1`, interval and p corrected for the table; where there
    is none, why is in `apart`.
    """
    against = row.against
    if not against:
        return "see the note" if row.apart else ""
    ends, digits = against["interval_corrected"], 2 if abs(against["a"]) >= 10 else 4
    return told(against["difference"], ends["low"], ends["high"], against["p_corrected"], digits)


def verdict(row: Row, chosen: str, names: Sequence[str] = ("better", "worse", "no clear difference")) -> str:
    """Whether the row differs from the one it is compared with, at 5 % for the whole table."""
    if row.name == chosen:
        return "compared with"
    if not row.against:
        return ""
    if row.against["p_corrected"] >= LEVEL:
        return names[2]
    better = (row.against["difference"] > 0) != lower_is_better(row.against["score"])
    return names[0] if better else names[1]
