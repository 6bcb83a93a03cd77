"""What the trials of a sweep found: their scores and curves, and each row's mean, spread and significance."""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from t2t_flax.errors import UserError
from t2t_flax.evaluation.compare import check_comparable, read_record, task_of_record
from t2t_flax.evaluation.compare_seeds import Paired, compare_seeds, pair_seeds, spread_over_seeds, told
from t2t_flax.sweeps.folder import COMPLETE, ENDED, Folder
from t2t_flax.sweeps.space import minimized
from t2t_flax.sweeps.trials import folder_name
from t2t_flax.telemetry.metrics import read_metrics


@dataclasses.dataclass(frozen=True)
class Result:
    """One complete trial. record: its path, or none where the config names no test set. score: None where it has none.
    changed: why its record is not that of the trial.
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
    against: of `compare_seeds` with the baseline on the `seeds` that both have, and `p_corrected`; None for the baseline
    itself, or without records. apart: why it cannot be compared.
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


def trial_score(folder: Folder, name: str, metric: str) -> float | None:
    """A score of a complete trial: of its final record, or for `valid_...` the best of the evaluations in training.

    Raises UserError for a score that the record does not have.
    """
    if metric.startswith("valid_"):
        values = [line[metric] for line in read_metrics(folder.workdir(name)) if metric in line]
        values = [value for value in values if math.isfinite(value)]
        return (min(values) if minimized(metric) else max(values)) if values else None
    path = _record(folder, name)
    if not path:
        return None
    scores = read_record(path)["scores"]
    if metric not in scores:
        raise UserError(f"{path} has no score {metric!r}; it has {', '.join(scores)}.")
    value = scores[metric]
    value = value["score"] if isinstance(value, dict) else value
    return float(value) if value is not None and math.isfinite(value) else None


def results(folder: Folder, described: dict[str, Any], metric: str) -> list[Result]:
    """The complete trials, in the order of the sweep."""
    found = []
    for name, trial in described["trials"].items():
        if folder.state(name) != COMPLETE:
            continue
        marker = json.loads((folder.workdir(name) / "complete.json").read_text())
        seconds = round(sum(marker.get("seconds", {}).values()), 1)
        record = _record(folder, name)
        changed = _changed(folder, name, record) if record else ""
        score = None if changed and not metric.startswith("valid_") else trial_score(folder, name, metric)
        found.append(Result(name, trial["row"], trial["seed"], score, record, marker["step"], seconds, changed))
    return found


def _changed(folder: Folder, name: str, path: str) -> str:
    """Why a record is not that of the trial: it was made again with other settings. Empty where it is."""
    own, made = json.loads(folder.config(name).read_text()), read_record(path)
    record, averaged = made["config"], made.get("checkpoint", {}).get("averaged", [])
    keys = [("data", "root"), ("data", "test"), *(("decode", key) for key in own["decode"])]
    differ = [
        f"{group}.{key} = {record[group][key]}, the trial's is {own[group][key]}"
        for group, key in keys
        if key in record.get(group, {}) and key in own[group] and record[group][key] != own[group][key]
    ]
    again = f"python -m t2t_flax evaluate --workdir={folder.workdir(name)}"
    again += f" --average={len(averaged)}" if len(averaged) > 1 else ""
    return f"{path} was made with {'; '.join(differ)}: `{again}` makes the trial's own again" if differ else ""


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
    sign = 1 if minimized(metric) else -1
    table.sort(key=lambda row: math.inf if row.mean is None else sign * row.mean)
    chosen = baseline or (table[0].name if table and table[0].mean is not None else "")
    base = next((row for row in table if row.name == chosen), None)
    if base:
        table = _corrected(_compared(table, base, metric), named=bool(baseline))
    return table, chosen


def shown_state(folder: Folder, name: str) -> str:
    """`running` where a worker trains it now, else its state."""
    state = folder.state(name)
    return "running" if state not in ENDED and folder.holder(name) else state


def _compared(table: list[Row], base: Row, metric: str) -> list[Row]:
    """With `against` where a row shares a seed with `base`. The spread over seeds is that of all these rows: few seeds of one
    row know little of their own.
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
    against = {
        name: compare_seeds(pairs, spread) | {"seeds": seeds}
        for name, (seeds, pairs) in paired.items()
        if spread[1] or len(pairs.resampled)
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
        if metric in task_of_record(read_record(records[0][0])).spoken:
            return pair_seeds(records, score=metric)
        for a, b in records:
            check_comparable(read_record(a), read_record(b), a, b)
    return Paired(metric, np.array([[a.score, b.score] for a, b in pairs]))


def _corrected(table: list[Row], *, named: bool) -> list[Row]:
    """With `p_corrected`: see `corrected`."""
    compared = [row for row in table if row.against]
    found = corrected([row.against["p_value"] for row in compared], named=named)
    against = {
        row.name: row.against | {"p_corrected": float(f"{p_value:.4g}")}
        for row, p_value in zip(compared, found, strict=True)
    }
    return [dataclasses.replace(row, against=against.get(row.name)) for row in table]


def corrected(p_values: Sequence[float], *, named: bool) -> list[float]:
    """p-values corrected for the number of comparisons: Holm's for rows against a named one; against the best, which was
    chosen among all pairs, Bonferroni's for all pairs.
    """
    count, found, largest = len(p_values), [1.0] * len(p_values), 0.0
    for i, n in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, p_values[n] * (count - i if named else count * (count + 1) // 2)))
        found[n] = largest
    return found


def _record(folder: Folder, name: str) -> str:
    marker = json.loads((folder.workdir(name) / "complete.json").read_text())
    return str(folder.workdir(name) / "eval" / marker["record"]) if marker["record"] else ""


def told_difference(row: Row) -> str:
    """A row's comparison in a table's cell: `-0.41 [-0.92, +0.08] p 0.1` (corrected); where there is none, why is in `apart`."""
    against = row.against
    if not against:
        return "see the note" if row.apart else ""
    ends, digits = against["interval"], 2 if abs(against["a"]) >= 10 else 4
    return told(against["difference"], ends["low"], ends["high"], against["p_corrected"], digits)


def verdict(row: Row, chosen: str, names: Sequence[str] = ("better", "worse", "no clear difference")) -> str:
    """Whether the row differs from the one it is compared with, at 5 % for the whole table."""
    if row.name == chosen:
        return "compared with"
    if not row.against:
        return ""
    if row.against["p_corrected"] >= 0.05:
        return names[2]
    better = (row.against["difference"] > 0) != minimized(row.against["score"])
    return names[0] if better else names[1]
