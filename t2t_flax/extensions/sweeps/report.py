"""A sweep's report: table, HTML page and CSV.

The table in Markdown has intervals over seeds, the page a plot, the CSV the trials.
"""

import csv
import dataclasses
import html
import importlib.util
import io
import math
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t2t_flax.errors import UserError
from t2t_flax.extensions.shared.picture import STYLE, render
from t2t_flax.extensions.sweeps.compare import (
    LEVEL,
    check_comparable,
    comparable_names,
    read_record,
    task_of_record,
)
from t2t_flax.extensions.sweeps.differences import Difference, compare_rows
from t2t_flax.extensions.sweeps.folder import COMPLETE, DIVERGED, FAILED, Folder, read_sweep
from t2t_flax.extensions.sweeps.results import (
    MissingScore,
    complete_marker,
    is_per_token,
    record_path,
    selection_score,
    tokenizer_digest,
    trial_score,
)
from t2t_flax.extensions.sweeps.trials import folder_name
from t2t_flax.files import atomic_write
from t2t_flax.tasks import lower_is_better, task_of

_NUMERIC = ("mean", "spread", "seeds")


@dataclasses.dataclass(frozen=True)
class Row:
    """Trials of a row.

    Attributes:
        scores: reported score of each complete trial, by seed.
        selection: score that ranks the rows, by seed.
        difference: difference to the reference row; None for that row, and where it cannot be
            tested.
        problem: why a trial's score is missing or cannot be compared.
    """

    name: str
    trials: tuple[str, ...]
    states: dict[str, int]
    scores: dict[int, float]
    selection: dict[int, float]
    difference: Difference | None = None
    problem: str = ""

    @property
    def mean(self) -> float | None:
        return float(np.mean(list(self.scores.values()))) if self.scores else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds."""
        return float(np.std(list(self.scores.values()), ddof=1)) if len(self.scores) > 1 else None

    @property
    def lost(self) -> int:
        """Number of seeds that will have no score."""
        return self.states.get(DIVERGED, 0) + self.states.get(FAILED, 0)


def make_rows(
    folder: Folder, sweep: dict[str, Any], score: str, baseline: str = ""
) -> tuple[list[Row], str]:
    """Return the rows of a sweep, best first, and the name of the reference row.

    The reference is `baseline`, or the best row. Rows with diverged or failed seeds come after the
    others. Raises UserError if `baseline` is not a row, and for a score that no trial has.
    """
    names = list(dict.fromkeys(trial["row"] for trial in sweep["trials"].values()))
    reference = baseline and folder_name(baseline)
    if reference and reference not in names:
        raise UserError(
            f"there is no row {baseline!r} to compare with; the rows are {', '.join(names)}."
        )
    selection, missing = selection_score(sweep, score), None
    table, anchor = [], ""
    for name in names:
        trials = {n: t["seed"] for n, t in sweep["trials"].items() if t["row"] == name}
        row = Row(name, tuple(trials), dict(Counter(map(folder.displayed_state, trials))), {}, {})
        for trial, seed in trials.items():
            if folder.state(trial) != COMPLETE:
                continue
            try:
                value, ranked = (trial_score(folder, trial, each) for each in (score, selection))
                anchor = anchor or trial
                _check_comparable(folder, trial, anchor, score)
            except UserError as error:
                missing = error if isinstance(error, MissingScore) else missing
                row = dataclasses.replace(row, problem=str(error))
                continue
            if value is not None and ranked is not None:
                row.scores[seed], row.selection[seed] = value, ranked
        table.append(row)
    if missing and not any(row.scores for row in table):
        raise missing
    sign = 1 if lower_is_better(selection) else -1
    table.sort(
        key=lambda row: (
            row.lost,
            sign * np.mean(list(row.selection.values())) if row.selection else math.inf,
        )
    )
    reference = reference or (table[0].name if table and table[0].scores else "")
    scored = [row for row in table if row.scores]
    if reference in (row.name for row in scored):
        at = [row.name for row in scored].index(reference)
        found = dict(zip((row.name for row in scored), _differences(scored, at), strict=True))
        table = [dataclasses.replace(row, difference=found.get(row.name)) for row in table]
    return table, reference


def _differences(rows: list[Row], reference: int) -> list[Difference | None]:
    return compare_rows([list(row.scores.values()) for row in rows], reference)


def _check_comparable(folder: Folder, trial: str, anchor: str, score: str) -> None:
    """Raise UserError if a trial cannot be compared with the trial `anchor`.

    Such a trial has another test set, for example.
    """
    if is_per_token(score) and tokenizer_digest(folder, trial) != tokenizer_digest(folder, anchor):
        raise UserError(f"{score} is per token, and {trial} has another tokenizer than {anchor}.")
    if score.startswith("valid_"):
        return
    first, path = record_path(folder, anchor, score), record_path(folder, trial, score)
    if path:
        record, name = read_record(path), score.rpartition(":")[2]
        known = comparable_names(task_of_record(record))
        check_comparable(
            read_record(first), record, first, path, name if name in known else known[-1]
        )


def report(path: Path, *, score: str = "", baseline: str = "") -> str:
    """Write the report to SWEEP/report; return the table as text.

    The files are report.md, report.html, trials.csv and (with matplotlib) the plot. Raises
    UserError for a folder without a sweep, an unknown score or baseline.
    """
    folder, sweep = Folder(Path(path).absolute()), read_sweep(path)
    score = score or sweep["score"]
    table, reference = make_rows(folder, sweep, score, baseline or sweep["baseline"])
    selection = selection_score(sweep, score)
    columns = (
        "row",
        *([selection] if selection != score else []),
        "mean" if selection == score else score,
    )
    columns += ("spread", "seeds", "difference", "verdict", "trials")
    lines = [_line(row, reference, score, with_selection=selection != score) for row in table]
    notes = _notes(folder, table, score, selection, reference)
    out, plot = Path(path) / "report", make_plot(table, score, reference)
    if plot:
        atomic_write(out / "scores.svg", plot)
    rows = markdown_table(columns, lines, right=_NUMERIC)
    text = "\n".join(
        [f"# {sweep['config']}: {score}", "", rows, "", *(f"- {note}" for note in notes)]
    )
    atomic_write(out / "report.md", text + ("\n\n![scores](scores.svg)\n" if plot else "\n"))
    atomic_write(out / "report.html", _page(folder, sweep, text, plot))
    atomic_write(out / "trials.csv", csv_text(*_trial_table(folder, sweep, score)))
    return f"{text}\nreport: {out}/report.html"


def markdown_table(
    columns: Sequence[str], lines: Sequence[Sequence[str]], *, right: Sequence[str] = ()
) -> str:
    """Return a Markdown table, padded for terminals.

    Args:
        right: names of right-aligned columns, as for numbers.
    """
    rows = [[cell.replace("|", "\\|") for cell in row] for row in (columns, *lines)]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    rules = [
        "-" * (width - 1) + (":" if name in right else "-")
        for name, width in zip(columns, widths, strict=True)
    ]
    padded = [
        [
            cell.rjust(w) if name in right else cell.ljust(w)
            for name, w, cell in zip(columns, widths, row, strict=True)
        ]
        for row in (rows[0], rules, *rows[1:])
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in padded)


def csv_text(columns: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """Return a table as the text of a CSV file, the names of the columns first."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([columns, *lines])
    return out.getvalue()


def _line(row: Row, reference: str, score: str, *, with_selection: bool) -> list[str]:
    digits = 2 if abs(row.mean or 0) >= 10 else 4
    number = lambda value: "" if value is None else f"{value:.{digits}f}"  # noqa: E731
    found, difference = row.difference, ""
    if found:
        ends = f"{found.difference:+.{digits}f} [{found.low:+.{digits}f}, {found.high:+.{digits}f}]"
        difference = f"{ends} p {found.p:.3g}" if found.p >= 0.001 else f"{ends} p < 0.001"
    selection = f"{np.mean(list(row.selection.values())):.4f}" if row.selection else ""
    return [
        row.name,
        *([selection] if with_selection else []),
        number(row.mean),
        number(row.spread),
        str(len(row.scores)),
        difference,
        verdict(row, reference, score),
        ", ".join(f"{count} {state}" for state, count in row.states.items()),
    ]


def verdict(row: Row, reference: str, score: str) -> str:
    """Return whether the row differs from the reference row.

    The test is at 5 % for the whole table. "" where it is not tested.
    """
    if row.name == reference:
        return "reference"
    if row.problem:
        return "see the note"
    if not row.difference:
        return ""
    if row.difference.p >= LEVEL:
        return "no clear difference"
    return "better" if (row.difference.difference > 0) != lower_is_better(score) else "worse"


def _notes(
    folder: Folder, table: list[Row], score: str, selection: str, reference: str
) -> list[str]:
    """Return sentences that explain the columns of the table."""
    lower = " (lower is better)" if lower_is_better(score) else ""
    notes = [f"Mean and spread (standard deviation) of {score}{lower} over seeds."]
    if selection != score:
        notes.append(
            f"Rows are ranked by {selection}, on the validation set; {score} is of the test set."
        )
        if (
            is_per_token(selection)
            and len({tokenizer_digest(folder, row.trials[0]) for row in table}) > 1
        ):
            notes.append(
                f"The ranks mean little: {selection} is per token, and rows have different"
                " tokenizers."
            )
    elif not score.startswith("valid_"):
        notes.append(
            f"No score of the validation set: ranked by {score} on the test set, which flatters the"
            " best row."
        )
    if any(row.difference for row in table):
        notes.append(
            f"Difference: to {reference}, with 95 % interval and two-sided p over seeds, both for"
            " all pairs of rows (Games and Howell)."
        )
        if any(row.difference and len(row.scores) == 2 for row in table):
            notes.append(
                "Two seeds show only large differences: no clear difference does not mean equal."
                " --seeds=5 --extend adds seeds."
            )
    elif sum(bool(row.scores) for row in table) > 1:
        notes.append("No differences: they need two seeds of a row and of the reference.")
    if score.startswith("valid_"):
        notes += _test_note(folder, table)
    return notes + [f"{row.name}: {row.problem.splitlines()[0]}" for row in table if row.problem]


def _test_note(folder: Folder, table: list[Row]) -> list[str]:
    """Return the test score of the best row, where its trials evaluate a test set."""
    best = table[0] if table and table[0].scores else None
    if best is None or not (config := folder.read_config(best.trials[0])).data.test:
        return []
    name = task_of(config).metrics[0].name
    try:
        complete = [trial for trial in best.trials if folder.state(trial) == COMPLETE]
        scores = [
            x for x in (trial_score(folder, trial, name) for trial in complete) if x is not None
        ]
    except UserError as error:
        return [f"No test score of the best row: {error}"]
    shown = ", ".join(f"{x:.2f}" for x in scores)
    return (
        [f"Test score of the best row, {best.name}: {name} {np.mean(scores):.2f} ({shown})."]
        if scores
        else []
    )


def _trial_table(
    folder: Folder, sweep: dict[str, Any], score: str
) -> tuple[tuple[str, ...], list[list[Any]]]:
    keys = list(
        dict.fromkeys(key for trial in sweep["trials"].values() for key in trial["overrides"])
    )
    header = (
        "trial",
        "row",
        "seed",
        "state",
        "score",
        "updates",
        "seconds",
        *keys,
        "record",
        "command",
    )
    lines = []
    for name, trial in sweep["trials"].items():
        values: list[Any] = ["", "", "", ""]
        if folder.state(name) == COMPLETE:
            try:
                marker = complete_marker(folder, name)
                seconds = round(sum(marker.get("seconds", {}).values()), 1)
                values = [
                    trial_score(folder, name, score),
                    marker["step"],
                    seconds,
                    record_path(folder, name, score),
                ]
            except (UserError, KeyError):
                values = ["damaged", "", "", ""]
        command = (
            f"python -m t2t_flax train --config={shlex.quote(str(folder.config(name)))}"
            " --workdir=DIR"
        )
        line = [name, trial["row"], trial["seed"], folder.displayed_state(name), *values[:3]]
        lines.append(
            [*line, *(trial["overrides"].get(key, "") for key in keys), values[3], command]
        )
    return header, lines


def _page(folder: Folder, sweep: dict[str, Any], text: str, plot: str) -> str:
    """Return the report as one HTML file, with the ends of the logs of failed trials."""
    code = sweep["code"]
    fixed = "".join(f", {key} = {value}" for key, value in sweep["fixed"].items())
    about = (
        f"{len(sweep['trials'])} trials{fixed}; t2t_flax {code['version']}, source {code['digest']}"
    )
    body = [f"<pre>{html.escape(text)}</pre>", plot or "<p>A plot needs scores and matplotlib.</p>"]
    ends: dict[tuple[str, str], list[str]] = {}  # how trials ended, last line of the log -> trials
    for name in sweep["trials"]:
        if (state := folder.state(name)) in (FAILED, DIVERGED):
            last = folder.log_tail(name).rpartition("\n")[2]
            ends.setdefault((f"{state}, {folder.reason(name)}", last), []).append(name)
    for (end, _), names in ends.items():
        heading, log = f"{'; '.join(names)}: {end}", folder.log_tail(names[0])
        body.append(f"<h3>{html.escape(heading)}</h3><pre>{html.escape(log)}</pre>")
    head = f'<meta charset="utf-8"><title>{html.escape(sweep["config"])}</title>'
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">',
            head,
            *body,
            f"<p>{html.escape(about)}</p>",
            "</html>\n",
        ]
    )


def make_plot(table: list[Row], score: str, reference: str) -> str:
    """Return the plot of the scores as SVG; "" without scores or matplotlib."""
    if importlib.util.find_spec("matplotlib") is None or not any(row.scores for row in table):
        return ""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = plot_scores(table, score, reference)
    text = render(figure, ".svg").decode()
    return text[text.index("<svg") :]


def plot_scores(table: list[Row], score: str, reference: str) -> Any:
    """Return a figure of the rows in the order of the table.

    It has a dot per seed, and the interval of the difference to the reference row, drawn from that
    row's mean.
    """
    from matplotlib.figure import Figure

    rows = [row for row in table if row.scores]
    base = next((row.mean for row in rows if row.name == reference), None)
    figure = Figure(figsize=(9, 0.8 + 0.28 * len(rows)), layout="constrained")
    axes = figure.subplots()
    if base is not None:
        axes.axvline(base, color="0.5", lw=0.8, ls="--")
    for y, row in enumerate(rows):
        if base is not None and row.difference:
            ends = base + row.difference.low, base + row.difference.high
            axes.plot(ends, (y, y), color="tab:orange", lw=2, solid_capstyle="butt")
        axes.plot(
            list(row.scores.values()),
            [y] * len(row.scores),
            "o",
            ms=3.5,
            alpha=0.6,
            color="tab:blue",
        )
    axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(
        f"{score}: a dot per seed; bars are the intervals of the table, from the mean of"
        f" {reference} (dashed)"
    )
    return figure
