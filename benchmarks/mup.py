"""The best learning rates of models of several widths, with muP and without, from the runs of a sweep: whether the best of the
base width is the best of the others.

python -m t2t_flax sweep --sweep=configs/sweeps/widths.py --workdir=sweeps/widths --parallel=2 --stack=4
python -m benchmarks.mup sweeps/widths --picture=docs/mup_transfer.svg --out=benchmarks/results/mup.json
"""

import argparse
import math
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.record import command_of, machine, publish
from t2t_flax import config as config_lib
from t2t_flax.extensions.mup import picture
from t2t_flax.training.progress import read_metrics

WITH, WITHOUT = "with muP", "without"
Losses = dict[float, list[float]]
"""By rate: the validation losses of the seeds, infinite where the run diverged."""


def read(sweep: Path) -> dict[str, dict[int, Losses]]:
    """The losses at the end of all runs that have ended, by rule and width. Those of the base width are in both."""
    runs = []
    for workdir in sorted((sweep / "trials").iterdir()):
        if not (workdir / "complete.json").exists() and not (workdir / "diverged.json").exists():
            print(f"left out, has not ended: {workdir.name}", file=sys.stderr)
            continue
        config = config_lib.from_json((workdir / "config.json").read_text())
        done = (workdir / "complete.json").exists()
        losses = [line["valid_nll"] for line in read_metrics(workdir) if "valid_nll" in line] if done else [math.inf]
        base = config.value("mup.base_width")
        runs.append((config.model.d_model, base, config.optimizer.peak_lr, losses[-1]))
    (base,) = {base for _, base, _, _ in runs if base}
    found: dict[str, dict[int, Losses]] = {WITHOUT: {}, WITH: {}}
    for name, wanted in ((WITHOUT, 0), (WITH, base)):
        for width, own, rate, loss in sorted(runs):
            if own == wanted or width == base:
                found[name].setdefault(width, {}).setdefault(rate, []).append(loss)
    return found


def best_rate(losses: Mapping[float, float]) -> tuple[float, bool]:
    """(The lowest point of the parabola in log rate through the best rate and its neighbours, whether the best is inside): the
    best rate itself where it is the first or last, or a neighbour diverged.
    """
    rates = sorted(losses)
    best = min(range(len(rates)), key=lambda i: losses[rates[i]])
    near = rates[max(0, best - 1) : best + 2]
    if len(near) < 3 or not all(math.isfinite(losses[rate]) for rate in near):
        return rates[best], 0 < best < len(rates) - 1
    a, b, _ = np.polyfit(np.log(near), [losses[rate] for rate in near], 2)
    return float(np.exp(-b / (2 * a))), True


def summary(by_width: Mapping[int, Losses]) -> dict[int, dict[str, object]]:
    """Of each width: the best rate, as a multiple of the narrowest one's too, and of each seed; the loss at the rate of the grid
    that is best at the narrowest width, above the lowest.
    """
    means = {width: {rate: float(np.mean(x)) for rate, x in losses.items()} for width, losses in by_width.items()}
    narrowest = min(means)
    own, _ = best_rate(means[narrowest])
    carried = min(means[narrowest], key=means[narrowest].__getitem__)
    found = {}
    for width, losses in means.items():
        best, inside = best_rate(losses)
        seeds = [
            best_rate({rate: values[i] for rate, values in by_width[width].items()})[0]
            for i in range(min(map(len, by_width[width].values())))
        ]
        found[width] = {
            "best_rate": round(best, 6),
            "inside_the_grid": inside,
            "of_each_seed": [round(x, 6) for x in seeds],
            "multiple_of_the_narrowest": round(best / own, 3),
            "lowest_loss": round(min(losses.values()), 4),
            "loss_at_the_narrowest_ones_best": round(losses[carried], 4) if carried in losses else None,
        }
    return found


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--out")
    args = parser.parse_args(argv)
    found = read(args.sweep)
    shown = lambda losses: [round(x, 4) if math.isfinite(x) else None for x in losses]  # noqa: E731
    losses = {
        name: {
            width: {f"{rate:.6g}": shown(values) for rate, values in by_rate.items()} for width, by_rate in of.items()
        }
        for name, of in found.items()
    }
    record = {
        "what": "validation loss (nats per token) by d_model and peak learning rate, all seeds; the best rates",
        "command": command_of(
            "mup", [f"sweeps/{args.sweep.name}", *(word for word in argv if word != str(args.sweep))]
        ),
        "machine": machine(),
        "best": {name: summary(of) for name, of in found.items()},
        "losses": losses,
    }
    publish(record, args.out)
    if args.picture:
        picture.draw_losses(found, args.picture)


if __name__ == "__main__":
    main(sys.argv[1:])
