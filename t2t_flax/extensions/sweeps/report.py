"""A sweep's report: a table for the terminal, CSV files, and an HTML page with plots."""

import dataclasses
import html
from pathlib import Path
from typing import Any

from t2t_flax.errors import UserError
from t2t_flax.extensions.sweeps.device_hours import Bill, Prices, make_bill
from t2t_flax.extensions.sweeps.folder import FAILED, Folder, read_sweep
from t2t_flax.extensions.sweeps.logs import log_tail
from t2t_flax.extensions.sweeps.plots import make_plots
from t2t_flax.extensions.sweeps.results import selection_score
from t2t_flax.extensions.sweeps.rows import Row, format_difference, rows, test_of_selected, verdict
from t2t_flax.extensions.sweeps.trials import train_command
from t2t_flax.filesystem import atomic_write
from t2t_flax.tables import csv_text, text_table
from t2t_flax.tasks import lower_is_better

_NUMERIC = ("mean", "spread", "seeds", "chip-hours", "CPU device-hours", "device-hours", "cost")
_CSS = """body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse } th, td { text-align: left; padding: .25rem .8rem; border-bottom: 1px solid #ddd }
td.number { text-align: right; font-variant-numeric: tabular-nums } pre { background: #f6f6f6; padding: .6rem; overflow-x: auto }
svg { max-width: 100%; height: auto } figcaption { color: #555 } tr.reference { background: #f2f7ff }"""
_NO_PLOTS = "<p>Plots need matplotlib: pip install -r requirements.txt, then run the same command again.</p>"


def report(path: Path, *, score: str = "", baseline: str = "", prices: Prices | None = None) -> str:
    """Writes SWEEP/report/table.csv, trials.csv, index.html and (with matplotlib) its plots as SVG; returns the table as
    text. prices: of device-hours. Raises UserError for a folder without a sweep, an unknown score or baseline.
    """
    folder, sweep = Folder(Path(path).absolute()), read_sweep(path)
    score, baseline = score or sweep["score"], baseline or sweep["baseline"]
    table, reference = rows(folder, sweep, score, baseline)
    bill = make_bill(folder, list(sweep["trials"]), prices)
    selection = selection_score(sweep, score)
    columns = _columns(score, selection) + bill.columns()
    lines = [format_row(row, reference, with_selection=selection != score) + bill.cells(*row.trials) for row in table]
    problems = [f"{row.name}: {row.problem.splitlines()[0]}" for row in table if row.problem]
    notes = [*_notes(table, score, selection, reference, named=bool(baseline)), *_test_note(folder, table, score)]
    costs = [bill.summary()] if bill.kinds else []
    page = _Page(folder, sweep, score, reference, table, columns, lines, [*notes, *problems, *costs])
    plots = make_plots(folder, table, score, reference)
    out = path / "report"
    atomic_write(out / "table.csv", csv_text(columns, lines))
    atomic_write(out / "trials.csv", csv_text(*_trial_table(folder, sweep, table, bill)))
    for name, svg in plots.items():
        atomic_write(out / f"{name}.svg", svg)
    atomic_write(out / "index.html", page.html(plots))
    return "\n".join(
        [f"{sweep['config']}: {score}", "", text_table(columns, lines, right=_NUMERIC), "", *notes, *costs, *problems]
        + [f"report: {out}/index.html"]
    )


def _columns(score: str, selection: str) -> tuple[str, ...]:
    """Those of `format_row`. The score is in the heading, if it is not beside the one by which rows are ranked."""
    selected_by = (selection,) if selection != score else ()
    return (
        "row",
        *selected_by,
        "mean" if not selected_by else score,
        "spread",
        "seeds",
        "difference",
        "verdict",
        "trials",
    )


def _notes(table: list[Row], score: str, selection: str, reference: str, *, named: bool) -> list[str]:
    """What the columns of the table mean, a sentence each. named: the user chose the reference row."""
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
    folder: Folder, sweep: dict[str, Any], table: list[Row], bill: Bill
) -> tuple[tuple[str, ...], list[list[Any]]]:
    keys = list(dict.fromkeys(key for trial in sweep["trials"].values() for key in trial["overrides"]))
    complete = {result.name: result for row in table for result in row.results}
    header = ("trial", "row", "seed", "state", "score", "updates", "seconds", "attempts", *bill.columns(), *keys)
    header += ("record", "command")
    lines = []
    for name, trial in sweep["trials"].items():
        result, state, status = complete.get(name), folder.displayed_state(name), folder.status(name)
        numbers = [result.score, result.steps, result.seconds] if result else ["", "", ""]
        values = [trial["overrides"].get(key, "") for key in keys]
        command = train_command(sweep["config"], sweep["fixed"], trial["overrides"], f"runs/{name}")
        record = result.record if result else ""
        numbers += [status.attempts, *bill.cells(name)]
        lines.append([name, trial["row"], trial["seed"], state, *numbers, *values, record, command])
    return header, lines


@dataclasses.dataclass(frozen=True)
class _Page:
    """The report as an HTML page. lines: the table's text. notes: the meaning of its columns, its problems and costs."""

    folder: Folder
    sweep: dict[str, Any]
    score: str
    reference: str
    table: list[Row]
    columns: tuple[str, ...]
    lines: list[list[str]]
    notes: list[str]

    def html(self, plots: dict[str, str]) -> str:
        """One file: table, plots (SVG by name), logs of failed trials, commands."""
        config = _escape(self.sweep["config"])
        marked = [row.name == self.reference for row in self.table]
        parts = [f"<h1>{config}</h1>", f"<p>{_escape(self._introduction())}</p>"]
        parts += [f"<h2>{_escape(self.score)}</h2>", _html_table(self.columns, self.lines, marked)]
        parts += [f"<ul>{''.join(f'<li>{_escape(note)}</li>' for note in self.notes)}</ul>", *self._figures(plots)]
        parts += [] if plots or _has_matplotlib() else [_NO_PLOTS]
        parts += [*self._failed_trials(), *self._commands()]
        head = f'<meta charset="utf-8"><title>{config}</title>\n<style>{_CSS}</style>'
        return f'<!doctype html>\n<html lang="en">{head}\n' + "\n".join(parts) + "\n</html>\n"

    def _introduction(self) -> str:
        fixed = ", ".join(f"{key} = {value}" for key, value in self.sweep["fixed"].items())
        code, names = self.sweep["code"], self.sweep["trials"]
        text = f"{len(names)} trials{f' with {fixed}' if fixed else ''}. "
        text += f"t2t_flax {code['version']}, source {code['digest']}."
        digests = {name: set(self.folder.status(name).digests) - {code["digest"]} for name in names}  # by --any-code
        changed = [f"{name} ({', '.join(sorted(other))})" for name, other in digests.items() if other]
        return f"{text} Trained at least partly with other source: {'; '.join(changed)}." if changed else text

    def _figures(self, plots: dict[str, str]) -> list[str]:
        captions = {
            "curves": ("Learning curves", "Loss in nats per token, one line per trial."),
            "differences": (
                "Differences",
                f"{self.score}: one dot per seed. Bars are the intervals of the table, drawn from the mean of {self.reference} "
                "(dashed): a row whose bar does not reach that line differs.",
            ),
            "effects": (
                "Effects",
                f"{self.score} by each varied key, one dot per trial and the mean over all of them.",
            ),
            "parallel": ("All keys", f"One line per row, from its values to its {self.score}; brighter is better."),
        }
        figures = []
        for name, svg in plots.items():
            title, caption = captions[name]
            figures.append(f"<h2>{title}</h2>\n<figure>{svg}<figcaption>{_escape(caption)}</figcaption></figure>")
        return figures

    def _failed_trials(self) -> list[str]:
        parts = []
        for name in self.sweep["trials"]:
            if self.folder.state(name) == FAILED:
                title = f"{name}: {self.folder.status(name).reason}"
                log = log_tail(self.folder, name)
                parts.append(f"<h3>{_escape(title)}</h3><pre>{_escape(log)}</pre>")
        return ["<h2>Failed</h2>", *parts] if parts else []

    def _commands(self) -> list[str]:
        parts = ["<h2>Commands</h2>"]
        for row in self.table:
            workdir = f"runs/{row.name}"
            command = train_command(self.sweep["config"], self.sweep["fixed"], row.overrides, workdir)
            parts.append(f"<h3>{_escape(row.name)}</h3><pre>{_escape(command)}</pre>")
        return parts


def _html_table(columns: tuple[str, ...], lines: list[list[str]], marked: list[bool]) -> str:
    html_lines = ["<table><tr>" + "".join(f"<th>{name}</th>" for name in columns) + "</tr>"]
    for line, is_reference in zip(lines, marked, strict=True):
        cells = "".join(
            f"<td{' class=number' if column in _NUMERIC else ''}>{_escape(text)}</td>"
            for column, text in zip(columns, line, strict=True)
        )
        html_lines.append(f"<tr{' class=reference' if is_reference else ''}>{cells}</tr>")
    return "\n".join(html_lines) + "</table>"


def _has_matplotlib() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def _escape(text: str) -> str:
    return html.escape(str(text))
