"""A picture of a fitted law."""

from collections.abc import Sequence

import numpy as np
from etils import epath

from t2t_flax.extensions.scaling.intervals import Interval
from t2t_flax.extensions.scaling.law_fit import LawFit
from t2t_flax.extensions.shared.picture import STYLE, render
from t2t_flax.files import atomic_write


def draw(
    found: LawFit,
    path: epath.PathLike,
    further: Sequence[tuple[float, ...]],
    measured: Sequence[float | None],
) -> None:
    """Plot losses over the law's first input.

    It shows the fitted points and the law, and, for `further` inputs, predicted and measured
    losses. With a single input the law is a curve, otherwise a mark at each point.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6, 3.6), layout="constrained")
        axes = figure.subplots()
        axes.plot(found.inputs[:, 0], found.loss, "o", ms=4, label="measured, fitted to")
        ends = [*found.inputs[:, 0], *(inputs[0] for inputs in further)]
        if found.inputs.shape[1] == 1:
            grid = np.geomspace(min(ends), max(ends), 100)[:, None]
            axes.plot(grid[:, 0], found.predict(grid), lw=1.2, color="tab:blue", label="law")
        else:
            axes.plot(
                found.inputs[:, 0],
                found.predict(found.inputs),
                "_",
                ms=10,
                color="tab:blue",
                label="law",
            )
        for number, (inputs, loss, truth) in enumerate(
            zip(further, found.losses, measured, strict=True)
        ):
            _bar(axes, inputs[0], loss, "predicted" if not number else None)
            if truth is not None:
                axes.plot(
                    [inputs[0]],
                    [truth],
                    "s",
                    ms=4,
                    color="tab:green",
                    label=None if number else "measured, held out",
                )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            set_formatter("{x:g}")
        axes.set_xlabel(found.law.inputs[0])
        axes.set_ylabel("validation loss (nats per token)")
        axes.legend(frameon=False, fontsize=8)
    atomic_write(path, render(figure, epath.Path(path).suffix))


def _bar(axes, at: float, loss: Interval, label: str | None) -> None:
    bars = [[loss.value - loss.low], [loss.high - loss.value]]
    axes.errorbar(
        [at], [loss.value], yerr=bars, fmt="_", color="tab:orange", capsize=3, label=label
    )
