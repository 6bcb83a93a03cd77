"""A sweep's pictures, as SVG: learning curves, and the effect of each key."""

import io
from typing import Any

from t2t_flax.sweeps.folder import Folder
from t2t_flax.sweeps.results import Row, curve
from t2t_flax.sweeps.trials import short_keys


def pictures(folder: Folder, table: list[Row], score: str) -> dict[str, str]:
    """`curves` and `effects`, as far as there is something to draw; none where matplotlib is not installed."""
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


def _order(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)
