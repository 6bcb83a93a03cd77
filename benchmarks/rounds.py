"""Engines measured in turn: one child process for each engine and round.

A round runs every engine once, one after the other, so that a change of the machine's speed hits
them alike; ratios are computed within rounds.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engines.child import RESULT
from benchmarks.environments import Environments, Unavailable, variables
from t2t_flax.process_setup import runs_on_cpu

PEER_HOME = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclasses.dataclass(frozen=True)
class Engine:
    """A child process that measures: `python -m benchmarks.engines.MODULE TASK.json`.

    Attributes:
      environment: name of the peer whose environment it has; "" for our own.
      task: its part of the task.
      preload_tcmalloc: set LD_PRELOAD.
      needs: raises Unavailable where the machine lacks something.
      variants: other tasks of the same engine; the first round tries each, later rounds run the
      best.
    """

    name: str
    module: str
    environment: str = ""
    task: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    preload_tcmalloc: bool = False
    timeout: float = 900.0
    needs: Callable[[], None] = lambda: None
    variants: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)


def run(engine: Engine, task: dict[str, Any], environments: Environments) -> dict[str, Any]:
    """Return the result of one child process. Raises Unavailable with the reason if it has none."""
    python = environments.python(engine.environment)
    more = dict(PEER_HOME, OMP_NUM_THREADS=str(task["threads"]))
    if engine.preload_tcmalloc:
        more["LD_PRELOAD"] = environments.tcmalloc()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "task.json")
        path.write_text(json.dumps(task | dict(engine.task)))
        command = [python, "-m", f"benchmarks.engines.{engine.module}", str(path)]
        try:
            done = subprocess.run(
                command,
                env=variables(**more),
                capture_output=True,
                text=True,
                timeout=engine.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"no result within {engine.timeout:.0f} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        if not engine.environment:  # our own code: show all of it
            print(done.stderr[-5000:], file=sys.stderr)
        raise Unavailable(f"exit code {done.returncode}: {last[:300]}")
    return json.loads(lines[-1].removeprefix(RESULT))


def measure(
    engines: Sequence[Engine],
    task: dict[str, Any],
    rounds: int,
    environments: Environments,
    speed: Callable[[dict[str, Any]], float],
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """Run all engines `rounds` times in turn; return (results by engine, reasons to skip one).

    An engine is skipped where the machine lacks something; a peer also where it cannot run. Exits
    if one of our own engines fails.

    Args:
      speed: of a result; higher is better; chooses among variants.
    """
    results: dict[str, list[dict[str, Any]]] = {}
    skipped: dict[str, str] = {}
    for engine in engines:
        try:
            engine.needs()
        except Unavailable as error:
            skipped[engine.name] = str(error)
    for number in range(rounds):
        for engine in engines:
            if engine.name in skipped:
                continue
            try:
                result = _run_variants(engine, task, environments, results.get(engine.name), speed)
            except Unavailable as error:
                if not engine.environment:
                    sys.exit(f"{engine.name} failed: {error}")
                print(f"{engine.name}: skipped: {error}", flush=True)
                skipped[engine.name] = str(error)
                continue
            results.setdefault(engine.name, []).append(result)
            chosen = f" ({result['variant']})" if "variant" in result else ""
            print(f"round {number + 1}, {engine.name}{chosen}: {speed(result):,.1f}/s", flush=True)
    return results, skipped


def _run_variants(engine, task, environments, earlier, speed) -> dict[str, Any]:
    if not engine.variants:
        return run(engine, task, environments)
    if earlier:
        name = earlier[0]["variant"]
        return run(engine, task | engine.variants[name], environments) | {"variant": name}
    tried, failed = {}, None
    for name, more in engine.variants.items():
        try:
            tried[name] = run(engine, task | more, environments)
        except Unavailable as error:
            failed = error
    if not tried:
        raise failed
    best = max(tried, key=lambda name: speed(tried[name]))
    return tried[best] | {
        "variant": best,
        "tried": {name: speed(result) for name, result in tried.items()},
    }


def needs_gpu() -> None:
    """Raise Unavailable where there is none."""
    if runs_on_cpu():
        raise Unavailable("for GPUs")


def spread(values: Sequence[float], digits: int = 4) -> dict[str, Any]:
    """Return median, smallest, largest and all values, rounded to `digits` significant digits."""
    rounded = [float(f"{value:.{digits}g}") for value in values]
    return {
        "median": float(f"{statistics.median(values):.{digits}g}"),
        "min": min(rounded),
        "max": max(rounded),
        "all": rounded,
    }


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Return the spread of ours / theirs, round by round."""
    return spread([a / b for a, b in zip(ours, theirs, strict=False)])


def threads() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
