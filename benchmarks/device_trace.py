"""Time of a train step on the device, from JAX's profiler, by the parts of `benchmarks.traffic`."""

import collections
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.engines.ours_profile import Key, own_seconds, program_and_name
from t2t_flax.extensions.planning import hlo, traffic

_SHOWN = 20


def trace(update: Callable[[int], None], updates: int, program: str) -> dict[str, Any]:
    """Run `update(k)` under the profiler, k below `updates`; return one's time and kernels.

    Args:
      update: runs one update and waits for it.
      program: text of its optimized program.
    """
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for k in range(updates):
                update(k)
        seconds = operations(folder)
    return summary(seconds, updates, program)


def operations(folder: str) -> dict[str, list[float]]:
    """Return the seconds of all runs of each instruction.

    They come from the first GPU or TPU, else from the threads of the CPU.
    """
    import jax

    found = collections.defaultdict(list)
    data = jax.profiler.ProfileData.from_file(str(next(Path(folder).rglob("*.xplane.pb"))))
    planes = list(data.planes)
    devices = [p for p in planes if p.name.startswith(("/device:GPU", "/device:TPU"))][:1]
    for plane in devices or planes:
        for line in plane.lines:
            if not devices or line.name.startswith(("Stream", "XLA Ops")):
                for (_, name), seconds in own_seconds(
                    list(line.events), on_device if devices else program_and_name
                ):
                    found[name].append(seconds)
    return found


def on_device(event: Any) -> Key:
    """Return the instruction that launched a kernel, or the name of a copy outside of a program."""
    name = dict(event.stats).get("hlo_op") or event.name.split(" ")[0]
    return 0, name.rpartition("::")[2].lstrip("%")


def summary(seconds: dict[str, list[float]], updates: int, program: str) -> dict[str, Any]:
    """Sum the seconds by part of the step.

    Events that match no instruction count as unmatched, in the last part.
    """
    parsed = hlo.parse(program)
    instructions = {
        name: i
        for computation in parsed.computations.values()
        for name, i in computation.instructions.items()
    }
    parts = {part: {"ms": 0.0, "kernels": 0.0} for part in traffic.PARTS}
    rows, unmatched = [], 0.0
    for name, runs in seconds.items():
        known = instructions.get(name.partition("__onednn")[0].removesuffix(".clone"))
        part = traffic.part_of(parsed, known) if known else traffic.OTHER
        ms, count = 1e3 * sum(runs) / updates, len(runs) / updates
        unmatched += 0.0 if known else ms
        parts[part]["ms"] += ms
        parts[part]["kernels"] += count
        rows.append((ms, f"{ms:.3f} ms, {count:g} kernels: {name} ({part})"))
    rows.sort(key=lambda row: -row[0])
    return {
        "updates": updates,
        "busy_ms": round(sum(ms for ms, _ in rows), 3),
        "unmatched_ms": round(unmatched, 3),
        "kernels": round(sum(part["kernels"] for part in parts.values()), 1),
        "parts": {
            part: {key: round(value, 3) for key, value in sums.items()}
            for part, sums in parts.items()
        },
        "slowest": [row for _, row in rows[:_SHOWN]],
    }
