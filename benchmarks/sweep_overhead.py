"""The overhead of a sweep: its wall time next to that of the same trainings by hand, measured alternately.

python -m benchmarks.sweep_overhead --out=benchmarks/results/sweep_overhead.json
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.record import machine, publish

TRIAL = {
    "data.train": "toy:train:2000", "data.valid": "toy:valid:20", "data.test": "toy:test:20", "train.steps": "30",
    "eval.every_steps": "15", "checkpoint.every_steps": "15", "model.d_model": "64", "model.d_ff": "64",
}  # fmt: skip


def seconds(*arguments: str) -> float:
    """Wall time of a command; exits if it fails."""
    began = time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-m", "t2t_flax", *arguments],
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
    )
    if result.returncode:
        sys.exit(f"{' '.join(arguments)} failed:\n{result.stdout}{result.stderr}")
    return time.perf_counter() - began


def main() -> None:
    """Measures, and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out")
    args = parser.parse_args()
    rates = [f"{0.001 * (i + 1):g}" for i in range(args.trials)]
    by_hand, swept = [], []
    with tempfile.TemporaryDirectory() as name:
        common = ["--config=configs/toy.py", *(f"--config.{key}={value}" for key, value in TRIAL.items())]
        common.append(f"--config.data.cache={name}/data")
        seconds("train", *common, f"--workdir={name}/first")  # fills the caches of data and compiled programs
        for i in range(args.rounds):
            times = [
                seconds(
                    "train", *common, f"--config.optimizer.peak_lr={rate}", f"--workdir={Path(name, f'hand{i}-{n}')}"
                )
                for n, rate in enumerate(rates)
            ]
            by_hand.append(sum(times))
            swept.append(
                seconds("sweep", *common, "--set", f"optimizer.peak_lr={','.join(rates)}", f"--workdir={name}/s{i}")
            )
            print(f"by hand {by_hand[-1]:.1f} s, sweep {swept[-1]:.1f} s", flush=True)
    extra = [(a - b) / args.trials for a, b in zip(swept, by_hand, strict=True)]
    record = {
        "what": f"a sweep of {args.trials} short trainings, and the same trainings by hand",
        "command": f"python -m benchmarks.sweep_overhead --trials={args.trials} --rounds={args.rounds}",
        "seconds_by_hand": [round(x, 2) for x in by_hand],
        "seconds_of_the_sweep": [round(x, 2) for x in swept],
        "ratio": round(statistics.median(a / b for a, b in zip(swept, by_hand, strict=True)), 3),
        "extra_seconds_a_trial": round(statistics.median(extra), 2),
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main()
