"""A sweep's report: a table for the terminal, CSV files, plots, and an HTML page with all of it."""

import csv
import html
import importlib.util
import io
import math
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rich.console
import rich.table
import rich.text

from t2t_flax.errors import UserError
from t2t_flax.extensions.sweeps.attempts import device_hours
from t2t_flax.extensions.sweeps.folder import FAILED, Folder, read_sweep
from t2t_flax.extensions.sweeps.results import learning_curve, selection_score
from t2t_flax.extensions.sweeps.rows import Row, format_difference, rows, test_of_selected, verdict
from t2t_flax.extensions.sweeps.trials import short_keys
from t2t_flax.filesystem import atomic_write
from t2t_flax.tasks import lower_is_better

HOURS = "device-hours"
"""Of all attempts at a trial; a device of JAX is a chip, or a process's share of a CPU."""
_NUMERIC = ("mean", "spread", "seeds", HOURS)
_STYLE = {"svg.hashsalt": "sweep", "axes.spines.top": False, "axes.spines.right": False, "font.size": 9}


def report(path: Path, *, score: str = "", baseline: str = "") -> str:
    """Writes SWEEP/report/table.csv, trials.csv, index.html and (with matplotlib) its plots as SVG; returns the table as
    text. Raises UserError for a folder without a sweep, an unknown score or baseline.
    """
    folder, sweep = Folder(Path(path).absolute()), read_sweep(path)
    score, baseline = score or sweep["score"], baseline or sweep["baseline"]
    table, reference = rows(folder, sweep, score, baseline)
    selection = selection_score(sweep, score)
    hours = {name: device_hours(folder, name) for name in sweep["trials"]}
    columns = ("row", *([selection] if selection != score else []), "mean" if selection == score else score)
    columns += ("spread", "seeds", "difference", "verdict", "trials", HOURS)
    lines = [
        [*format_row(row, reference, with_selection=selection != score), _number(_total(hours, row.trials))]
        for row in table
    ]
    notes = _notes(table, score, selection, reference, named=bool(baseline)) + _test_note(folder, table, score)
    notes += _hours_note(folder, hours)
    notes += [f"{row.name}: {row.problem.splitlines()[0]}" for row in table if row.problem]
    plots = make_plots(folder, table, score, reference)
    text = "\n".join([f"{sweep['config']}: {score}", "", text_table(columns, lines, right=_NUMERIC), "", *notes])
    out = path / "report"
    atomic_write(out / "table.csv", csv_text(columns, lines))
    atomic_write(out / "trials.csv", csv_text(*_trial_table(folder, sweep, table, hours)))
    for name, plot in (plots or {}).items():
        atomic_write(out / f"{name}.svg", plot)
    atomic_write(out / "index.html", _page(folder, sweep, text, plots))
    return f"{text}\nreport: {out}/index.html"


def text_table(columns: Sequence[str], lines: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> str:
    """Columns of equal width under their names; those named in `right` are right-aligned, as numbers are."""
    table = rich.table.Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(rich.text.Text(name), justify="right" if name in right else "left", no_wrap=True)
    for line in lines:
        table.add_row(*map(rich.text.Text, line))
    console = rich.console.Console(file=io.StringIO(), width=10_000)
    console.print(table)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def csv_text(columns: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """A table as the text of a CSV file, the names of the columns first."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([columns, *lines])
    return out.getvalue()


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
    folder: Folder, sweep: dict[str, Any], table: list[Row], hours: dict[str, Counter[str]]
) -> tuple[tuple[str, ...], list[list[Any]]]:
    keys = list(dict.fromkeys(key for trial in sweep["trials"].values() for key in trial["overrides"]))
    complete = {result.name: result for row in table for result in row.results}
    header = (
        "trial",
        "row",
        "seed",
        "state",
        "score",
        "updates",
        "seconds",
        "attempts",
        HOURS,
        *keys,
        "record",
        "command",
    )
    lines = []
    for name, trial in sweep["trials"].items():
        result = complete.get(name)
        line = [name, trial["row"], trial["seed"], folder.displayed_state(name)]
        line += [result.score, result.steps, result.seconds] if result else ["", "", ""]
        line += [folder.status(name).attempts, _number(_total(hours, [name]))]
        line += [trial["overrides"].get(key, "") for key in keys]
        command = f"python -m t2t_flax train --config={shlex.quote(str(folder.config(name)))} --workdir=DIR"
        lines.append([*line, result.record if result else "", command])
    return header, lines


def _total(hours: dict[str, Counter[str]], names: Sequence[str]) -> float:
    """Device-hours of these trials."""
    return sum(sum(hours[name].values()) for name in names)


def _hours_note(folder: Folder, hours: dict[str, Counter[str]]) -> list[str]:
    """The device-hours of the whole sweep by kind of device and by state of the trials; none where no device was used."""
    by_state: Counter[str] = Counter()
    for name in hours:
        by_state[folder.displayed_state(name)] += _total(hours, [name])
    kinds = sum(hours.values(), Counter()).items()
    used = ", ".join(f"{_number(value)} of {kind}" for kind, value in kinds)
    states = ", ".join(f"{state} {_number(value)}" for state, value in by_state.items() if value)
    return [f"{HOURS} of all attempts: {used} ({states})"] if used else []


def _number(value: float) -> str:
    return f"{value:.2f}" if value >= 10 else f"{value:.4f}"


def _page(folder: Folder, sweep: dict[str, Any], text: str, plots: dict[str, str] | None) -> str:
    """The report as one HTML file, with the logs of failed trials."""
    names, code = sweep["trials"], sweep["code"]
    fixed = ", ".join(f"{key} = {value}" for key, value in sweep["fixed"].items())
    about = (
        f"{len(names)} trials{f' with {fixed}' if fixed else ''}. t2t_flax {code['version']}, source {code['digest']}."
    )
    body = [f"<p>{html.escape(about)}</p>", f"<pre>{html.escape(text)}</pre>"]
    body += ["<p>Plots need matplotlib.</p>"] if plots is None else plots.values()
    for name in names:
        if folder.state(name) == FAILED:
            reason, log = folder.status(name).reason, folder.log_tail(name)
            body.append(f"<h3>{html.escape(f'{name}: {reason}')}</h3><pre>{html.escape(log)}</pre>")
    head = f'<meta charset="utf-8"><title>{html.escape(sweep["config"])}</title>'
    return f'<!doctype html>\n<html lang="en">{head}\n' + "\n".join(body) + "\n</html>\n"


def make_plots(folder: Folder, table: list[Row], score: str, reference: str) -> dict[str, str] | None:
    """`curves`, `differences` and `effects` as SVG, those that have data; None if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    import matplotlib

    plots = {}
    with matplotlib.rc_context(_STYLE):
        for key, label in (("valid_nll", "validation loss"), ("loss", "training loss")):
            curves = {row.name: [c for n in row.trials if (c := learning_curve(folder, n, key))] for row in table}
            if any(len(points) > 1 for trials in curves.values() for points in trials):
                plots["curves"] = _to_svg(plot_curves(curves, label))
                break
        if any(row.comparison for row in table):
            plots["differences"] = _to_svg(plot_differences(table, score, reference))
        if len(varied_keys(table)) > 1 and any(row.mean is not None for row in table):
            plots["effects"] = _to_svg(plot_effects(table, score))
    return plots


def _to_svg(figure: Any) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def plot_curves(curves: dict[str, list[list[tuple[int, float]]]], label: str) -> Any:
    """A matplotlib figure: the loss that `label` names by update, a line per trial, a colour per row."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    curves = {name: trials for name, trials in curves.items() if trials}
    for i, (name, trials) in enumerate(curves.items()):
        colour = colormaps["viridis"](i / max(1, len(curves) - 1))
        for n, points in enumerate(trials):
            marker = {"marker": "o", "ms": 2.5} if len(points) < 30 else {}
            axes.plot(*zip(*points, strict=True), color=colour, lw=1.2, label=None if n else name, **marker)
    axes.set_xlabel("update")
    axes.set_ylabel(f"{label} (nats per token)")
    values = sorted(value for trials in curves.values() for points in trials for _, value in points)
    low, high = values[0], values[int(0.95 * (len(values) - 1))]
    if low < high:  # the first values would flatten the rest
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    axes.legend(fontsize=7, frameon=False, loc="upper right", ncols=1 + len(curves) // 16)
    return figure


def plot_differences(table: list[Row], score: str, reference: str) -> Any:
    """A matplotlib figure: the rows in the order of the table, a dot per seed, and the corrected interval of the difference
    to the reference row, drawn from that row's mean.
    """
    from matplotlib.figure import Figure

    rows = [row for row in table if row.seeds]
    base = next(row for row in rows if row.name == reference)
    figure = Figure(figsize=(9, 0.8 + 0.28 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(base.mean, color="0.5", lw=0.8, ls="--")
    for y, row in enumerate(rows):
        if row.comparison:
            interval, centre = row.comparison["interval_corrected"], row.comparison["b"]
            ends = centre + interval["low"], centre + interval["high"]
            axes.plot(ends, (y, y), color="tab:orange", lw=2, solid_capstyle="butt")
        scores = [r.score for r in row.results if r.seed in row.seeds]
        axes.plot(scores, [y] * len(scores), "o", ms=3.5, alpha=0.6, color="tab:blue")
    axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(
        f"{score}: a dot per seed; bars are the intervals of the table, from the mean of {reference} (dashed)"
    )
    return figure


def varied_keys(table: list[Row]) -> dict[str, list[str]]:
    """The keys that rows set to different values, each with its values in order."""
    keys = dict.fromkeys(key for row in table for key in row.overrides)
    values = {key: {row.overrides[key] for row in table if key in row.overrides} for key in keys}
    return {key: sorted(texts, key=_numbers_first) for key, texts in values.items() if len(texts) > 1}


def plot_effects(table: list[Row], score: str) -> Any:
    """A matplotlib figure: for each varied key the scores of all trials by its value, and their mean."""
    from matplotlib.figure import Figure

    keys = varied_keys(table)
    short, lines, columns = short_keys(keys), -(-len(keys) // 3), min(3, len(keys))
    figure = Figure(figsize=(3 * columns + 1, 2.8 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
    for axes in grid[len(keys) :]:
        axes.set_visible(False)
    for axes, (key, values) in zip(grid, keys.items(), strict=False):
        means = []
        for i, value in enumerate(values):
            results = [r for row in table if row.overrides.get(key) == value for r in row.results]
            scores = [r.score for r in results if r.score is not None]
            axes.plot([i] * len(scores), scores, "o", ms=3, alpha=0.5, color="tab:blue")
            means.append(sum(scores) / len(scores) if scores else math.nan)
        axes.plot(range(len(values)), means, "_", ms=14, mew=2, color="tab:orange")
        step = -(-len(values) // 8)
        axes.set_xticks(range(0, len(values), step), values[::step], rotation=30 if max(map(len, values)) > 5 else 0)
        axes.set_xlabel(short[key])
    grid[0].set_ylabel(score)
    return figure


def _numbers_first(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)
