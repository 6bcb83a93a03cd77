"""A sweep as a table: on the terminal, as CSV, and as a page with curves."""

import csv
import io
from pathlib import Path
from typing import Any

from t2t_flax.evaluation.metrics import lower_is_better
from t2t_flax.filesystem import atomic_write
from t2t_flax.sweeps.folder import Folder, read_sweep
from t2t_flax.sweeps.page import page
from t2t_flax.sweeps.pictures import pictures
from t2t_flax.sweeps.results import Row, rows, shown_state, told_difference, verdict
from t2t_flax.sweeps.trials import command

COLUMNS = ("row", "score", "spread", "seeds", "difference", "verdict", "trials")


def report(path: Path, *, score: str = "", baseline: str = "") -> str:
    """Writes SWEEP/report/table.csv, trials.csv and index.html, where matplotlib is installed its pictures as SVG too;
    returns the table as text. Raises UserError for a folder without a sweep, an unknown score or baseline.
    """
    folder, described = Folder(Path(path).absolute()), read_sweep(path)
    score, baseline = score or described["score"], baseline or described["baseline"]
    table, chosen = rows(folder, described, score, baseline)
    told = heading(described, table, score, chosen, named=bool(baseline))
    apart = [f"{row.name}: {row.apart.splitlines()[0]}" for row in table if row.apart]
    lines = [cells(row, chosen) for row in table]
    out = path / "report"
    atomic_write(out / "table.csv", csv_text(COLUMNS, lines))
    atomic_write(out / "trials.csv", csv_text(*_trials(folder, described, table)))
    drawn = pictures(folder, table, score)
    for name, svg in drawn.items():
        atomic_write(out / f"{name}.svg", svg)
    atomic_write(
        out / "index.html", page(folder, described, table, score, COLUMNS, lines, drawn, ". ".join([told, *apart]))
    )
    return "\n".join([told, "", text_table(COLUMNS, lines), "", *apart, f"report: {out}/index.html"])


def heading(described: dict[str, Any], table: list[Row], score: str, chosen: str, *, named: bool) -> str:
    """What the table says. named: `chosen` is a baseline that somebody named, not the best row."""
    better = ", lower is better" * lower_is_better(score)
    told = f"{described['config']}, {score}{better}: mean over seeds, spread = their standard deviation"
    compared = [row for row in table if row.against]
    if compared:
        of, count = compared[0].against, len(compared)
        if "freedom" not in of:
            chance = "sentences alone: with one seed, what a seed changes is not known"
        elif "sentences" not in of:
            chance = "seeds (with one spread for all rows)"
        else:
            chance = "sentences and seeds (these with one spread for all rows)"
        told += f"; difference: to {chosen}, its 95 % interval over {chance}; p: two-sided"
        if count > 1:
            of = (
                f"{count} comparisons (Holm)" if named else f"all {count * (count + 1) // 2} pairs of rows (Bonferroni)"
            )
            told += f", both corrected for {of}"
    elif sum(row.mean is not None for row in table) > 1 and not any(row.apart for row in table):
        told += "; no differences: for this score they need rows with two seeds"
    return told


def cells(row: Row, chosen: str) -> list[str]:
    """A line of the table."""
    states = ", ".join(f"{count} {state}" for state, count in row.states.items())
    return [
        row.name,
        "" if row.mean is None else f"{row.mean:.2f}" if abs(row.mean) >= 10 else f"{row.mean:.4f}",
        "" if row.spread is None else f"{row.spread:.2f}" if abs(row.mean) >= 10 else f"{row.spread:.4f}",
        str(sum(r.score is not None for r in row.results)),
        told_difference(row),
        verdict(row, chosen),
        states,
    ]


def text_table(columns: tuple[str, ...], lines: list[list[str]]) -> str:
    """Columns of equal width; numbers to the right."""
    widths = [max(len(line[i]) for line in [columns, *lines]) for i in range(len(columns))]

    def cell(i: int, text: str) -> str:
        return text.rjust(widths[i]) if columns[i] in ("score", "spread", "seeds") else text.ljust(widths[i])

    return "\n".join("  ".join(cell(i, text) for i, text in enumerate(line)).rstrip() for line in [columns, *lines])


def _trials(folder: Folder, described: dict[str, Any], table: list[Row]) -> tuple[tuple[str, ...], list[list[Any]]]:
    keys = list(dict.fromkeys(k for t in described["trials"].values() for k in t["overrides"]))
    complete = {r.name: r for row in table for r in row.results}
    header = ("trial", "row", "seed", "state", "score", "updates", "seconds", "attempts", *keys, "record", "command")
    lines = []
    for name, trial in described["trials"].items():
        result = complete.get(name)
        found = [result.score, result.steps, result.seconds] if result else ["", "", ""]
        attempts = sum(line["event"] == "begin" for line in folder.attempts(name))
        values = [trial["overrides"].get(key, "") for key in keys]
        again = command(described["config"], described["fixed"], trial["overrides"], f"runs/{name}")
        record = result.record if result else ""
        lines.append(
            [name, trial["row"], trial["seed"], shown_state(folder, name), *found, attempts, *values, record, again]
        )
    return header, lines


def csv_text(header: tuple[str, ...], lines: list[list[Any]]) -> str:
    """A table as the text of a CSV file."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *lines])
    return out.getvalue()
