"""Peak resident memory of `prepare` and `train` as the corpus grows tenfold; it should not grow.

    python -m benchmarks.memory_growth --out=benchmarks/results/memory_growth.json

The corpora are files of the built-in text, repeated with line numbers so that all lines differ. Peak memory is what the
operating system reports for each finished process and its children.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.record import publish
from t2t_flax.data.sources import toy

BASE = 20_000


def write_corpus(folder: Path, pairs: int) -> str:
    """Writes two text files of `pairs` lines; returns their data spec."""
    texts = list(toy.pairs("train", BASE))
    paths = [folder / f"{pairs}.{language}" for language in ("en", "de")]
    for n, path in enumerate(paths):
        with path.open("w") as file:
            for i in range(pairs):
                file.write(f"{i} {texts[i % BASE][n]}\n")
    return ",".join(map(str, paths))


def peak_megabytes(command: list[str], folder: Path) -> float:
    """Largest resident set of any process of the command."""
    program = (
        "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"
    )
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", program, *command], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed in {folder}:\n{done.stderr[-3000:]}")
    return int(done.stdout.split()[-1]) / 1024


def main() -> None:
    """Measures both commands at three sizes and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="50000,500000", help="pairs, comma-separated")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for pairs in map(int, args.sizes.split(",")):
            keys = [
                "--config=configs/toy.py", f"--workdir={folder / str(pairs)}",
                f"--config.data.train={write_corpus(folder, pairs)}", "--config.data.valid=", "--config.data.test=",
                "--config.data.tokenizer_sentences=40000", f"--config.train.steps={args.steps}", "--config.eval.every_steps=0",
            ]  # fmt: skip
            row = {"pairs": pairs}
            for command in ("prepare", "train"):
                row[f"{command}_peak_mb"] = round(
                    peak_megabytes([sys.executable, "-m", "t2t_flax", command, *keys], folder), 1
                )
            rows.append(row)
            print(row, flush=True)
    record = {
        "what": "peak resident memory as the corpus grows",
        "command": f"python -m benchmarks.memory_growth --sizes={args.sizes} --steps={args.steps}",
        "rows": rows,
        "growth": {c: round(rows[-1][f"{c}_peak_mb"] / rows[0][f"{c}_peak_mb"], 3) for c in ("prepare", "train")},
        "python": platform.python_version(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main()
