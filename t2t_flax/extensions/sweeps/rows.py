"""The rows of a sweep: each one's mean, spread and difference from a reference row.

A row is ranked and selected by a score of the validation set, and on the seeds that it shares with the other rows.
"""

import dataclasses
import math
from collections import Counter
from typing import Any

import numpy as np

from t2t_flax.errors import UserError
from t2t_flax.extensions.sweeps.compare import check_comparable, comparable_names, read_record, systems, task_of_record
from t2t_flax.extensions.sweeps.folder import Folder
from t2t_flax.extensions.sweeps.results import Result, record_path, results, selection_score
from t2t_flax.extensions.sweeps.row_differences import (
    LEVEL,
    Difference,
    best_row,
    compare_rows,
    influence,
    mean_interval,
)
from t2t_flax.extensions.sweeps.trials import folder_name
from t2t_flax.tasks import lower_is_better


@dataclasses.dataclass(frozen=True)
class Row:
    """The trials of a row. seeds: that it shares with the other rows; empty if it lacks one of these, and then it is not
    compared. mean, spread: over these seeds (else over those that it has); spread is the standard deviation (n - 1), None
    for one seed. selection: mean of the score by which rows are ranked. selected: this is the best row by it (`best_row`).
    causes: how many seeds diverged or ran out of memory; such a row is ranked behind all others. comparison: with the
    reference row, corrected for the table; None for the reference itself, or without records. problem: why the row cannot
    be compared.
    """

    name: str
    overrides: dict[str, str]
    trials: tuple[str, ...]
    states: dict[str, int]
    results: tuple[Result, ...]
    seeds: tuple[int, ...] = ()
    mean: float | None = None
    spread: float | None = None
    selection: float | None = None
    selected: bool = False
    causes: dict[str, int] = dataclasses.field(default_factory=dict)
    comparison: dict[str, Any] | None = None
    problem: str = ""


def rows(folder: Folder, sweep: dict[str, Any], metric: str, baseline: str = "") -> tuple[list[Row], str]:
    """The rows of the sweep, best first, and the name of the row that the others are compared with: `baseline`, or the
    selected one. Raises UserError if `baseline` is not a row.
    """
    names = list(dict.fromkeys(trial["row"] for trial in sweep["trials"].values()))
    reference = baseline and folder_name(baseline)
    if reference and reference not in names:
        raise UserError(f"there is no row {baseline!r} to compare with; the rows are {', '.join(names)}.")
    complete, selection = results(folder, sweep, metric), selection_score(sweep, metric)
    table = [_row(folder, sweep, name, complete) for name in names]
    seeds = shared_seeds({row.name: set(_usable(row)) for row in table if not row.causes}, reference)
    table = [_on_seeds(row, seeds) for row in table]
    sign = 1 if lower_is_better(selection) else -1
    table.sort(
        key=lambda row: (
            sum(row.causes.values()),
            not row.seeds,
            math.inf if row.selection is None else sign * row.selection,
        )
    )
    if ranked := [row for row in table if row.seeds]:
        scores = np.array([[_usable(row)[seed].selection for seed in seeds] for row in ranked], float)
        selected = ranked[best_row(scores, lower_is_better=lower_is_better(selection))].name
        table = [dataclasses.replace(row, selected=row.name == selected) for row in table]
        # Test sentences had no part in choosing one of several models; but a lucky seed is good on both sets.
        chosen_before = bool(reference) or len(seeds) == 1 and selection != metric
        reference = reference or selected
        table = _compare_rows(table, reference, metric, chosen_before=chosen_before)
    return table, reference


def shared_seeds(seeds: dict[str, set[int]], reference: str = "") -> list[int]:
    """The seeds on which rows are ranked: of the sets of seeds that some row has, the one with which most trials count, which
    are those of the rows that have all of it. seeds: of each row. reference: a row that must have all of them.
    """
    within = seeds.get(reference)
    sets = {frozenset(each if within is None else each & within) for each in seeds.values()}
    counted = {each: len(each) * sum(each <= have for have in seeds.values()) for each in sets}
    return sorted(max(counted, key=lambda each: (counted[each], len(each), sorted(each)), default=()))


def _usable(row: Row) -> dict[int, Result]:
    """The results of a row that count, by seed."""
    return {r.seed: r for r in row.results if r.score is not None and r.selection is not None}


def _row(folder: Folder, sweep: dict[str, Any], name: str, complete: list[Result]) -> Row:
    trials = {n: t for n, t in sweep["trials"].items() if t["row"] == name}
    seed_keys = {key for t in trials.values() for key in t["overrides"] if key.startswith("seed.") and t["seed"]}
    overrides = {k: v for k, v in next(iter(trials.values()))["overrides"].items() if k not in seed_keys}
    return Row(
        name,
        overrides,
        tuple(trials),
        states=dict(Counter(map(folder.displayed_state, trials))),
        results=tuple(result for result in complete if result.row == name),
        causes=dict(Counter(filter(None, map(folder.cause, trials)))),
    )


def _on_seeds(row: Row, seeds: list[int]) -> Row:
    """The row with its mean and spread over these seeds; over its own if it lacks one or a seed diverged."""
    usable = _usable(row)
    ranked = bool(seeds) and not row.causes and usable.keys() >= set(seeds)
    used = [usable[seed] for seed in (seeds if ranked else sorted(usable))]
    if not used:
        return row
    scores = np.array([r.score for r in used], float)
    return dataclasses.replace(
        row,
        seeds=tuple(seeds) if ranked else (),
        mean=float(np.mean(scores)),
        spread=float(np.std(scores, ddof=1)) if len(scores) > 1 else None,
        selection=float(np.mean([r.selection for r in used])),
    )


def _compare_rows(table: list[Row], reference: str, metric: str, *, chosen_before: bool) -> list[Row]:
    """Adds `comparison` to the ranked rows, and `problem` to those that cannot be compared."""
    base = next(row for row in table if row.name == reference)
    scores: dict[str, np.ndarray] = {}
    influences: dict[str, np.ndarray] = {}
    problems = {row.name: r.problem for row in table for r in reversed(row.results) if r.problem and r.score is None}
    for row in (r for r in table if r.seeds and base.seeds):
        try:
            scores[row.name], of_sentences = _scores(row, base, metric)
            if of_sentences is not None:
                influences[row.name] = of_sentences
        except UserError as error:  # such as another test set; the other rows are compared all the same
            problems[row.name] = str(error)
    names, comparisons = list(scores), {}
    sentences = np.array([influences[name] for name in names]) if names and len(influences) == len(names) else None
    if len(names) > 1 and reference in scores and (len(base.seeds) > 1 or sentences is not None):
        lower = lower_is_better(metric)
        differences = compare_rows(
            np.array([scores[name] for name in names]),
            sentences,
            reference=names.index(reference),
            chosen_before=chosen_before,
            lower_is_better=lower,
        )
        for name, difference, spread in zip(names, differences.rows, differences.spread, strict=True):
            if difference:
                pair = scores[name], scores[reference]
                comparisons[name] = _comparison(metric, difference, pair, base.seeds) | {
                    "seed_spread": round(spread, 4)
                }
                comparisons[name] |= {} if sentences is None else {"sentences": sentences.shape[-1]}
                comparisons[name]["chosen_before"] = chosen_before
    return [
        dataclasses.replace(row, comparison=comparisons.get(row.name), problem=problems.get(row.name, ""))
        for row in table
    ]


def _comparison(
    metric: str, difference: Difference, pair: tuple[np.ndarray, np.ndarray], seeds: tuple[int, ...]
) -> dict[str, Any]:
    """A difference as records store it. pair: the scores of the row and of the reference, by seed."""
    interval = lambda low, high: {"level": 0.95, "low": round(low, 4), "high": round(high, 4)}  # noqa: E731
    return {
        "score": metric.rpartition(":")[2],
        "a": round(float(pair[0].mean()), 4),
        "b": round(float(pair[1].mean()), 4),
        "difference": round(difference.difference, 4),
        "interval": interval(difference.low, difference.high),
        "p_value": float(f"{difference.p_value:.4g}"),
        "interval_corrected": interval(difference.low_corrected, difference.high_corrected),
        "p_corrected": float(f"{difference.p_corrected:.4g}"),
        "seeds": list(seeds),
        "pairs": np.stack(pair, 1).round(4).tolist(),
    }


def _scores(row: Row, base: Row, metric: str) -> tuple[np.ndarray, np.ndarray | None]:
    """(scores [seeds], influence [seeds, sentences] or None) of a ranked row. Raises UserError if its records are not
    comparable with those of `base`.
    """
    of_row, of_base = _usable(row), _usable(base)
    chosen = [of_row[seed] for seed in row.seeds]
    scores = np.array([r.score for r in chosen], float)
    anchor = of_base[row.seeds[0]].record
    if metric.startswith("valid_") or not anchor or not all(r.record for r in chosen):
        return scores, None
    score = metric.rpartition(":")[2]
    if score not in comparable_names(task_of_record(read_record(anchor))):
        for r in chosen:
            check_comparable(read_record(r.record), read_record(anchor), r.record, anchor)
        return scores, None
    _, _, (_, *statistics) = systems([anchor, *(r.record for r in chosen)], score)
    influences = np.array([influence(each) for each in statistics])
    return np.array([each.corpus_score for each in statistics]), influences if influences.shape[1] > 1 else None


def test_of_selected(folder: Folder, table: list[Row]) -> str:
    """A sentence with the test score of the selected row; empty without a selected row or test set.
    Raises UserError for records that cannot be used.
    """
    row = next((row for row in table if row.selected), None)
    paths = [record_path(folder, r.name, "") for r in row.results if r.seed in row.seeds] if row else []
    if row is None or not paths or not all(paths):
        return ""
    metric = task_of_record(read_record(paths[0])).metrics[0]
    _, _, statistics = systems(paths, metric.name)
    scores = np.array([each.corpus_score for each in statistics])
    influences = np.array([influence(each) for each in statistics])
    ends = mean_interval(scores, influences if influences.shape[1] > 1 else None)
    source = "sentences and seeds" if len(scores) > 1 else "sentences"
    interval = f", 95% interval [{ends[0]:.2f}, {ends[1]:.2f}] over {source}" if ends else ""
    seeds = f" ({', '.join(f'{score:.2f}' for score in scores)})" if len(scores) > 1 else ""
    return f"Test score of the selected row, {row.name}: {metric.display_name} {scores.mean():.2f}{seeds}{interval}"


def format_difference(row: Row) -> str:
    """A row's comparison as a table cell, `-0.41 [-0.92, +0.08] p 0.1`, with interval and p corrected for the table."""
    comparison = row.comparison
    if not comparison:
        return "see the note" if row.problem else ""
    interval, digits = comparison["interval_corrected"], 2 if abs(comparison["a"]) >= 10 else 4
    difference, low, high = (f"{x:+.{digits}f}" for x in (comparison["difference"], interval["low"], interval["high"]))
    # A smaller p-value mostly reflects the assumed distribution.
    p = f"p {comparison['p_corrected']:.3g}" if comparison["p_corrected"] >= 0.001 else "p < 0.001"
    return f"{difference} [{low}, {high}] {p}"


def verdict(row: Row, reference: str) -> str:
    """Whether the row differs from the reference row, at 5% for the whole table, or why it is not compared."""
    if row.causes:
        count = len(row.trials)
        return ", ".join(f"{n} of {count} seeds {cause}" if count > 1 else cause for cause, n in row.causes.items())
    if row.name == reference:
        return "reference"
    if not row.comparison:
        return "incomplete" if row.mean is not None and not row.seeds else ""
    if row.comparison["p_corrected"] >= LEVEL:
        return "no clear difference"
    better = (row.comparison["difference"] > 0) != lower_is_better(row.comparison["score"])
    return "better" if better else "worse"
