"""What the same bits on every mesh cost: training with `reproducible.slices` beside training without, in turn.

    python -m benchmarks.reproducible --out=benchmarks/results/reproducible.json

The batches are those of `benchmarks.training`, on 1 and 2 simulated devices; `slices = 1` and `2` are the least that the devices
allow. Each case runs in its own process; ratios are of the same round.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.environments import DEFAULT_FOLDER, Environments
from benchmarks.models import SIZES, save_batches, training_batches
from benchmarks.record import command_of, machine, publish
from benchmarks.rounds import Engine, measure, ratios, spread, threads

DEVICES, SLICES = (1, 2), (1, 2, 8)


def cases() -> dict[str, Engine]:
    """By devices and slices; 0 slices = off."""
    found = {}
    for devices in DEVICES:
        for slices in (0, *(n for n in SLICES if n % devices == 0)):
            name = f"{devices} devices, {slices} slices"
            found[name] = Engine(
                name, "ours_training", task={"devices": devices, "keys": {"reproducible.slices": slices}}
            )
    return found


def main(argv: list[str]) -> None:
    """Measures and writes the record."""
    parser = argparse.ArgumentParser("python -m benchmarks.reproducible", description=__doc__)
    parser.add_argument("--model", choices=SIZES, default="tiny")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--out", metavar="FILE.json", help="where to write the record (default: print it)")
    args = parser.parse_args(argv)
    size, engines = SIZES[args.model], cases()
    batches = training_batches(size, 3)
    tokens = sum(int((target > 0).sum()) for _, target in batches)

    def speed(result: dict[str, Any]) -> float:
        return tokens / statistics.median(map(sum, result["seconds"]))

    with tempfile.TemporaryDirectory() as folder:
        save_batches(Path(folder, "batches.npz"), batches)
        task = {
            "size": size,
            "batches": f"{folder}/batches.npz",
            "passes": args.passes,
            "threads": threads(),
            "compile_cache": f"{folder}/programs",
        }
        results, _ = measure(
            list(engines.values()), task, args.rounds, Environments(DEFAULT_FOLDER, install=False), speed
        )
    rates = {name: [speed(result) for result in each] for name, each in results.items()}
    record = {
        "what": "target tokens/s of training with the same bits on every mesh, and their ratio to those without",
        "command": command_of("reproducible", argv),
        "size": size,
        "cases": {
            name: {
                "tokens_per_second": spread(each),
                "ratio": ratios(each, rates[f"{name.partition(',')[0]}, 0 slices"]),
                "peak_rss_mb": max(result["peak_rss_mb"] for result in results[name]),
                "last_loss": results[name][0]["losses"][1],
            }
            for name, each in rates.items()
        },
        "versions": next(iter(results.values()))[0]["versions"],
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
