"""Seconds from the command to the first update: with cold caches, and with the token stores and programs of an earlier start.

python -m benchmarks.first_step --out=benchmarks/results/first_step.json
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.record import publish


def seconds_to_first_update(workdir: Path, cache: Path) -> float:
    """Wall time from starting the process to the line that reports the first update."""
    command = [
        sys.executable, "-m", "t2t_flax", "train", "--config=configs/toy.py", f"--workdir={workdir}",
        "--config.train.steps=1", "--config.data.test=", "--config.eval.every_steps=0", f"--config.train.compile_cache={cache}",
    ]  # fmt: skip
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": os.getcwd()})
    seconds = None
    for line in process.stdout:
        if line.startswith("first update ") and seconds is None:
            seconds = time.perf_counter() - began
    if process.wait() or seconds is None:
        sys.exit(f"{' '.join(command)} failed")
    return seconds


def main() -> None:
    """Measures and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out")
    args = parser.parse_args()
    cold, warm = [], []
    with tempfile.TemporaryDirectory() as name:
        for i in range(args.repeats):
            workdir, cache = Path(name, f"run{i}"), Path(name, f"cache{i}")
            cold.append(seconds_to_first_update(workdir, cache))
            for path in ("checkpoints", "trained.json", "complete.json", "metrics.jsonl"):
                subprocess.run(["rm", "-rf", str(workdir / path)], check=True)
            warm.append(seconds_to_first_update(workdir, cache))
            print(f"cold {cold[-1]:.1f} s, warm {warm[-1]:.1f} s", flush=True)
    record = {
        "what": "seconds from the command to the first update, configs/toy.py",
        "command": f"python -m benchmarks.first_step --repeats={args.repeats}",
        "cold": {"median": round(statistics.median(cold), 2), "all": [round(x, 2) for x in cold]},
        "warm": {"median": round(statistics.median(warm), 2), "all": [round(x, 2) for x in warm]},
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
    }
    publish(record, args.out)


if __name__ == "__main__":
    main()
