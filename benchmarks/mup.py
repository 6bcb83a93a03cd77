"""Best learning rates by width or depth, with and without the rules of config.mup, from a sweep.

They show whether the best rate of the base model is the best of the others.

python -m t2t_flax sweep --sweep=configs/sweeps/sizes.py --workdir=sweeps/widths --parallel=2
python -m benchmarks.mup sweeps/widths --picture=docs/mup_transfer.svg \\
    --out=benchmarks/results/mup.json
python -m benchmarks.mup sweeps/depths --of=depth --picture=docs/mup_depths.svg \\
    --out=benchmarks/results/mup_depth.json
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

WITH, WITHOUT = "with the rules", "without"
SIZES = {
    "width": ("d_model", "mup.base_width", "d_model"),
    "depth": ("num_decoder_layers", "mup.base_layers", "layers"),
}
"""--of: (key of the model, key of the base model, label of the picture)."""
Losses = dict[float, list[float]]
"""By rate: the validation losses of the seeds, infinite where the run diverged."""


def read(sweep: Path, of: str) -> dict[str, dict[int, Losses]]:
    """Return the losses of all ended runs, by rule and size. Both rules have the base size."""
    runs = []
    name, base_key, _ = SIZES[of]
    for workdir in sorted((sweep / "trials").iterdir()):
        if not (workdir / "complete.json").exists() and not (workdir / "diverged.json").exists():
            print(f"left out, has not ended: {workdir.name}", file=sys.stderr)
            continue
        config = config_lib.from_json((workdir / "config.json").read_text())
        done = (workdir / "complete.json").exists()
        losses = (
            [line["valid_nll"] for line in read_metrics(workdir) if "valid_nll" in line]
            if done
            else [math.inf]
        )
        runs.append(
            (
                getattr(config.model, name),
                config.value(base_key),
                config.optimizer.peak_lr,
                losses[-1],
            )
        )
    (base,) = {base for _, base, _, _ in runs if base}
    found: dict[str, dict[int, Losses]] = {WITHOUT: {}, WITH: {}}
    for rule, wanted in ((WITHOUT, 0), (WITH, base)):
        for size, own, rate, loss in sorted(runs):
            if own == wanted or size == base:
                found[rule].setdefault(size, {}).setdefault(rate, []).append(loss)
    return found


def best_rate(losses: Mapping[float, float]) -> tuple[float, bool]:
    """Return the best rate, and whether it is inside the grid.

    It is the lowest point of the parabola in log rate through the best rate and its neighbours; the
    best rate itself where it is the first or last, or a neighbour diverged.
    """
    rates = sorted(losses)
    best = min(range(len(rates)), key=lambda i: losses[rates[i]])
    near = rates[max(0, best - 1) : best + 2]
    if len(near) < 3 or not all(math.isfinite(losses[rate]) for rate in near):
        return rates[best], 0 < best < len(rates) - 1
    a, b, _ = np.polyfit(np.log(near), [losses[rate] for rate in near], 2)
    return float(np.exp(-b / (2 * a))), True


def summary(by_size: Mapping[int, Losses]) -> dict[int, dict[str, object]]:
    """Summarise each size: its best rates, and the loss at the smallest size's best rate.

    The best rate is given as a number, as a multiple of the smallest size's, and by seed.
    """
    means = {
        size: {rate: float(np.mean(x)) for rate, x in losses.items()}
        for size, losses in by_size.items()
    }
    smallest = min(means)
    own, _ = best_rate(means[smallest])
    carried = min(means[smallest], key=means[smallest].__getitem__)
    found = {}
    for size, losses in means.items():
        best, inside = best_rate(losses)
        seeds = [
            best_rate({rate: values[i] for rate, values in by_size[size].items()})[0]
            for i in range(min(map(len, by_size[size].values())))
        ]
        found[size] = {
            "best_rate": round(best, 6),
            "inside_the_grid": inside,
            "of_each_seed": [round(x, 6) for x in seeds],
            "multiple_of_the_smallest": round(best / own, 3),
            "lowest_loss": round(min(losses.values()), 4),
            "loss_at_the_smallest_ones_best": (
                round(losses[carried], 4) if carried in losses else None
            ),
        }
    return found


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sweep", type=Path)
    parser.add_argument(
        "--of", choices=SIZES, default="width", help="what differs between the models"
    )
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--out")
    args = parser.parse_args(argv)
    found = read(args.sweep, args.of)
    shown = lambda losses: [round(x, 4) if math.isfinite(x) else None for x in losses]  # noqa: E731
    losses = {
        name: {
            size: {f"{rate:.6g}": shown(x) for rate, x in by_rate.items()}
            for size, by_rate in by_size.items()
        }
        for name, by_size in found.items()
    }
    record = {
        "what": (
            f"validation loss (nats per token) by {args.of} and peak learning rate, all seeds; the"
            " best rates"
        ),
        "command": command_of(
            "mup",
            [f"sweeps/{args.sweep.name}", *(word for word in argv if word != str(args.sweep))],
        ),
        "machine": machine(),
        "best": {name: summary(by_size) for name, by_size in found.items()},
        "losses": losses,
    }
    publish(record, args.out)
    if args.picture:
        picture.draw_losses(found, args.picture, SIZES[args.of][2])


if __name__ == "__main__":
    main(sys.argv[1:])
