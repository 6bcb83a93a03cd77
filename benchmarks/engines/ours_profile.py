"""Our train step or search under JAX's profiler on one core: seconds of each instruction of its programs.

XLA writes the programs to a folder; the trace names the instruction and the program of each event. Seconds are CPU time, so
that what other processes take of the core does not count.
"""

import collections
import math
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.engines.child import main

_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_PROGRAM = re.compile(r"module_(\d+)\..*cpu_after_optimizations\.txt")
_SHORT = 2_000_000


class Facts(NamedTuple):
    """An instruction: `opcodes` of all that it computes, `sizes` of the axes of what it reads and writes; of a product its
    FLOPs and (batch, rows, contracted, columns).
    """

    opcodes: frozenset[str]
    op_name: str
    sizes: frozenset[int]
    flops: float = 0.0
    product: tuple[int, int, int, int] | None = None

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return self._asdict() | {"opcodes": sorted(self.opcodes), "sizes": sorted(self.sizes)}


def facts_of(text: str) -> dict[str, Facts]:
    """All instructions of an optimized program by name."""
    from t2t_flax.extensions.planning import hlo

    program = hlo.parse(text)
    found = {}
    for computation in program.computations.values():
        for name, instruction in computation.instructions.items():
            inside = [(computation, instruction)]
            if instruction.op == "fusion":
                fused = program.computations[instruction.called[0]]
                inside += [(fused, each) for each in fused.instructions.values()]
            product = next((_product(each, where) for where, each in inside if each.op == "dot"), None)
            arrays = [a for each in (instruction, *computation.operands(instruction)) for a in each.arrays]
            op_name = _OP_NAME.search(instruction.attributes)
            found[name] = Facts(
                frozenset(each.op for _, each in inside if each.op != "fusion"),
                op_name[1] if op_name else "",
                frozenset(size for array in arrays for size in array.sizes),
                2.0 * math.prod(product) if product else 0.0,
                product,
            )
    return found


def _product(dot: Any, computation: Any) -> tuple[int, int, int, int]:
    left, right = (operand.arrays[0].sizes for operand in computation.operands(dot)[:2])
    axes = [int(axis) for axis in _CONTRACTED.search(dot.attributes)[1].split(",") if axis]
    contracted, result = math.prod(left[axis] for axis in axes), math.prod(dot.arrays[0].sizes)
    # |left| |right| / contracted^2 = batch * result.
    batch = round(math.prod(left) * math.prod(right) / contracted**2 / result)
    return batch, math.prod(left) // contracted // batch, contracted, math.prod(right) // contracted // batch


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Seconds, executions and `Facts` of each instruction, and the time of the whole."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XLA_FLAGS"] = f"--xla_dump_to={folder}/programs --xla_dump_hlo_as_text"
        run, notes, vocab = _work(task)
        import jax

        began = time.perf_counter()
        run()
        first = time.perf_counter() - began
        peak = _peak(task["size"])
        untraced = _timed(run)[1]
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with jax.profiler.trace(f"{folder}/trace", profiler_options=options), _CpuClock() as clock:
            traced = []
            for _ in range(task["repeats"]):
                clock.starts.append(time.perf_counter_ns())
                with jax.profiler.TraceAnnotation("repeat"):
                    traced.append(_timed(run))
        programs = {}
        for path in Path(folder, "programs").glob("*cpu_after_optimizations.txt"):
            programs[int(_PROGRAM.match(path.name)[1])] = path
        rows = instruction_seconds(next(Path(folder, "trace").rglob("*.xplane.pb")), clock)
        facts = {number: facts_of(programs[number].read_text()) for number in {number for number, _ in rows}}
    return {
        "instructions": [
            {"instruction": name, "seconds": seconds, "times": count} | facts[program][name].as_json()
            for (program, name), (seconds, count) in rows.items()
        ],
        "table_rows": vocab,
        "first_seconds": first,
        "seconds": min(wall for wall, _ in traced),
        "cpu_seconds": min(cpu for _, cpu in traced),
        "untraced_cpu_seconds": untraced,
        "peak_gflops": peak,
        "settings": ["float32", "1 core", *notes],
        "versions": {"jax": jax.__version__},
    }


def _work(task: dict[str, Any]) -> tuple[Callable[[], Any], list[str], int]:
    """(one step or search, notes, rows of the table)."""
    if task["kind"] == "training":
        from benchmarks.engines.ours_training import make_steps

        steps = make_steps(task)
        vocab = -(-task["size"]["vocab"] // 8) * 8
        return lambda: [steps.step(batch) for batch in steps.batches], steps.notes, vocab
    from benchmarks.engines.ours_decoding import make_translate, read_model

    translate, notes = make_translate(task)
    return translate, notes, len(read_model(task["folder"])[1]["shared_embedding"]["table"])


def _timed(run: Callable[[], Any]) -> tuple[float, float]:
    began, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - began, time.process_time() - cpu


def _peak(size: dict[str, Any]) -> float:
    """GFLOP/s of the fastest float32 product at the shapes of the model."""
    import jax
    import jax.numpy as jnp

    from benchmarks.engines.matmul import rate, shapes

    program = jax.jit(jnp.dot)
    dot = lambda x, y: program(x, y).block_until_ready()  # noqa: E731
    return max(
        rate(dot, jnp.ones((m, k)), jnp.ones((k, n)), flops=2.0 * m * k * n, clock=time.process_time)
        for m, k, n in shapes(size)
    )


class _CpuClock(threading.Thread):
    """Samples this process's CPU time, in a thread on all cores. starts: of the repetitions, `time.perf_counter_ns`."""

    def __init__(self):
        super().__init__(daemon=True)
        self.starts: list[int] = []
        self._times: list[int] = []
        self._cpu: list[int] = []
        self._done = threading.Event()

    def __enter__(self) -> "_CpuClock":
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._done.set()
        self.join()

    def run(self) -> None:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # of this thread
        while not self._done.wait(2e-4):
            self._times.append(time.perf_counter_ns())
            self._cpu.append(time.process_time_ns())

    def seconds(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """CPU time between values of `time.perf_counter_ns`; of less than _SHORT ns all time: samples are too far apart, and
        preemption is rarer.
        """
        cpu = np.interp(ends, self._times, self._cpu) - np.interp(starts, self._times, self._cpu)
        return np.where(ends - starts < _SHORT, ends - starts, cpu) / 1e9


def instruction_seconds(trace: Path, clock: _CpuClock) -> dict[tuple[int, str], tuple[float, int]]:
    """{(program, instruction): (seconds, executions)} of one repetition of a trace.

    Seconds are of the instruction alone, without those that it runs; of each execution the fastest of all repetitions.
    """
    import jax

    lines = [
        list(line.events) for plane in jax.profiler.ProfileData.from_file(str(trace)).planes for line in plane.lines
    ]
    windows = sorted((e.start_ns, e.end_ns) for events in lines for e in events if e.name == "repeat")
    repeats = [collections.defaultdict(list) for _ in windows]
    shift = windows[0][0] - clock.starts[0]
    for events in lines:
        for key, start, seconds in _own_seconds(events, clock, shift):
            for repeat, (first, last) in zip(repeats, windows, strict=True):
                if first <= start < last:
                    repeat[key].append((start, seconds))
    out = {}
    for key in set().union(*repeats):
        runs = [[seconds for _, seconds in sorted(repeat[key])] for repeat in repeats]
        count = min(map(len, runs))
        out[key] = (sum(map(min, zip(*runs, strict=False))), count)
    return out


def _own_seconds(events: list[Any], clock: _CpuClock, shift: float) -> Iterator[tuple[tuple[int, str], float, float]]:
    """((program, instruction), start, seconds without what runs inside it) of the events of a thread. shift: of the trace's
    times against the clock's.
    """
    events = sorted((e for e in events if e.duration_ns), key=lambda e: (e.start_ns, -e.duration_ns))
    stack: list[list[Any]] = []  # [key or None, start, end, seconds, of which inside]
    if not events:
        return
    starts, ends = (np.array([getattr(e, name) for e in events]) for name in ("start_ns", "end_ns"))
    whole = clock.seconds(starts - shift, ends - shift)

    def ended(before: float) -> Iterator[tuple[tuple[int, str], float, float]]:
        while stack and stack[-1][2] <= before:
            key, start, _, seconds, inside = stack.pop()
            if stack:
                stack[-1][4] += seconds if key else inside
            if key:
                yield key, start, max(0.0, seconds - inside)

    for event, seconds in zip(events, whole.tolist(), strict=True):
        yield from ended(event.start_ns)
        stats = dict(event.stats)
        key = (int(stats["program_id"]), stats["hlo_op"]) if "hlo_op" in stats else None
        stack.append([key, event.start_ns, event.end_ns, seconds, 0.0])
    yield from ended(math.inf)


if __name__ == "__main__":
    main(measure)
