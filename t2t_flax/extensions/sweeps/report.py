"""A sweep's report: a table for the terminal, CSV files, and an HTML page with plots."""

import html
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

from t2t_flax.errors import UserError
from t2t_flax.extensions.sweeps.attempts import CPU, UNKNOWN, device_hours
from t2t_flax.extensions.sweeps.folder import FAILED, Folder, read_sweep
from t2t_flax.extensions.sweeps.plots import Plot, make_plots
from t2t_flax.extensions.sweeps.results import selection_score
from t2t_flax.extensions.sweeps.rows import Row, format_difference, rows, test_of_selected, verdict
from t2t_flax.extensions.sweeps.tables import csv_text, text_table
from t2t_flax.filesystem import atomic_write
from t2t_flax.tasks import lower_is_better

_NUMERIC = ("mean", "spread", "seeds", "chip-hours", "CPU device-hours", "device-hours")
_CSS = """body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse } th, td { text-align: left; padding: .25rem .8rem; border-bottom: 1px solid #ddd }
td.number { text-align: right; font-variant-numeric: tabular-nums } pre { background: #f6f6f6; padding: .6rem; overflow-x: auto }
svg { max-width: 100%; height: auto } figcaption { color: #555 } tr.reference { background: #f2f7ff }"""


def report(path: Path, *, score: str = "", baseline: str = "") -> str:
    """Writes SWEEP/report/table.csv, trials.csv, index.html and (with matplotlib) its plots as SVG; returns the table as
    text. Raises UserError for a folder without a sweep, an unknown score or baseline.
    """
    folder, sweep = Folder(Path(path).absolute()), read_sweep(path)
    score, baseline = score or sweep["score"], baseline or sweep["baseline"]
    table, reference = rows(folder, sweep, score, baseline)
    selection = selection_score(sweep, score)
    hours = {name: device_hours(folder, name) for name in sweep["trials"]}
    unit = _unit_of_hours(hours)
    columns = ("row", *([selection] if selection != score else []), "mean" if selection == score else score)
    columns += ("spread", "seeds", "difference", "verdict", "trials", *([unit] if unit else []))
    lines = [format_row(row, reference, with_selection=selection != score) for row in table]
    if unit:
        lines = [[*line, _number(_total(hours, row.trials))] for line, row in zip(lines, table, strict=True)]
    notes = _notes(table, score, selection, reference, named=bool(baseline)) + _test_note(folder, table, score)
    notes += [_hours_note(folder, hours, unit)] if unit else []
    notes += [f"{row.name}: {row.problem.splitlines()[0]}" for row in table if row.problem]
    plots = make_plots(folder, table, score, reference)
    marked = [row.name == reference for row in table]
    parts = [f"<h2>{_escape(score)}</h2>", _html_table(columns, lines, marked)]
    parts += [f"<ul>{''.join(f'<li>{_escape(note)}</li>' for note in notes)}</ul>", *_figures(plots)]
    out = path / "report"
    atomic_write(out / "table.csv", csv_text(columns, lines))
    atomic_write(out / "trials.csv", csv_text(*_trial_table(folder, sweep, table, hours, unit)))
    for name, plot in (plots or {}).items():
        atomic_write(out / f"{name}.svg", plot.svg)
    atomic_write(out / "index.html", _page(folder, sweep, parts))
    text = [f"{sweep['config']}: {score}", "", text_table(columns, lines, right=_NUMERIC), "", *notes]
    return "\n".join([*text, f"report: {out}/index.html"])


def _notes(table: list[Row], score: str, selection: str, reference: str, *, named: bool) -> list[str]:
    """Explains the columns of the table, a sentence each. named: the user chose the reference row."""
    lower = " (lower is better)" if lower_is_better(score) else ""
    seeds = next((row.seeds for row in table if row.seeds), ())
    notes = [f"Mean and spread (standard deviation) of {score}{lower} over seeds."] if len(seeds) > 1 else []
    notes += [f"{score}: lower is better."] if lower and len(seeds) < 2 else []
    if selection != score:
        notes.append(f"Rows are ranked by {selection}, on the validation set; {score} is of the test set.")
    elif not score.startswith("valid_"):
        notes.append(
            f"No score of the validation set: rows are ranked by {score} on the test set, which flatters the best row."
        )
    if not seeds:
        return notes
    if any(row.mean is not None and not row.seeds for row in table):
        notes.append(
            f"Ranked on the seeds {', '.join(map(str, seeds))}; rows that lack one of them, or diverged, come last."
        )
    comparisons = [row.comparison for row in table if row.comparison]
    if not comparisons:
        if sum(bool(row.seeds) for row in table) > 1 and not any(row.problem for row in table):
            notes.append("No differences: for this score they need rows with two seeds.")
        return notes
    if not named and reference != table[0].name:
        notes.append(f"{reference} is the reference: its mean less two standard errors is the best.")
    source = "seeds" if "sentences" not in comparisons[0] else "sentences" if len(seeds) == 1 else "sentences and seeds"
    notes.append(
        f"Difference: to {reference}, with 95% interval and two-sided p over {source}, corrected for {len(comparisons) + 1} rows."
    )
    if len(seeds) == 1:
        notes.append("One seed does not show the variation between seeds: the result holds for these models only.")
    return notes


def _test_note(folder: Folder, table: list[Row], score: str) -> list[str]:
    """The test score of the selected row, where the table has scores of the validation set."""
    if not score.startswith("valid_"):
        return []
    try:
        note = test_of_selected(folder, table)
    except UserError as error:
        note = f"No test score of the selected row: {error}"
    return [f"{note}."] if note else []


def format_row(row: Row, reference: str, *, with_selection: bool) -> list[str]:
    """A line of the table. with_selection: with the score by which rows are ranked."""
    number = lambda value: "" if value is None else f"{value:.{2 if abs(row.mean or 0) >= 10 else 4}f}"  # noqa: E731
    return [
        row.name,
        *(["" if row.selection is None else f"{row.selection:.4f}"] if with_selection else []),
        number(row.mean),
        number(row.spread),
        str(len(row.seeds) or sum(r.score is not None for r in row.results)),
        format_difference(row),
        verdict(row, reference),
        ", ".join(f"{count} {state}" for state, count in row.states.items()),
    ]


def _trial_table(
    folder: Folder, sweep: dict[str, Any], table: list[Row], hours: dict[str, Counter[str]], unit: str
) -> tuple[tuple[str, ...], list[list[Any]]]:
    keys = list(dict.fromkeys(key for trial in sweep["trials"].values() for key in trial["overrides"]))
    complete = {result.name: result for row in table for result in row.results}
    header = ("trial", "row", "seed", "state", "score", "updates", "seconds", "attempts", *([unit] if unit else []))
    header += (*keys, "record", "command")
    lines = []
    for name, trial in sweep["trials"].items():
        result = complete.get(name)
        line = [name, trial["row"], trial["seed"], folder.displayed_state(name)]
        line += [result.score, result.steps, result.seconds] if result else ["", "", ""]
        line += [folder.status(name).attempts, *([_number(_total(hours, [name]))] if unit else [])]
        line += [trial["overrides"].get(key, "") for key in keys]
        command = f"python -m t2t_flax train --config={shlex.quote(str(folder.config(name)))} --workdir=DIR"
        lines.append([*line, result.record if result else "", command])
    return header, lines


def _unit_of_hours(hours: dict[str, Counter[str]]) -> str:
    """`chip-hours`, `CPU device-hours` or, with both, `device-hours`; empty if no trial has used a device."""
    kinds = {kind for each in hours.values() for kind in each} - {UNKNOWN}
    if CPU not in kinds:
        return "chip-hours" if kinds else ""
    return "CPU device-hours" if kinds == {CPU} else "device-hours"


def _total(hours: dict[str, Counter[str]], names: list[str] | tuple[str, ...]) -> float:
    """Device-hours of these trials."""
    return sum(value for name in names for kind, value in hours[name].items() if kind != UNKNOWN)


def _hours_note(folder: Folder, hours: dict[str, Counter[str]], unit: str) -> str:
    """The device-hours of the whole sweep by kind of device and by state of the trials."""
    kinds: Counter[str] = sum(hours.values(), Counter())
    unknown = kinds.pop(UNKNOWN, 0.0)
    by_state: Counter[str] = Counter()
    for name in hours:
        by_state[folder.displayed_state(name)] += _total(hours, [name])
    used = ", ".join(f"{_number(value)} of {'CPU devices' if kind == CPU else kind}" for kind, value in kinds.items())
    states = ", ".join(f"{state} {_number(value)}" for state, value in by_state.items() if value)
    more = f"; not included: {unknown * 3600:.0f} s of attempts that ended before they had devices" if unknown else ""
    return f"{unit} of all attempts: {used} ({states}){more}"


def _number(value: float) -> str:
    return f"{value:.2f}" if value >= 10 else f"{value:.4f}"


def _page(folder: Folder, sweep: dict[str, Any], parts: list[str]) -> str:
    """The report as one HTML file: `parts`, the table and the plots, between an introduction and the logs of failed trials."""
    title, names, code = _escape(sweep["config"]), sweep["trials"], sweep["code"]
    fixed = ", ".join(f"{key} = {value}" for key, value in sweep["fixed"].items())
    text = f"{len(names)} trials{f' with {fixed}' if fixed else ''}. "
    text += f"t2t_flax {code['version']}, source {code['digest']}."
    digests = {name: set(folder.status(name).digests) - {code["digest"]} for name in names}  # by --any-code
    if changed := [f"{name} ({', '.join(sorted(other))})" for name, other in digests.items() if other]:
        text += f" Trained at least partly with other source: {'; '.join(changed)}."
    failed = [
        f"<h3>{_escape(f'{name}: {folder.status(name).reason}')}</h3><pre>{_escape(folder.log_tail(name))}</pre>"
        for name in names
        if folder.state(name) == FAILED
    ]
    body = [f"<h1>{title}</h1>", f"<p>{_escape(text)}</p>", *parts, *(["<h2>Failed</h2>", *failed] if failed else [])]
    body += ["<p>The command that trains each trial alone: trials.csv.</p>"]
    head = f'<meta charset="utf-8"><title>{title}</title>\n<style>{_CSS}</style>'
    return f'<!doctype html>\n<html lang="en">{head}\n' + "\n".join(body) + "\n</html>\n"


def _figures(plots: dict[str, Plot] | None) -> list[str]:
    if plots is None:
        return ["<p>Plots need matplotlib: pip install -r requirements.txt, then run the same command again.</p>"]
    return [
        f"<h2>{plot.title}</h2>\n<figure>{plot.svg}<figcaption>{_escape(plot.caption)}</figcaption></figure>"
        for plot in plots.values()
    ]


def _html_table(columns: tuple[str, ...], lines: list[list[str]], marked: list[bool]) -> str:
    html_lines = ["<table><tr>" + "".join(f"<th>{name}</th>" for name in columns) + "</tr>"]
    for line, is_reference in zip(lines, marked, strict=True):
        cells = "".join(
            f"<td{' class=number' if column in _NUMERIC else ''}>{_escape(text)}</td>"
            for column, text in zip(columns, line, strict=True)
        )
        html_lines.append(f"<tr{' class=reference' if is_reference else ''}>{cells}</tr>")
    return "\n".join(html_lines) + "</table>"


def _escape(text: str) -> str:
    return html.escape(str(text))
