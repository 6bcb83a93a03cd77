"""A sweep's report: a table for the terminal, CSV files, and an HTML page with plots."""

import dataclasses
import html
from pathlib import Path
from typing import Any

from t2t_flax.extensions.sweeps.device_hours import Bill, Prices, make_bill
from t2t_flax.extensions.sweeps.folder import FAILED, Folder, read_sweep
from t2t_flax.extensions.sweeps.plots import make_plots
from t2t_flax.extensions.sweeps.results import Row, format_difference, rows, verdict
from t2t_flax.extensions.sweeps.trials import train_command
from t2t_flax.extensions.sweeps.worker import log_tail
from t2t_flax.filesystem import atomic_write
from t2t_flax.tables import csv_text, text_table
from t2t_flax.tasks import lower_is_better

COLUMNS = ("row", "score", "spread", "seeds", "difference", "verdict", "trials")
"""Followed by those of `Bill.columns`."""
_NUMERIC = ("score", "spread", "seeds", "chip-hours", "CPU device-hours", "device-hours", "cost")
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
    columns = COLUMNS + bill.columns()
    lines = [format_row(row, reference) + bill.cells(*row.trials) for row in table]
    caption = _caption(sweep, table, score, reference, named=bool(baseline))
    problems = [f"{row.name}: {row.problem.splitlines()[0]}" for row in table if row.problem]
    costs = [bill.summary()] if bill.kinds else []
    page = _Page(folder, sweep, score, table, columns, lines, ". ".join([caption, *problems, *costs]))
    plots = make_plots(folder, table, score)
    out = path / "report"
    atomic_write(out / "table.csv", csv_text(columns, lines))
    atomic_write(out / "trials.csv", csv_text(*_trial_table(folder, sweep, table, bill)))
    for name, svg in plots.items():
        atomic_write(out / f"{name}.svg", svg)
    atomic_write(out / "index.html", page.html(plots))
    return "\n".join(
        [caption, "", text_table(columns, lines, right=_NUMERIC), "", *costs, *problems, f"report: {out}/index.html"]
    )


def _caption(sweep: dict[str, Any], table: list[Row], score: str, reference: str, *, named: bool) -> str:
    """What the columns of the table mean. named: the user chose the reference row; otherwise it is the best."""
    lower = ", lower is better" if lower_is_better(score) else ""
    caption = f"{sweep['config']}, {score}{lower}: mean over seeds, spread = their standard deviation"
    comparisons = [row.comparison for row in table if row.comparison]
    if not comparisons:
        if sum(row.mean is not None for row in table) > 1 and not any(row.problem for row in table):
            caption += "; no differences: for this score they need rows with two seeds"
        return caption
    count, first = len(comparisons), comparisons[0]
    if "freedom" not in first:
        source = "sentences only: one seed does not show the variation between seeds"
    elif "sentences" not in first:
        source = "seeds (with one spread for all rows)"
    else:
        source = "sentences and seeds (these with one spread for all rows)"
    caption += f"; difference: to {reference}, with a 95% interval over {source}; p: two-sided"
    if count > 1:
        holm, bonferroni = f"{count} comparisons (Holm)", f"all {count * (count + 1) // 2} pairs of rows (Bonferroni)"
        caption += f", both corrected for {holm if named else bonferroni}"
    return caption


def format_row(row: Row, reference: str) -> list[str]:
    """A line of the table."""
    digits = 2 if row.mean is not None and abs(row.mean) >= 10 else 4
    return [
        row.name,
        "" if row.mean is None else f"{row.mean:.{digits}f}",
        "" if row.spread is None else f"{row.spread:.{digits}f}",
        str(sum(r.score is not None for r in row.results)),
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
    """The report as an HTML page. lines: the table's text. caption: the meaning of its columns, its problems and costs."""

    folder: Folder
    sweep: dict[str, Any]
    score: str
    table: list[Row]
    columns: tuple[str, ...]
    lines: list[list[str]]
    caption: str

    def html(self, plots: dict[str, str]) -> str:
        """One file: table, plots (SVG by name), logs of failed trials, commands."""
        config = _escape(self.sweep["config"])
        parts = [f"<h1>{config}</h1>", f"<p>{_escape(self._introduction())}</p>", _html_table(self.columns, self.lines)]
        parts += self._figures(plots)
        parts += [] if plots or _has_matplotlib() else [_NO_PLOTS]
        parts += [*self._failed_trials(), *self._commands()]
        head = f'<meta charset="utf-8"><title>{config}</title>\n<style>{_CSS}</style>'
        return f'<!doctype html>\n<html lang="en">{head}\n' + "\n".join(parts) + "\n</html>\n"

    def _introduction(self) -> str:
        fixed = ", ".join(f"{key} = {value}" for key, value in self.sweep["fixed"].items())
        code, names = self.sweep["code"], self.sweep["trials"]
        text = f"{len(names)} trials{f' with {fixed}' if fixed else ''}. {self.caption}. "
        text += f"t2t_flax {code['version']}, source {code['digest']}."
        digests = {name: set(self.folder.status(name).digests) - {code["digest"]} for name in names}  # by --any-code
        changed = [f"{name} ({', '.join(sorted(other))})" for name, other in digests.items() if other]
        return f"{text} Trained at least partly with other source: {'; '.join(changed)}." if changed else text

    def _figures(self, plots: dict[str, str]) -> list[str]:
        captions = {
            "curves": ("Learning curves", "Validation loss (nats per token), one line per trial."),
            "effects": ("Effects", f"{self.score} by each varied key, one dot per trial."),
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


def _html_table(columns: tuple[str, ...], lines: list[list[str]]) -> str:
    html_lines = ["<table><tr>" + "".join(f"<th>{name}</th>" for name in columns) + "</tr>"]
    for line in lines:
        cells = "".join(
            f"<td{' class=number' if column in _NUMERIC else ''}>{_escape(text)}</td>"
            for column, text in zip(columns, line, strict=True)
        )
        html_lines.append(f"<tr{' class=reference' if 'compared with' in line else ''}>{cells}</tr>")
    return "\n".join(html_lines) + "</table>"


def _has_matplotlib() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def _escape(text: str) -> str:
    return html.escape(str(text))
