"""Profile our train step or search on one core: seconds of each instruction of its programs."""

import collections
import itertools
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engines.child import main

_OP_NAME = re.compile(r'op_name="([^"]*)"')
_OPERAND = re.compile(r"%([\w.-]+)(?:#(\d+))?")  # an element of a tuple after #
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_PROGRAM = re.compile(r"module_(\d+)\..*cpu_after_optimizations\.txt")


def facts_of(text: str) -> dict[str, dict[str, Any]]:
    """Return facts on each instruction of an optimized program.

    They are its `opcodes`, its place in the model (`op_name`), the `sizes` of the axes that it
    reads and writes, and the sizes of its `product` (batch, rows, contracted, columns) or None.
    """
    from t2t_flax.extensions.planning import hlo

    program, found = hlo.parse(text), {}
    for computation in program.computations.values():
        for name, instruction in computation.instructions.items():
            inside = [(computation, instruction)]
            if instruction.op == "fusion":
                fused = program.computations[instruction.called[0]]
                inside += [(fused, each) for each in fused.instructions.values()]
            arrays = [
                a for each in (instruction, *computation.operands(instruction)) for a in each.arrays
            ]
            op_name = _OP_NAME.search(instruction.attributes)
            found[name] = {
                "opcodes": sorted({each.op for _, each in inside}),
                "op_name": op_name[1] if op_name else "",
                "sizes": sorted({size for array in arrays for size in array.sizes}),
                "product": next((_product(*each) for each in inside if _multiplies(each[1])), None),
            }
    return found


def _facts_of(facts: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the facts on an event's instruction.

    oneDNN's events have its name, a suffix for a copy, and the called function.
    """
    original = name.partition("__onednn")[0]
    return facts.get(name) or facts.get(original) or facts[original.removesuffix(".clone")]


def _multiplies(instruction: Any) -> bool:
    return instruction.op == "dot" or "__onednn$matmul" in instruction.attributes


def _product(computation: Any, instruction: Any) -> tuple[int, int, int, int]:
    """Return (matrices, rows, contracted, columns)."""
    sides = [
        computation.instructions[name].arrays[int(element or 0)].sizes
        for name, element in _OPERAND.findall(instruction.text)[:2]
    ]
    result = instruction.arrays[0].sizes
    contracted = _CONTRACTED.search(instruction.attributes)
    left, right = map(math.prod, sides)
    if contracted is None:  # oneDNN's, whose axes may stand in any order
        batch, inner = _matrices(*sides, result)
    else:
        inner = math.prod(sides[0][int(axis)] for axis in contracted[1].split(",") if axis)
        batch = round(left * right / inner**2 / math.prod(result))
    return batch, left // inner // batch, inner, right // inner // batch


def _matrices(left: Sequence[int], right: Sequence[int], result: Sequence[int]) -> tuple[int, int]:
    """Return a product's (number of matrices, size of the contracted axis)."""
    common = list(
        (
            collections.Counter(left) & collections.Counter(right) & collections.Counter(result)
        ).elements()
    )
    for numbering in itertools.combinations(common, len(left) - 2):
        batch = math.prod(numbering)
        square, rest = divmod(math.prod(left) * math.prod(right), math.prod(result) * batch)
        inner = math.isqrt(square)
        if not rest and inner**2 == square and inner in left and inner in right:
            return batch, inner
    raise ValueError(f"no product of {left} and {right} is {result}")


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Seconds, executions and `facts_of` each instruction, and of the whole."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XLA_FLAGS"] = f"--xla_dump_to={folder}/programs --xla_dump_hlo_as_text"
        run, notes, table_rows = _work(task)
        import jax
        from jax.experimental.compilation_cache import compilation_cache

        jax.config.update("jax_enable_compilation_cache", False)  # XLA writes what it compiles
        compilation_cache.reset_cache()
        run()
        peak = _peak(task["size"])
        repeats = [_traced(run, Path(folder, str(i))) for i in range(task["repeats"])]
        found = Path(folder, "programs").glob("*after_optimizations.txt")
        matches = {path: _PROGRAM.match(path.name) for path in found}
        texts = {int(match[1]): path for path, match in matches.items() if match}
        facts = {
            number: facts_of(texts[number].read_text())
            for number in {number for number, _ in repeats[0][0]}
        }
    _, whole = min(repeats, key=lambda repeat: repeat[1])
    instructions = [
        {"seconds": min(seconds[key][0] for seconds, _ in repeats), "times": count}
        | _facts_of(facts[key[0]], key[1])
        for key, (_, count) in repeats[0][0].items()
    ]
    return {
        "instructions": instructions,
        "seconds": whole,
        "table_rows": table_rows,
        "peak_gflops": peak,
        "settings": ["1 core", *notes],
        "versions": {"jax": jax.__version__},
    }


def _work(task: dict[str, Any]) -> tuple[Callable[[], Any], list[str], int]:
    """Return (a function for a step or search, notes, rows of the embedding table)."""
    if task["kind"] == "training":
        from benchmarks.engines.ours_training import make_steps

        step, batches, notes, _ = make_steps(task)
        return lambda: [step(batch) for batch in batches], notes, -(-task["size"]["vocab"] // 8) * 8
    from benchmarks.engines.ours_decoding import make_translate, read_model

    translate, notes = make_translate(task)
    return translate, notes, len(read_model(task["folder"])[1]["shared_embedding"]["table"])


def _peak(size: dict[str, Any]) -> float:
    """GFLOP/s of the fastest float32 product at the shapes of the model."""
    import jax
    import jax.numpy as jnp

    from benchmarks.engines.matmul import rate, shapes

    program = jax.jit(jnp.dot)
    dot = lambda x, y: program(x, y).block_until_ready()  # noqa: E731
    return max(
        rate(dot, jnp.ones((m, k)), jnp.ones((k, n)), flops=2.0 * m * k * n)
        for m, k, n in shapes(size)
    )


Key = tuple[int, str]
"""The number of a program, and the name of an instruction."""


def _traced(run: Callable[[], Any], folder: Path) -> tuple[dict[Key, tuple[float, int]], float]:
    """Profile a run: return ({instruction: (seconds, executions)}, seconds of the whole)."""
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with (
        jax.profiler.trace(str(folder), profiler_options=options),
        jax.profiler.TraceAnnotation("whole"),
    ):
        run()
    data = jax.profiler.ProfileData.from_file(str(next(folder.rglob("*.xplane.pb"))))
    lines = [list(line.events) for plane in data.planes for line in plane.lines]
    [whole] = [
        event.duration_ns / 1e9 for events in lines for event in events if event.name == "whole"
    ]
    found = collections.defaultdict(list)
    for events in lines:
        for key, seconds in own_seconds(events):
            found[key].append(seconds)
    return {key: (sum(each), len(each)) for key, each in found.items()}, whole


def program_and_name(event: Any) -> Key | None:
    """Return the key of an event of a CPU thread; None if it is no instruction."""
    stats = dict(event.stats)
    return (int(stats["program_id"]), stats["hlo_op"]) if "hlo_op" in stats else None


def own_seconds(
    events: list[Any], key_of: Callable[[Any], Key | None] = program_and_name
) -> Iterator[tuple[Key, float]]:
    """Yield each executed instruction of a thread, with its own seconds.

    Time in other instructions, as in the body of a loop, counts for these.
    """
    stack: list[list[Any]] = []  # [key or None, end, nanoseconds, of which inside]

    def ended(before: float) -> Iterator[tuple[Key, float]]:
        while stack and stack[-1][1] <= before:
            key, _, nanoseconds, inside = stack.pop()
            if stack:
                stack[-1][3] += nanoseconds if key else inside
            if key:
                yield key, max(0.0, nanoseconds - inside) / 1e9

    for event in sorted(events, key=lambda event: (event.start_ns, -event.duration_ns)):
        yield from ended(event.start_ns)
        stack.append([key_of(event), event.start_ns + event.duration_ns, event.duration_ns, 0.0])
    yield from ended(math.inf)


if __name__ == "__main__":
    main(measure)
