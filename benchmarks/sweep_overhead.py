"""The overhead of a sweep: its wall time next to that of the same trainings by hand, and that of a worker of two processes on
this machine next to one process with as many devices, measured alternately.

python -m benchmarks.sweep_overhead --out=benchmarks/results/sweep_overhead.json
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.record import machine, publish
from t2t_flax.extensions.sweeps.device_hours import make_bill
from t2t_flax.extensions.sweeps.folder import COMPLETE, Folder, read_sweep

TRIAL = {
    "data.train": "toy:train:2000", "data.valid": "toy:valid:20", "data.test": "toy:test:20", "train.steps": "30",
    "eval.every_steps": "15", "checkpoint.every_steps": "15", "model.d_model": "64", "model.d_ff": "64",
}  # fmt: skip


TWO_DEVICES, ONE_DEVICE = "--config.mesh.cpu_devices=2", "--config.mesh.cpu_devices=1"
POD = ["launch/local_pod.sh", "2", "--"]


def seconds(*arguments: str, launcher: Sequence[str] = ()) -> float:
    """Wall time of a command; exits if it fails."""
    began = time.perf_counter()
    result = subprocess.run(
        [*launcher, sys.executable, "-m", "t2t_flax", *arguments],
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
    )
    if result.returncode:
        sys.exit(f"{' '.join(arguments)} failed:\n{result.stdout}{result.stderr}")
    return time.perf_counter() - began


def device_hours(sweep: Path, trials: int) -> float:
    """CPU device-hours of a finished sweep, as its report counts them. Exits if a trial is missing."""
    folder, names = Folder(sweep), list(read_sweep(sweep)["trials"])
    bill = make_bill(folder, names, None)
    if len(names) != trials or set(bill.states.values()) != {COMPLETE}:
        sys.exit(f"{sweep}: expected {trials} complete trials, found {dict(bill.states)}")
    return round(bill.total(*names), 4)


def main() -> None:
    """Measures, and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out")
    args = parser.parse_args()
    rates = [f"{0.001 * (i + 1):g}" for i in range(args.trials)]
    by_hand, swept, pods = [], [], []
    with tempfile.TemporaryDirectory() as name:
        common = ["--config=configs/toy.py", *(f"--config.{key}={value}" for key, value in TRIAL.items())]
        common.append(f"--config.data.cache={name}/data")
        # To fill the caches of data and compiled programs.
        seconds("train", *common, TWO_DEVICES, f"--workdir={name}/first")
        seconds("train", *common, ONE_DEVICE, f"--workdir={name}/first-pod", launcher=POD)
        for i in range(args.rounds):
            times = [
                seconds(
                    "train",
                    *common,
                    TWO_DEVICES,
                    f"--config.optimizer.peak_lr={rate}",
                    f"--workdir={Path(name, f'hand{i}-{n}')}",
                )
                for n, rate in enumerate(rates)
            ]
            by_hand.append(sum(times))
            trials = [*common, "--set", f"optimizer.peak_lr={','.join(rates)}"]
            swept.append(seconds("sweep", *trials, TWO_DEVICES, f"--workdir={name}/s{i}"))
            pods.append(seconds("sweep", *trials, ONE_DEVICE, f"--workdir={name}/p{i}", launcher=POD))
            print(
                f"by hand {by_hand[-1]:.1f} s, sweep {swept[-1]:.1f} s, on two processes {pods[-1]:.1f} s", flush=True
            )
        hours = [device_hours(Path(name, folder), args.trials) for folder in ("s0", "p0")]
    extra = [(a - b) / args.trials for a, b in zip(swept, by_hand, strict=True)]
    record = {
        "what": f"a sweep of {args.trials} short trainings in one process and on a pod of two, and the same trainings by hand",
        "command": f"python -m benchmarks.sweep_overhead --trials={args.trials} --rounds={args.rounds}",
        "seconds_by_hand": [round(x, 2) for x in by_hand],
        "seconds_of_the_sweep": [round(x, 2) for x in swept],
        "seconds_on_two_processes": [round(x, 2) for x in pods],
        "ratio": round(statistics.median(a / b for a, b in zip(swept, by_hand, strict=True)), 3),
        "ratio_of_two_processes": round(statistics.median(a / b for a, b in zip(pods, swept, strict=True)), 3),
        "cpu_device_hours": dict(zip(("sweep", "on two processes"), hours, strict=True)),
        "extra_seconds_a_trial": round(statistics.median(extra), 2),
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main()
