"""Runs the speed benchmarks, each with its record, then writes the tables and pictures of docs/performance.md.

python -m benchmarks                            all, about half an hour on two quiet cores
python -m benchmarks --only=training_tiny,start
python -m benchmarks --missing                  those without a record: continues an interrupted run
python -m benchmarks --page                     only the tables, from the existing records
"""

import argparse
import subprocess
import sys

from benchmarks.environments import add_flag, variables
from benchmarks.performance_page import PAGE, RESULTS, charts, fill
from t2t_flax.filesystem import atomic_write

COMMANDS = {
    "training_tiny": ["training", "--model=tiny"],
    "training_base": ["training", "--model=base"],
    "decoding_tiny": ["decoding", "--model=tiny"],
    "decoding_base": ["decoding", "--model=base"],
    "growth": ["growth"],
    "start": ["start"],
}
TOY = "decoding_toy"
RESUMABLE = ("training", "decoding")


def write_page() -> None:
    """Writes the tables into docs/performance.md, and the pictures beside it."""
    for name, svg in charts().items():
        atomic_write(str(PAGE.parent / name), svg)
    atomic_write(str(PAGE), fill(PAGE.read_text()))


def main(argv: list[str] | None = None) -> None:
    """Runs what was asked for. A benchmark that fails does not stop the others; exits with 1 then."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="NAMES", help=f"comma-separated: {', '.join([*COMMANDS, TOY])}")
    parser.add_argument("--missing", action="store_true", help="only benchmarks without a record")
    parser.add_argument("--page", action="store_true", help="only write docs/performance.md")
    parser.add_argument("--workdir", metavar="DIR", help=f"a finished run of configs/toy.py, for {TOY} and start")
    add_flag(parser)
    args = parser.parse_args(argv)
    commands = COMMANDS | ({TOY: ["decoding", f"--workdir={args.workdir}"]} if args.workdir else {})
    names = [] if args.page else args.only.split(",") if args.only else list(commands)
    if unknown := [name for name in names if name not in commands]:
        hint = f" ({TOY} needs --workdir)" if TOY in unknown else ""
        parser.error(f"unknown benchmarks: {', '.join(unknown)}{hint}")
    failed = []
    for name in names:
        out = RESULTS / f"{name}.json"
        if args.missing and out.exists():
            continue
        module, *words = commands[name]
        words += [f"--workdir={args.workdir}"] if module == "start" and args.workdir else []
        words += [f"--environments={args.environments}", "--resume"] if module in RESUMABLE else []
        print(f"{name}: python -m benchmarks.{module} {' '.join(words)}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{module}", *words, f"--out={out}"]
        if subprocess.run(command, env=variables(), check=False).returncode:
            failed.append(name)
    write_page()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
