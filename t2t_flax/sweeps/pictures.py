"""A sweep's pictures, as SVG: learning curves, the effect of each key, and all keys side by side."""

import io
import math
from typing import Any

from t2t_flax.sweeps.folder import Folder
from t2t_flax.sweeps.results import Row, curve
from t2t_flax.sweeps.trials import short_keys


def pictures(folder: Folder, table: list[Row], score: str) -> dict[str, str]:
    """`curves`, `effects` and `parallel`, as far as there is something to draw; none where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return {}
    found = {}
    with matplotlib.rc_context(
        {"svg.hashsalt": "sweep", "axes.spines.top": False, "axes.spines.right": False, "font.size": 9}
    ):
        learned = {row.name: [c for name in row.trials if (c := curve(folder, name))] for row in table}
        if any(learned.values()):
            found["curves"] = _svg(curves(learned))
        if any(row.mean is not None for row in table) and varied(table):
            found["effects"] = _svg(effects(table, score))
            if len(varied(table)) > 1:
                found["parallel"] = _svg(parallel(table, score))
    return found


def _svg(figure: Any) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


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
            axes.plot(*zip(*points, strict=True), color=colour, lw=1.2, marker="o", ms=2.5, label=None if n else name)
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


def parallel(table: list[Row], score: str) -> Any:
    """A matplotlib figure in parallel coordinates: an axis for each varied key and one for the score, a line for each row,
    the best one on top.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    keys = varied(table)
    rows = [row for row in reversed(table) if row.mean is not None and keys.keys() <= row.overrides.keys()]
    places = {key: dict(zip(values, _places(values), strict=True)) for key, values in keys.items()}
    means = [row.mean for row in rows]
    low, high = min(means, default=0.0), max(means, default=1.0)
    height = lambda value: (value - low) / (high - low) if high > low else 0.5  # noqa: E731
    figure = Figure(figsize=(2.2 * (len(keys) + 1), 4), layout="constrained")
    axes = figure.subplots()
    for i, row in enumerate(rows):
        ends = [places[key][row.overrides[key]] for key in keys]
        colour = colormaps["viridis"](i / max(1, len(rows) - 1))
        axes.plot([*ends, height(row.mean)], color=colour, lw=1.2, alpha=0.8)
    for x, key in enumerate(keys):
        axes.axvline(x, color="0.7", lw=0.8)
        step = -(-len(keys[key]) // 12)
        for value in keys[key][::step]:
            axes.text(x, places[key][value], f" {value}", fontsize=7, va="center")
    axes.axvline(len(keys), color="0.7", lw=0.8)
    for value in dict.fromkeys((low, high)):
        axes.text(len(keys), height(value), f" {value:.4g}", fontsize=7, va="center")
    short = short_keys(keys)
    axes.set_xticks(range(len(keys) + 1), [*(short[key] for key in keys), score])
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    return figure


def _places(values: list[str]) -> list[float]:
    """Heights from 0 to 1 of a key's values in order: numbers by size, by their logarithm where they span more than a factor
    of 20; others evenly.
    """
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        numbers = [float(i) for i in range(len(values))]
    if min(numbers) > 0 and max(numbers) > 20 * min(numbers):
        numbers = [math.log(x) for x in numbers]
    span = numbers[-1] - numbers[0] or 1.0  # 0.1 and 0.10 are one number
    return [(x - numbers[0]) / span for x in numbers]


def _order(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)
