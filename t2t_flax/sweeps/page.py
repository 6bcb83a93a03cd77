"""A sweep's report as one HTML file, its pictures inside."""

import html
import io
from collections.abc import Sequence
from typing import Any

from t2t_flax.sweeps.attempt import log_tail
from t2t_flax.sweeps.folder import FAILED, Folder
from t2t_flax.sweeps.results import Row, curve
from t2t_flax.sweeps.trials import command, short_keys

_STYLE = """body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse } th, td { text-align: left; padding: .25rem .8rem; border-bottom: 1px solid #ddd }
td.number { text-align: right; font-variant-numeric: tabular-nums } pre { background: #f6f6f6; padding: .6rem; overflow-x: auto }
svg { max-width: 100%; height: auto } figcaption { color: #555 } tr.chosen { background: #f2f7ff }"""
NO_PICTURES = "Pictures need matplotlib: pip install 't2t-flax[plot]', then the same command again."


def page(
    folder: Folder, described: dict[str, Any], table: list[Row], score: str, columns: Sequence[str], lines: list[list[str]],
    *, pictures: bool = True,
) -> str:  # fmt: skip
    """The page: table, learning curves, effects of each key, failures with their logs, commands."""
    figures = _pictures(folder, table, score) if pictures else []
    parts = [
        f"<h1>{_safe(described['config'])}</h1>",
        f"<p>{_safe(_introduction(described, score))}</p>",
        _table(columns, lines),
        *figures,
        *_failures(folder, described),
        "<h2>Commands</h2>",
        *(_command(described, row) for row in table),
    ]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{_safe(described["config"])}</title>\n'
        f"<style>{_STYLE}</style>\n{body}\n</html>\n"
    )


def _introduction(described: dict[str, Any], score: str) -> str:
    fixed = ", ".join(f"{k} = {v}" for k, v in described["fixed"].items())
    code = described["code"]
    return (
        f"{len(described['trials'])} trials{f' with {fixed}' if fixed else ''}. score: {score}, mean over seeds; spread: their "
        "standard deviation; difference: 95 % interval and two-sided p by paired bootstrap over sentences and seeds. "
        f"t2t_flax {code['version']}, source {code['digest']}."
    )


def _table(columns: Sequence[str], lines: list[list[str]]) -> str:
    numbers = ("score", "spread", "seeds")
    head = "".join(f"<th>{name}</th>" for name in columns)
    rows = []
    for line in lines:
        cells = "".join(
            f"<td{' class=number' if name in numbers else ''}>{_safe(text)}</td>"
            for name, text in zip(columns, line, strict=True)
        )
        rows.append(f"<tr{' class=chosen' if 'compared with' in line else ''}>{cells}</tr>")
    return f"<table><tr>{head}</tr>\n" + "\n".join(rows) + "</table>"


def _failures(folder: Folder, described: dict[str, Any]) -> list[str]:
    failed = [name for name in described["trials"] if folder.state(name) == FAILED]
    shown = [f"<h3>{_safe(name)}</h3><pre>{_safe(log_tail(folder, name))}</pre>" for name in failed]
    return ["<h2>Failed</h2>", *shown] if failed else []


def _command(described: dict[str, Any], row: Row) -> str:
    told = command(described["config"], described["fixed"], row.overrides, f"runs/{row.name}")
    return f"<h3>{_safe(row.name)}</h3><pre>{_safe(told)}</pre>"


def _pictures(folder: Folder, table: list[Row], score: str) -> list[str]:
    try:
        import matplotlib
    except ImportError:
        return [f"<p>{NO_PICTURES}</p>"]
    settings = {"svg.hashsalt": "sweep", "axes.spines.top": False, "axes.spines.right": False, "font.size": 9}
    with matplotlib.rc_context(settings):
        found = []
        learned = {row.name: [c for name in row.trials if (c := curve(folder, name))] for row in table}
        if any(learned.values()):
            found += [
                "<h2>Learning curves</h2>",
                _svg(curves(learned), "Validation loss (nats a token); a line for each trial."),
            ]
        if any(row.mean is not None for row in table) and varied(table):
            found += [
                "<h2>Effects</h2>",
                _svg(effects(table, score), f"{score} by each varied key; a dot for each trial."),
            ]
        return found


def curves(learned: dict[str, list[list[tuple[int, float]]]]) -> Any:
    """A matplotlib figure: validation loss by update, a line for each trial, rows in colours."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    shown = {name: trials for name, trials in learned.items() if trials}
    for i, (name, trials) in enumerate(shown.items()):
        for n, points in enumerate(trials):
            colour = colormaps["viridis"](i / max(1, len(shown) - 1))
            axes.plot(*zip(*points, strict=True), color=colour, lw=1.2, label=None if n else name)
    axes.set_xlabel("update")
    axes.set_ylabel("validation nll")
    values = sorted(value for trials in shown.values() for points in trials for _, value in points)
    low, high = values[0], values[int(0.95 * (len(values) - 1))]
    if low < high:  # the first values would flatten the rest
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    axes.legend(fontsize=7, frameon=False, loc="upper right", ncols=1 + len(shown) // 16)
    return figure


def varied(table: list[Row]) -> dict[str, list[str]]:
    """The keys that rows set to different values, each with its values in order; rows that do not set one are left out."""
    keys = dict.fromkeys(key for row in table for key in row.overrides)
    values = {key: list(dict.fromkeys(row.overrides[key] for row in table if key in row.overrides)) for key in keys}
    return {key: sorted(found, key=_order) for key, found in values.items() if len(found) > 1}


def effects(table: list[Row], score: str) -> Any:
    """A matplotlib figure: for each varied key the scores of all trials by its value, and their mean."""
    from matplotlib.figure import Figure

    keys = varied(table)
    short = short_keys(keys)
    figure = Figure(figsize=(3 * min(3, len(keys)) + 1, 2.8 * -(-len(keys) // 3)), layout="constrained")
    grid = figure.subplots(-(-len(keys) // 3), min(3, len(keys)), squeeze=False, sharey=True).ravel()
    for axes in grid[len(keys) :]:
        axes.set_visible(False)
    for axes, (key, values) in zip(grid, keys.items(), strict=False):
        means = []
        for i, value in enumerate(values):
            scores = [
                r.score for row in table if row.overrides.get(key) == value for r in row.results if r.score is not None
            ]
            axes.plot([i] * len(scores), scores, "o", ms=3, alpha=0.5, color="tab:blue")
            means.append(sum(scores) / len(scores) if scores else float("nan"))
        axes.plot(range(len(values)), means, "-", lw=1, color="tab:orange")
        step = -(-len(values) // 8)
        axes.set_xticks(range(0, len(values), step), values[::step], rotation=30 if max(map(len, values)) > 5 else 0)
        axes.set_xlabel(short[key])
    grid[0].set_ylabel(score)
    return figure


def _svg(figure: Any, caption: str) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return f"<figure>{text[text.index('<svg') :]}<figcaption>{_safe(caption)}</figcaption></figure>"


def _order(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)


def _safe(text: str) -> str:
    return html.escape(str(text))
