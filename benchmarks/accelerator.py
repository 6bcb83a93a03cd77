"""Train on this machine's accelerator for a given time, and record speed, profile and correctness.

    python -m benchmarks.accelerator --seconds=540 --prepared=DIR \\
        --out=benchmarks/results/accelerator.json
    python -m benchmarks.accelerator --rows=base,base_einsum --updates=200 \\
        --config.data.batch_tokens=100000

The most valuable rows come first. Each runs in its own process, and the record is written after
each. The same command again goes on with the rows that --out lacks. The machine needs
requirements-run.txt (without network: as wheels) and no data but DIR, which `benchmarks.published`
makes.

- A preset with keys trains by the loop of `train` on random pairs of 27 tokens on average, packed.
  Rates come from blocks of 20 updates; the first block is left out. Then JAX's profiler gives the
  time of three updates by part of the step. bound_ms: as in `plan`, products at the peak by data
  sheet, or parameters and moments read and written once.
- selftest; resume: compares the bits of a run that stopped half-way with a run that did not.
- Recipes of `benchmarks.published`, which need --prepared.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import published
from benchmarks.accelerator_rows import BLOCK, Keys, resume_row, selftest_row, train_row
from benchmarks.environments import variables
from benchmarks.record import command_of, publish
from benchmarks.traffic import commit
from t2t_flax.cli import arguments
from t2t_flax.errors import UserError
from t2t_flax.files import atomic_write

EINSUM = {"model.attention_kernel": "einsum"}
SMALL = {"model.num_encoder_layers": 2, "model.num_decoder_layers": 2}
STEPS: dict[str, tuple[str, Keys]] = {
    "base": ("aiayn_base", {}),
    "big": ("aiayn_big", {}),
    "base_einsum": ("aiayn_base", EINSUM),
    "base_chunk512": ("aiayn_base", {"loss.logits_chunk_size": 512}),
    "base_einsum_rows128": (
        "aiayn_base",
        EINSUM | {"data.max_length": 128, "data.pack_length": 128},
    ),
    "base_no_dropout": ("aiayn_base", {"model.dropout": 0.0}),
    "base_50k_tokens": ("aiayn_base", {"data.batch_tokens": 50_000}),
    "big_einsum": ("aiayn_big", EINSUM),
    "big_chunk512": ("aiayn_big", {"loss.logits_chunk_size": 512}),
    "base_splash": ("aiayn_base", {"model.attention_kernel": "splash"}),
}
"""Today's defaults, and rows with keys changed."""
RESUMES = {"resume": EINSUM | SMALL, "resume_default": SMALL}
SELFTEST = "selftest"
FIRST = (
    *("base", "big", "base_einsum", "selftest", "resume", "multi30k"),
    *("base_chunk512", "base_einsum_rows128", "envi_t2t"),
)
ROWS = dict.fromkeys((*FIRST, *STEPS, *RESUMES, *published.RECIPES))
DEFAULT = ",".join(name for name in ROWS if name != "base_splash")
GRACE = 10
"""Seconds that a row may exceed its limit before it is killed."""


def least(name: str) -> float:
    """Return the seconds that a row needs to start: steps of base compile for a minute on a GPU."""
    return published.EVALUATION + 60 if name in published.RECIPES else 90 if name in STEPS else 60


def measure(name: str, args: argparse.Namespace, overrides: dict[str, str]) -> dict[str, Any]:
    """Measure a row in this process."""
    if name in STEPS:
        preset, keys = STEPS[name]
        return train_row(preset, keys | overrides, args.updates)
    if name in RESUMES:
        return resume_row("aiayn_base", RESUMES[name] | overrides, BLOCK)
    if name == SELFTEST:
        return selftest_row(overrides)
    return published.train(name, args.prepared, args.seconds, overrides)


def run_row(
    name: str, args: argparse.Namespace, overrides: dict[str, str], seconds: float
) -> dict[str, Any]:
    """Measure a row in another process, and return it or its failure.

    Timed programs do not come out of JAX's cache.
    """
    flags = [f"--rows={name}", f"--updates={args.updates}", f"--seconds={seconds:.0f}"]
    flags += [f"--prepared={args.prepared}"] if args.prepared else []
    flags += [f"--config.{key}={value}" for key, value in overrides.items()]
    command = [sys.executable, "-m", "benchmarks.accelerator", "--here", *flags]
    env = variables(JAX_ENABLE_COMPILATION_CACHE="false") if name in STEPS else variables()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=env, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            out, errors = process.communicate(timeout=seconds + GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, errors = process.communicate()
    rows = [
        json.loads(line) for line in out.splitlines() if line.startswith("{") and line.endswith("}")
    ]
    row = rows[-1] if rows else {}
    if not process.returncode:
        return row
    print(errors, file=sys.stderr)
    lines = errors.strip().splitlines() or ["no message"]
    reason = [
        line for line in lines if "Error: " in line or line.startswith("benchmarks.")
    ] or lines
    late = f"no result within {seconds:.0f} s" if process.returncode == -signal.SIGKILL else ""
    return row | {"failed": late or f"exit code {process.returncode}: {reason[-1][:300]}"}


def machine() -> dict[str, Any]:
    """Describe this machine for the record, in a process that then leaves the accelerator."""
    command = [
        sys.executable,
        "-c",
        "import json; from benchmarks.record import machine; print(json.dumps(machine()))",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=variables(), check=False)
    if done.returncode:
        raise UserError(f"JAX finds no device here: {done.stderr.strip().splitlines()[-1][:300]}")
    return json.loads(done.stdout.splitlines()[-1])


def new_record(args: argparse.Namespace, overrides: dict[str, str]) -> dict[str, Any]:
    """Return the record of --out to go on with, or a new one.

    Raises UserError for a record that was measured with other arguments.
    """
    record = {
        "what": (
            "training in bfloat16 on random pairs, packed: real target tokens/s; self-test, resume;"
            " published recipes"
        ),
        "commands": [],
        "updates": args.updates,
        "overrides": overrides,
        "commit": commit(),
        "machine": machine(),
        "rows": {},
    }
    if not args.out or not Path(args.out).exists():
        return record
    old = json.loads(Path(args.out).read_text())
    fixed = ("updates", "overrides", "commit", "machine")
    if other := [key for key in fixed if old.get(key) != record[key]]:
        raise UserError(
            f"--out={args.out}: its {', '.join(other)} differ from today's. Give another file."
        )
    return old


def is_done(row: dict[str, Any] | None) -> bool:
    """Return whether to skip a row of the record. A stopped recipe goes on."""
    return row is not None and "failed" not in row and row.get("complete", True)


def main(argv: list[str]) -> None:
    """Measure the rows until the time is over, and write the record after each."""
    began = time.monotonic()
    parser = arguments.parser("accelerator", __doc__ or "")
    parser.prog = "python -m benchmarks.accelerator"
    parser.add_argument("--rows", default=DEFAULT, help=f"comma-separated, of {', '.join(ROWS)}")
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument(
        "--seconds", type=float, default=540.0, help="time for all rows (default: 540)"
    )
    parser.add_argument(
        "--prepared", type=Path, metavar="DIR", help="what benchmarks.published has prepared"
    )
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--out", metavar="FILE.json", help="where to write the record (default: print it)"
    )
    args, overrides = arguments.parse(parser, argv)
    names = args.rows.split(",")
    if unknown := sorted(set(names) - set(ROWS)):
        parser.error(f"unknown rows: {', '.join(unknown)}; known: {', '.join(ROWS)}")
    if args.updates < 2 * BLOCK:
        parser.error(
            f"--updates={args.updates}: at least {2 * BLOCK}, since the first {BLOCK} are not timed"
        )
    if args.here:
        print(json.dumps(measure(names[0], args, overrides)))
        return
    record = new_record(args, overrides)
    record["commands"].append(command_of("accelerator", argv))
    for name in names:
        if is_done(record["rows"].get(name)) or (name in published.RECIPES and not args.prepared):
            continue
        left = args.seconds - (time.monotonic() - began)
        if left < least(name):
            print(f"no time for {name}", file=sys.stderr)
            continue
        limit = min(left, published.RECIPES[name].seconds) if name in published.RECIPES else left
        started = time.monotonic()
        row = run_row(name, args, overrides, limit)
        record["rows"][name] = row | {"wall_seconds": round(time.monotonic() - started, 1)}
        print(name, record["rows"][name], flush=True, file=sys.stderr)
        if args.out:
            atomic_write(args.out, json.dumps(record, indent=2) + "\n")
    publish(record, args.out)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"benchmarks.accelerator: {error}")
