"""Plots of a sweep: learning curves, differences of rows, and the effect of each key."""

import dataclasses
import importlib.util
import io
import math
from typing import Any

from t2t_flax.extensions.sweeps.folder import Folder
from t2t_flax.extensions.sweeps.results import learning_curve
from t2t_flax.extensions.sweeps.rows import Row
from t2t_flax.extensions.sweeps.trials import short_keys

_STYLE = {"svg.hashsalt": "sweep", "axes.spines.top": False, "axes.spines.right": False, "font.size": 9}


@dataclasses.dataclass(frozen=True)
class Plot:
    """A picture of the report as SVG."""

    title: str
    caption: str
    svg: str


def make_plots(folder: Folder, table: list[Row], score: str, reference: str) -> dict[str, Plot] | None:
    """`curves`, `differences` and `effects`, those that have data; None if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    import matplotlib

    plots = {}
    with matplotlib.rc_context(_STYLE):
        for key, label in (("valid_nll", "validation loss"), ("loss", "training loss")):
            curves = {row.name: [c for n in row.trials if (c := learning_curve(folder, n, key))] for row in table}
            if any(len(points) > 1 for trials in curves.values() for points in trials):
                caption = "Loss in nats per token, one line per trial."
                plots["curves"] = Plot("Learning curves", caption, _to_svg(plot_curves(curves, label)))
                break
        if any(row.comparison for row in table):
            caption = (
                f"{score}: one dot per seed. Bars are the intervals of the table, drawn from the mean of {reference} "
            )
            caption += "(dashed): a row whose bar does not reach that line differs."
            plots["differences"] = Plot("Differences", caption, _to_svg(plot_differences(table, score, reference)))
        if len(varied_keys(table)) > 1 and any(row.mean is not None for row in table):
            caption = f"{score} by each varied key, one dot per trial and the mean over all of them."
            plots["effects"] = Plot("Effects", caption, _to_svg(plot_effects(table, score)))
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
    axes.set_xlabel(score)
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
