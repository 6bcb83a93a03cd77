"""Kills training with SIGKILL at random moments, restarts it until it is complete, and compares it with an undisturbed
run: parameters, optimizer state, metrics.jsonl and record must be bit-identical.

python -m benchmarks.kill_drill --kills=50

The moments are drawn (with --seed) over the whole life of a process: imports, data, compilation, updates, saves,
evaluations, the final record. benchmarks/results/kill_drill.log gets a line for each kill. Exit code 1: a run differs.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from t2t_flax.filesystem import list_numbers
from t2t_flax.monitoring.metrics_writer import read_metrics

ROOT = Path(__file__).parents[1]
STEPS = 60
BASE = {
    "data.train": "toy:train:400", "data.valid": "toy:valid:24", "data.test": "toy:test:12", "data.vocab_size": 300,
    "data.byte_fallback": "false", "data.max_length": 64, "data.pack_length": 64, "data.batch_tokens": 512,
    "data.num_workers": 1, "model.d_model": 16, "model.d_ff": 32, "model.num_heads": 4, "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1, "model.dropout": 0.1, "model.pad_vocab_to_multiple": 8, "optimizer.warmup_steps": 10,
    "train.steps": STEPS, "checkpoint.every_steps": 5, "checkpoint.keep_last": 3, "checkpoint.keep_best": 1,
    "eval.every_steps": 10, "eval.samples": 0, "eval.bootstrap_samples": 10, "log.every_steps": 1,
    "log.trackers": "", "decode.max_length_offset": 3, "decode.batch_size": 4, "mesh.cpu_devices": 1,
}  # fmt: skip
CONFIGS = {
    "packed": {},
    "buckets": {"data.batching": "buckets"},
    "padded_tokens": {"data.batch_size_counts": "padded_tokens", "data.batch_groups": 4, "data.batch_tokens": 1024},
    "ema": {"optimizer.ema_decay": 0.9, "data.microbatch_tokens": 256},
    "accumulation": {"data.microbatch_tokens": 128, "checkpoint.average_last": 2},
    "epochs": {
        "checkpoint.every_steps": 0,
        "checkpoint.every_epochs": 1,
        "eval.every_steps": 0,
        "eval.every_epochs": 1,
    },
    "bleu": {
        "eval.decode_every_steps": 20,
        "eval.decode_sentences": 8,
        "eval.metric": "bleu",
        "checkpoint.every_steps": 7,
    },
}
TIMES = ("seconds", "target_tokens_per_second", "mfu_")
"""Prefixes of the names of time measurements in metrics.jsonl and in records."""
LOG = ROOT / "benchmarks" / "results" / "kill_drill.log"


@dataclasses.dataclass
class Undisturbed:
    """An undisturbed run, and how long its process took with a warm compilation cache."""

    workdir: Path
    seconds: float
    trained: float
    """Seconds from the start of the process to its first update."""


class Difference(Exception):
    """A killed run differs from the undisturbed one, or could not be completed."""


def command(workdir: Path, name: str, programs: Path) -> list[str]:
    """The command of a run, the same at each start."""
    keys = BASE | CONFIGS[name] | {"train.compile_cache": programs}
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    return [sys.executable, "-m", "t2t_flax", "train", "--config=configs/toy.py", f"--workdir={workdir}", *flags]


def start(workdir: Path, name: str, programs: Path) -> subprocess.Popen:
    """A process that trains; its output is added to WORKDIR.log."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(ROOT),
    }
    with output_of(workdir).open("ab") as log:
        return subprocess.Popen(
            command(workdir, name, programs), env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
        )


def output_of(workdir: Path) -> Path:
    return workdir.with_name(f"{workdir.name}.log")


def undisturbed(folder: Path, name: str, programs: Path) -> Undisturbed:
    """Runs a config twice: the first run fills the compilation cache, the second is timed."""
    run = None
    for number in range(2):
        workdir = folder / f"whole-{name}-{number}"
        began = time.monotonic()
        process = start(workdir, name, programs)
        while not read_metrics(workdir) and process.poll() is None:
            time.sleep(0.02)
        trained = time.monotonic() - began
        if process.wait():
            sys.exit(f"{name}: the undisturbed run failed\n{output_of(workdir).read_text()[-4000:]}")
        seconds = time.monotonic() - began
        if run:
            assert_same(run.workdir, workdir)
        run = Undisturbed(workdir, seconds, trained)
    return run


def moment(rng: random.Random, whole: Undisturbed) -> tuple[str, float]:
    """When to kill: ("after", seconds) after the start of the process; ("saving", seconds) after the start of a save."""
    kind = rng.choice(("life", "life", "training", "training", "saving"))
    if kind == "life":
        return "after", rng.uniform(0.1, whole.seconds)
    if kind == "training":
        return "after", rng.uniform(whole.trained - 0.3, whole.seconds)
    return "saving", rng.uniform(0.0, 0.15)


def kill(process: subprocess.Popen, workdir: Path, kind: str, seconds: float, rng: random.Random) -> float | None:
    """Kills the process at its moment; returns the seconds that it lived, or None where it had ended before."""
    began = time.monotonic()
    if kind == "saving":
        nth, seen = rng.randint(1, 6), set()
        while process.poll() is None and len(seen) < nth:
            seen |= {path.name for path in workdir.glob("checkpoints/*.orbax-checkpoint-tmp*")}
            time.sleep(0.001)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    return time.monotonic() - began if process.wait() == -signal.SIGKILL else None


def phase_of(workdir: Path, name: str) -> tuple[str, int]:
    """What a killed process was doing, judged by its files, and the last update that it logged."""
    lines = read_metrics(workdir)
    step = max((line["step"] for line in lines), default=0)
    saving = [path.name.split(".")[0] for path in workdir.glob("checkpoints/*.orbax-checkpoint-tmp*")]
    keys = BASE | CONFIGS[name]
    if (workdir / "complete.json").exists():
        return "at the very end", step
    if not (workdir / "config.json").exists():
        return "starting", step
    if saving:
        return f"saving {saving[-1]}", step
    if step == STEPS and list_numbers(workdir / "checkpoints")[-1:] == [STEPS]:
        return "final evaluation", step
    every = [keys.get("eval.every_steps", 0), keys.get("eval.decode_every_steps", 0)]
    evaluated = any("valid_nll" in line or "valid_bleu" in line for line in lines if line["step"] == step)
    if step and any(n and step % n == 0 for n in every) and not evaluated:
        return "evaluating", step
    newest = max(list_numbers(workdir / "checkpoints"), default=0)
    return (
        "training" if step > newest else "preparing, compiling or training" if step else "preparing or compiling"
    ), step


def one_run(
    number: int, folder: Path, whole: Undisturbed, name: str, programs: Path, seed: int, kills: int, note
) -> int:
    """Kills a run `kills` times, completes and compares it; returns how many kills hit a living process."""
    rng = random.Random(f"{seed} {number}")
    workdir, done, last = folder / f"run-{number}-{name}", 0, None
    for _ in range(4 * kills):
        process = start(workdir, name, programs)
        lived = kill(process, workdir, *moment(rng, whole), rng)
        if last:
            note(last, resumed(workdir))
            last = None
        if lived is None:
            if process.returncode:
                raise Difference(f"a start failed with {process.returncode}:\n{output_of(workdir).read_text()[-3000:]}")
            break  # complete before its moment
        done += 1
        phase, step = phase_of(workdir, name)
        last = f"run {number:3}  {name:12}  killed after {lived:5.2f} s  {phase:34}  update {step:3}"
        if done == kills:
            break
    code = start(workdir, name, programs).wait()
    if last:
        note(last, resumed(workdir))
    if code:
        raise Difference(f"the last start failed with {code}:\n{output_of(workdir).read_text()[-3000:]}")
    assert_same(whole.workdir, workdir)
    return done


def resumed(workdir: Path) -> str:
    """Where the newest start resumed, from its output."""
    text = output_of(workdir).read_text()
    lines = [line for line in text.splitlines() if line.startswith("resuming ")]
    return lines[-1].rpartition("after ")[2] if lines else "the beginning"


def assert_same(one: Path, other: Path) -> None:
    """Raises Difference, naming what differs."""
    steps = list_numbers(one / "checkpoints")
    if list_numbers(other / "checkpoints") != steps:
        raise Difference(f"checkpoints {steps} and {list_numbers(other / 'checkpoints')}")
    for step in steps:
        a, b = (json.loads((w / "checkpoints" / str(step) / "meta/metadata").read_text()) for w in (one, other))
        for key in ("checksums", "scheduled", "config", "digests", "step"):
            if a[key] != b[key]:
                raise Difference(f"checkpoint {step}: {key} differ")
        if without_times(a["progress"]) != without_times(b["progress"]):
            raise Difference(f"checkpoint {step}: {a['progress']} and {b['progress']}")
    lines = [[without_times(line) for line in read_metrics(w)] for w in (one, other)]
    for a, b in zip(*lines, strict=False):
        if a != b:
            raise Difference(f"metrics.jsonl: {a} and {b}")
    if len(lines[0]) != len(lines[1]):
        raise Difference(f"metrics.jsonl has {len(lines[0])} and {len(lines[1])} lines")
    names = [sorted(path.name for path in (w / "eval").iterdir() if "partial" not in path.name) for w in (one, other)]
    if names[0] != names[1]:
        raise Difference(f"eval/ has {names[0]} and {names[1]}")
    for name in names[0]:
        a, b = ((w / "eval" / name).read_text() for w in (one, other))
        if name.endswith(".json"):
            a, b = (without_times(json.loads(text)) for text in (a, b))
        if a != b:
            raise Difference(f"eval/{name} differs")
    for a, b in zip(parameters(one), parameters(other), strict=True):
        if not np.array_equal(a, b):
            raise Difference("parameters differ")
    paths = [path.relative_to(other) for path in other.rglob("*") if "partial" in path.name or "-tmp" in path.name]
    left = [str(path) for path in paths if path.parts[0] not in ("data", "eval")]  # other runs may be writing there
    if left:
        raise Difference(f"left behind: {left}")


def without_times(values: dict[str, Any]) -> dict[str, Any]:
    """Without time measurements, which differ from run to run."""
    return {name: value for name, value in values.items() if not name.startswith(TIMES)}


_LOADING = threading.Lock()


def parameters(workdir: Path) -> list[np.ndarray]:
    """The newest parameters, restored as by `evaluate`."""
    with _LOADING:
        import jax

        from t2t_flax.evaluation.restore import load

        return [np.asarray(leaf) for leaf in jax.tree.leaves(load(workdir).params)]


def main() -> int:
    """Runs the drill; 0 where all runs are bit-identical."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--configs", default=",".join(CONFIGS), help="of: %(default)s")
    parser.add_argument("--keep", metavar="DIR", help="leave the workdirs there")
    args = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    names, began = args.configs.split(","), time.monotonic()
    writing, failures, lines = threading.Lock(), [], []

    def note(text: str, resumed_at: str = "") -> None:
        with writing:
            lines.append(f"{text}  resumed after {resumed_at}" if resumed_at else text)
            print(lines[-1], flush=True)

    with tempfile.TemporaryDirectory(prefix="kill-drill-") as made:
        folder = Path(args.keep or made).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        programs = folder / "programs"
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            wholes = dict(zip(names, pool.map(lambda name: undisturbed(folder, name, programs), names), strict=True))
            note(f"undisturbed runs of {', '.join(f'{n} {w.seconds:.1f} s' for n, w in wholes.items())}")
            counted, number = 0, 0

            def run(number: int, kills: int) -> int:
                name = names[number % len(names)]
                try:
                    return one_run(number, folder, wholes[name], name, programs, args.seed, kills, note)
                except Exception as error:  # noqa: BLE001 - whatever goes wrong with one run, the others continue
                    note(f"run {number:3}  {name:12}  DIFFERS: {type(error).__name__}: {error}")
                    failures.append(number)
                    return kills

            running = set()
            while counted < args.kills or running:
                while counted + sum(task.kills for task in running) < args.kills and len(running) < args.jobs:
                    kills = min(3 + number % 3, args.kills - counted - sum(task.kills for task in running))
                    task = pool.submit(run, number, kills)
                    task.kills = kills
                    running.add(task)
                    number += 1
                done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
                counted += sum(task.result() for task in done)
    note(
        f"{counted} kills in {number} runs (seed {args.seed}): {number - len(failures)} equal to the undisturbed run to the "
        f"bit, {len(failures)} not; {(time.monotonic() - began) / 60:.1f} minutes"
    )
    LOG.write_text("\n".join(lines) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
