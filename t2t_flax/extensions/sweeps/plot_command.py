"""`plot`: metrics of runs and sweeps over updates, as a picture."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from t2t_flax.cli import arguments
from t2t_flax.errors import OK, UserError
from t2t_flax.extensions.shared.picture import STYLE, check_picture, render
from t2t_flax.extensions.sweeps.curves import (
    Curve,
    default_metrics,
    default_window,
    read_curves,
    smoothed,
)
from t2t_flax.files import atomic_write

LABELS = {
    **{name: f"{name} (nats per token)" for name in ("loss", "nll", "valid_loss", "valid_nll")},
    "valid_bleu": "BLEU of the validation text",
    "learning_rate": "learning rate",
    "target_tokens_per_second": "target tokens per second",
}
"""Labels of axes; other metrics have their names."""
EXACT = "learning_rate"
"""Metric without noise, which is not smoothed."""
LINES, MARKERS = ("-", "--", "-.", ":"), "oxs+"
"""Lines and markers of the curves, in turn."""


def run(argv: list[str]) -> int:
    """Return exit code 0 when the picture is written."""
    parser = arguments.parser(
        "plot",
        "Draws metrics of runs over updates, from WORKDIR/metrics.jsonl: training as means over"
        " some updates, with the\nvalues behind them, validation as markers. A dotted line marks"
        " where a run was resumed. A sweep has a curve for\neach row: the mean over its seeds, in a"
        " band from the lowest to the highest.",
        epilog=(
            "Examples:\n  python -m t2t_flax plot runs/toy\n  python -m t2t_flax plot runs/a runs/b"
            " --metrics=loss,valid_bleu,grad_norm --out=runs.png\n  python -m t2t_flax plot"
            " sweeps/dropout --metrics=valid_nll"
        ),
    )
    parser.add_argument("workdirs", nargs="+", metavar="WORKDIR", help="of runs, or of sweeps")
    parser.add_argument(
        "--metrics",
        metavar="NAMES",
        help=(
            "a panel for each of these names in metrics.jsonl, separated by commas; the panel of"
            " NAME also shows valid_NAME (default: loss, the first score of translations,"
            " learning_rate and target_tokens_per_second)"
        ),
    )
    parser.add_argument(
        "--smooth",
        type=arguments.count(1),
        metavar="N",
        help="updates of a mean; 1 = none (default: a fortieth of the longest run)",
    )
    parser.add_argument(
        "--out", default="plot.svg", metavar="FILE", help=".svg, .png or .pdf (default: plot.svg)"
    )
    args, overrides = arguments.parse(parser, argv)
    if overrides:
        raise UserError("plot reads what runs have logged: leave out --config.KEY=VALUE.")
    check_picture("--out", args.out)
    arguments.check_output("--out", args.out)
    curves, waiting = read_curves(args.workdirs)
    metrics = _metrics(args.metrics, curves) if args.metrics else default_metrics(curves)
    figure = draw(curves, metrics, args.smooth or default_window(curves))
    atomic_write(args.out, render(figure, epath.Path(args.out).suffix))
    if waiting:
        print(f"without metrics so far: {', '.join(waiting)}")
    print(f"picture: {args.out}")
    return OK


def _metrics(text: str, curves: Sequence[Curve]) -> list[str]:
    """Return the names in --metrics. Raises UserError for one that no run has."""
    wanted = [name.strip() for name in text.split(",")]
    known = dict.fromkeys(name for curve in curves for name in curve.names)
    if unknown := [name for name in wanted if name not in known]:
        shown = dict.fromkeys(re.sub(r"/.*", "/...", name) for name in known)
        raise UserError(
            f"--metrics: no run has {', '.join(map(repr, unknown))}. They have {', '.join(shown)}."
        )
    return wanted


def draw(curves: Sequence[Curve], metrics: Sequence[str], window: int) -> Any:
    """Return a figure with a panel for each metric.

    Args:
        window: updates of the mean that smooths training metrics.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    columns = min(2, len(metrics))
    rows = -(-len(metrics) // columns)
    looks = [
        {
            "color": f"C{number % 10}",
            "ls": LINES[number % len(LINES)],
            "lw": 1.2,
            "marker": MARKERS[number % len(MARKERS)],
            "ms": 5,
        }
        for number in range(len(curves))
    ]
    if len(curves) > 1:  # an equal curve on top leaves the first one visible
        looks[0] |= {"lw": 3.2, "ms": 7, "alpha": 0.5}
    legend = {curve.label: look | {"marker": ""} for curve, look in zip(curves, looks, strict=True)}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1 + 3.8 * columns, 0.6 + 2.4 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for name, panel in zip(metrics, panels, strict=False):
            for curve, look in zip(curves, looks, strict=True):
                legend |= _draw_curve(panel, curve, look, name, window)
            panel.set_ylabel(LABELS.get(name, name))
            panel.set_xlabel("update")
            panel.set_xlim(0, 1.02 * max(curve.last_step for curve in curves))
            panel.xaxis.set_major_locator(MaxNLocator(6))
            panel.xaxis.set_major_formatter("{x:,.0f}")
            panel.ticklabel_format(axis="y", scilimits=(-2, 5))
            panel.grid(alpha=0.25, lw=0.5)
        for panel in panels:  # left over in the last row
            panel.set_axis_off()
        _draw_legend(figure, legend)
    return figure


def _draw_curve(
    panel: Any, curve: Curve, look: Mapping[str, Any], name: str, window: int
) -> dict[str, dict[str, Any]]:
    """Draw a metric of a curve, and its validation metric as markers.

    Returns further entries of the legend, as arguments of lines by label.
    """
    entries: dict[str, dict[str, Any]] = {}
    color, line = look["color"], dict(look)
    steps, values = curve.series(name)
    means = values
    if not name.startswith("valid_"):
        line["marker"] = ""
        means = values if name == EXACT else smoothed(steps, values, window)
    if is_smoothed := not np.allclose(means, values, rtol=1e-6, equal_nan=True):
        entries[f"mean of {window:,} updates"] = {"lw": 1.2}
    if len(values) > 1:
        panel.fill_between(steps, means.min(0), means.max(0), color=color, alpha=0.2, lw=0)
    elif is_smoothed:
        panel.plot(steps, values[0], color=color, alpha=0.3, lw=0.6)
    panel.plot(steps, means.mean(0), **line)
    steps, values = curve.series(f"valid_{name}")
    if len(steps):
        panel.plot(steps, values.mean(0), **{**look, "ls": ""})
        entries["validation"] = {"ls": "", "marker": "o", "ms": 5}
    for step in curve.restarts:
        panel.axvline(step, color=color, lw=0.9, ls=":")
        entries["resumed"] = {"lw": 0.9, "ls": ":"}
    return {label: {"color": "0.4"} | entry for label, entry in entries.items()}


def _draw_legend(figure: Any, legend: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw the legend above the panels, in as many lines as its labels need."""
    from matplotlib.lines import Line2D

    width, height = figure.get_size_inches()
    room, widths = int(13 * width), [len(label) + 6 for label in legend]  # characters
    columns = len(legend) if sum(widths) <= room else max(1, room // max(widths))
    figure.set_figheight(height + 0.18 * -(-len(legend) // columns))
    lines = [Line2D([], [], **form) for form in legend.values()]
    figure.legend(lines, [*legend], loc="outside upper center", ncols=columns, frameon=False)
