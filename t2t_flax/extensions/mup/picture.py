"""Pictures of changes by size, and of losses by learning rate."""

from collections.abc import Mapping

from etils import epath

from t2t_flax.extensions.mup.coordinates import KINDS, Changes
from t2t_flax.extensions.shared.picture import STYLE, render
from t2t_flax.files import atomic_write


def draw_changes(
    found: Mapping[str, Mapping[int, Changes]], path: epath.PathLike, updates: int, size: str
) -> None:
    """Plot the change of each kind of activations by size.

    One panel shows it with the rules, one without.
    """

    def draw(panel, by_size: Mapping[int, Changes]) -> None:
        for kind in KINDS:
            panel.plot(
                list(by_size),
                [changes[kind][-1] for changes in by_size.values()],
                "o-",
                ms=3,
                lw=1.2,
                label=kind,
            )
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(list(by_size), [str(n) for n in by_size])
        panel.set_xlabel(size)

    _panels(found, draw, f"RMS change after {updates} updates", path)


def draw_losses(
    found: Mapping[str, Mapping[int, Mapping[float, list[float]]]], path: epath.PathLike, size: str
) -> None:
    """Plot the validation losses of all seeds by learning rate, their means as lines.

    One panel shows them with the rules, one without.
    """

    def draw(panel, by_size: Mapping[int, Mapping[float, list[float]]]) -> None:
        for n, losses in by_size.items():
            rates = sorted(losses)
            (line,) = panel.plot(
                rates, [sum(losses[x]) / len(losses[x]) for x in rates], lw=1.2, label=f"{size} {n}"
            )
            for rate in rates:
                panel.plot(
                    [rate] * len(losses[rate]), losses[rate], "o", ms=3, color=line.get_color()
                )
            best = min(rates, key=lambda x: sum(losses[x]) / len(losses[x]))
            panel.axvline(best, color=line.get_color(), lw=0.6, ls=":")
        panel.set_xscale("log", base=2)
        panel.set_xlabel("peak learning rate")

    _panels(found, draw, "validation loss (nats per token)", path)


def _panels(found: Mapping, draw, label: str, path: epath.PathLike) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 3.2), layout="constrained")
        panels = figure.subplots(1, len(found), sharey=True)
        for panel, (name, values) in zip(panels, found.items(), strict=True):
            draw(panel, values)
            panel.set_title(name, fontsize=9)
        panels[0].set_ylabel(label)
        figure.legend(
            *panels[-1].get_legend_handles_labels(),
            loc="outside right center",
            frameon=False,
            fontsize=8,
        )
    atomic_write(path, render(figure, epath.Path(path).suffix))
