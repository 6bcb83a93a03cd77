"""Seconds from a command to its first result and to its last line.

    python -m benchmarks.start --out=benchmarks/results/start.json

train: the first update of configs/toy.py, with nothing cached, then with the token stores and
compiled programs of that start.
translate: one line, and all of 512 lines of one to four sentences, with no compiled programs, then
with the programs of the first time, by the model --workdir.
serve: likewise, until /ready answers.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.environments import variables
from benchmarks.record import command_of, machine, publish
from benchmarks.rounds import spread
from benchmarks.serving import served
from t2t_flax.data.sources import toy
from t2t_flax.model_forms import is_name

TRAIN = ["train", "--config=configs/toy.py", "--config.data.test=", "--config.eval.every_steps=0"]
LINE = "Where is the dog?\n"
LINES = 512


def seconds_until(
    command: list[str], programs: Path, ready: Callable[[str], bool], text: str = ""
) -> float:
    """Return the seconds from starting `python -m t2t_flax COMMAND` to its first ready line.

    The command runs to its end.

    Args:
      programs: folder that caches compiled programs.
      ready: returns whether a line is the awaited one.
    """
    began, seconds = time.perf_counter(), None
    process = subprocess.Popen(
        [sys.executable, "-m", "t2t_flax", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=variables(PYTHONUNBUFFERED="1", JAX_COMPILATION_CACHE_DIR=str(programs)),
        cwd=Path(__file__).parents[1],
    )
    process.stdin.write(text)
    process.stdin.close()
    for line in process.stdout:
        if seconds is None and ready(line):
            seconds = time.perf_counter() - began
    if process.wait() or seconds is None:
        sys.exit(f"python -m t2t_flax {' '.join(command)} failed")
    return seconds


def time_to_first_update(folder: Path, overrides: list[str]) -> tuple[float, float]:
    """Return the seconds with nothing cached, and with the caches of that start.

    The second start trains again from update 0.
    """
    workdir, out = folder / "run", []
    command = [
        *TRAIN,
        f"--workdir={workdir}",
        "--config.train.steps=1",
    ]
    for _ in range(2):
        out.append(
            seconds_until(
                [*command, *overrides],
                folder / "programs",
                lambda line: line.startswith("first update "),
            )
        )
        for name in ("checkpoints", "trained.json", "complete.json", "metrics.jsonl"):
            subprocess.run(["rm", "-rf", str(workdir / name)], check=True)
    return out[0], out[1]


def mixed_lines() -> str:
    """Return lines of one to four sentences of the built-in corpus."""
    sentences = itertools.cycle(source for source, _ in toy.pairs("test", 500))
    return "".join(" ".join(itertools.islice(sentences, 1 + i % 4)) + "\n" for i in range(LINES))


def time_to_last_line(folder: Path, workdir: str, text: str) -> tuple[float, float]:
    """Return the seconds with no compiled programs, and with the programs of the first time."""
    command = ["translate", f"--workdir={workdir}"]
    out = []
    for _ in range(2):
        numbers = itertools.count(1)
        out.append(
            seconds_until(
                command,
                folder / "programs",
                lambda line, n=numbers: next(n) == text.count("\n"),
                text,
            )
        )
    return out[0], out[1]


def time_until_ready(folder: Path, workdir: str) -> tuple[float, float]:
    """Return the seconds with no compiled programs, and with the programs of the first time."""
    out = []
    for _ in range(2):
        with served(workdir, programs=folder / "programs") as server:
            out.append(server.started)
    return out[0], out[1]


def main(argv: list[str]) -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.start",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--workdir", metavar="DIR", default="pretrained:toy", help="the model that translates"
    )
    parser.add_argument(
        "--out", metavar="FILE.json", help="where to write the record (default: print it)"
    )
    args, overrides = parser.parse_known_args(argv)
    if unknown := [word for word in overrides if not word.startswith("--config.")]:
        parser.error(f"unknown arguments: {' '.join(unknown)}")
    workdir = args.workdir if is_name(args.workdir) else str(Path(args.workdir).absolute())
    update, line, lines, ready = ([], []), ([], []), ([], []), ([], [])
    with tempfile.TemporaryDirectory() as name:
        for i in range(args.repeats):
            folder = Path(name, str(i))
            for times, seconds in zip(
                update, time_to_first_update(folder / "train", overrides), strict=True
            ):
                times.append(seconds)
            print(
                f"first update: cold {update[0][-1]:.1f} s, warm {update[1][-1]:.1f} s", flush=True
            )
            for what, measured, text in (
                ("one line", line, LINE),
                (f"{LINES} lines", lines, mixed_lines()),
            ):
                for times, seconds in zip(
                    measured, time_to_last_line(folder / what, workdir, text), strict=True
                ):
                    times.append(seconds)
                print(
                    f"{what}: cold {measured[0][-1]:.1f} s, warm {measured[1][-1]:.1f} s",
                    flush=True,
                )
            for times, seconds in zip(
                ready, time_until_ready(folder / "serve", workdir), strict=True
            ):
                times.append(seconds)
            print(f"server ready: cold {ready[0][-1]:.1f} s, warm {ready[1][-1]:.1f} s", flush=True)
    record = {
        "what": (
            "seconds from the command to the first update (configs/toy.py), the first translated"
            " line and a ready server"
        ),
        "command": command_of("start", argv),
        "first_update": {"cold": spread(update[0]), "warm": spread(update[1])},
        "first_line": {"cold": spread(line[0]), "warm": spread(line[1])},
        "mixed_lines": {"cold": spread(lines[0]), "warm": spread(lines[1])},
        "server_ready": {"cold": spread(ready[0]), "warm": spread(ready[1])},
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
