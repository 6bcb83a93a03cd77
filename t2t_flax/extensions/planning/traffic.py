"""Kernels of an optimized XLA program.

They have bytes, FLOPs, estimated cycles and a part of the train step.
"""

import collections
import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from t2t_flax.extensions.planning.chips import Chip
from t2t_flax.extensions.planning.hlo import (
    Computation,
    Instruction,
    Program,
    called_kernel,
    visits,
)

LOSS, ATTENTION, PROJECTIONS = (
    "logits, loss",
    "attention: products, softmax",
    "attention: projections",
)
FEED_FORWARD, NORM, EMBEDDINGS = "feed-forward", "norm, dropout, residual", "embeddings, positions"
OTHER = "optimizer, other"
PARTS = (LOSS, ATTENTION, PROJECTIONS, FEED_FORWARD, NORM, EMBEDDINGS, OTHER)

# The first pattern that an op_name contains decides. "jvp(": differentiated, but in no module of
# the model.
_PATTERNS = (
    (LOSS, re.compile(r"\blogits\b")),
    (FEED_FORWARD, re.compile(r"\bfeed_forward\b")),
    (ATTENTION, re.compile(r"\.attend\b")),
    (PROJECTIONS, re.compile(r"(self|cross)_attention/(.*/)?(query|key|value|out)/")),
    (ATTENTION, re.compile(r"(self|cross)_attention/")),
    (NORM, re.compile(r"\bresidual_|_norm\b")),
    (EMBEDDINGS, re.compile(r"_(embedding|positions)\b|\b(source|target)_dropout\b")),
    (LOSS, re.compile(r"jvp\(")),
)
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:]\s*[{\[]([^}\]]*)')
_FMHA_SCORES = re.compile(r'"intermediate_tensor_shape":.*?"dimensions":\s*\[([^\]]*)')

# These start no kernel. Instructions inside an async-start or a while are visited themselves.
_NO_KERNEL = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "add-dependency",
    "opt-barrier",
}
_NO_KERNEL |= {
    "while",
    "call",
    "conditional",
    "async-start",
    "async-update",
    "after-all",
    "partition-id",
    "replica-id",
}
# These read all of an operand, however little of their result is used.
_READS_ALL = {
    "reduce",
    "reduce-window",
    "dot",
    "convolution",
    "sort",
    "fusion",
    "call",
    "custom-call",
    "tuple",
}


class Kernel(NamedTuple):
    """A kernel of a program.

    Attributes:
        times: runs in one run of the program.
        read, written: bytes of one run, as if no cache kept anything from one kernel to the next.
        flops: FLOPs of its matrix products in one run.
        called: its name if XLA calls it instead of generating it, else "".
        cycles: the TPU compiler's estimate of one run; None for GPUs and for called kernels.
    """

    name: str
    part: str
    times: int
    read: int
    written: int
    flops: int
    called: str
    cycles: int | None

    @property
    def bytes(self) -> int:
        return self.read + self.written


def kernels(program: Program) -> list[Kernel]:
    """Return the kernels in program order."""
    found = []
    for visit in visits(program):
        it = visit.instruction
        cycles = _CYCLES.search(it.attributes)
        if (it.op in _NO_KERNEL or it.op.endswith("-done")) and not cycles:
            continue
        read, written = moved_bytes(program, visit.computation, it)
        found.append(
            Kernel(
                name=it.name,
                part=part_of(program, it),
                times=visit.times,
                read=read,
                written=written,
                flops=product_flops(program, visit.computation, it),
                called=called_kernel(it),
                cycles=int(cycles[1]) if cycles else None,
            )
        )
    return found


def totals(rows: Iterable[Kernel]) -> dict[str, int]:
    """Return sums over all runs: kernels, called kernels, bytes, FLOPs and cycles."""
    rows = list(rows)
    return {
        "kernels": sum(row.times for row in rows),
        "custom_calls": sum(row.times for row in rows if row.called),
        "bytes": sum(row.times * row.bytes for row in rows),
        "flops": sum(row.times * row.flops for row in rows),
        "cycles": sum(row.times * (row.cycles or 0) for row in rows),
    }


def gpu_traffic(rows: list[Kernel], chip: Chip) -> dict[str, Any]:
    """Return kernels, called kernels, bytes, and the seconds of these bytes.

    The seconds follow from the data sheet.
    """
    sums = totals(rows)
    counts = {name: sums[name] for name in ("kernels", "custom_calls", "bytes")}
    return counts | {"seconds": sums["bytes"] / (chip.hbm_bandwidth / chip.devices)}


def tpu_estimate(rows: list[Kernel], chip: Chip) -> dict[str, Any]:
    """Return cycles, their seconds if the clock is known, and the Pallas kernels.

    Pallas kernels have no cycles.
    """
    sums = totals(rows)
    seconds = sums["cycles"] / (chip.clock_ghz * 1e9) if chip.clock_ghz else None
    return {"cycles": sums["cycles"], "seconds": seconds, "custom_calls": sums["custom_calls"]}


def part_of(program: Program, instruction: Instruction) -> str:
    """Return the part of the train step by op_name.

    In a fusion without one, the op_name nearest to its result decides.
    """
    names = _OP_NAME.findall(instruction.attributes)
    if not names:
        inside = [i for _, i in _inside(program, instruction)]
        names = [name for i in reversed(inside) for name in _OP_NAME.findall(i.attributes)][:1]
    return next((part for part, pattern in _PATTERNS if any(map(pattern.search, names))), OTHER)


def _inside(program: Program, instruction: Instruction) -> list[tuple[Computation, Instruction]]:
    """Return the instructions of a fusion and of fusions in it.

    Any other instruction has none.
    """
    found = []
    for name in instruction.called if instruction.op in ("fusion", "fusion-start") else ():
        for i in program.computations[name].instructions.values():
            found += [(program.computations[name], i), *_inside(program, i)]
    return found


def moved_bytes(
    program: Program, computation: Computation, instruction: Instruction
) -> tuple[int, int]:
    """Return the bytes that one run reads and writes.

    Operands and results count once; of slices and in-place updates only the elements that move.
    """
    operands = computation.operands(instruction)
    sizes = [operand.bytes for operand in operands]
    read, written = sum(sizes), instruction.bytes
    match instruction.op:
        case "fusion" | "fusion-start":
            body = program.computations[instruction.called[0]]
            return min(read, _read_of_fusion(body)), _written_by_fusion(body)
        case "dynamic-slice" | "slice" | "gather":
            return written + sum(sizes[1:]), written
        case "dynamic-update-slice":
            return sum(sizes[1:]), sizes[1]
        case "custom-call" if "__cublas" in called_kernel(instruction):
            return read, instruction.arrays[0].bytes  # the second result is a workspace
        case "all-reduce-start":
            return read, written
        case op if op.endswith("-start"):  # the result holds the operands, too
            return read, written - read
        case op if op.endswith("-done"):
            return 0, 0
    return read, written


def _read_of_fusion(body: Computation) -> int:
    """Return the bytes of the parameters that the result of a fusion depends on."""
    needed: collections.Counter[str] = collections.Counter(
        {body.root: _elements(body.instructions[body.root])}
    )
    for user in reversed(body.instructions.values()):
        operands = {operand.name: operand for operand in body.operands(user)}
        for position, operand in enumerate(operands.values()):
            count = _elements(operand) if user.op in _READS_ALL else needed[user.name]
            if position == 0 and (update := _update_in_place(body, user)):
                count = _elements(update) if user.op == "scatter" else 0
            needed[operand.name] = min(_elements(operand), needed[operand.name] + count)
    parameters = [i for i in body.instructions.values() if i.op == "parameter" and needed[i.name]]
    return sum(i.bytes * needed[i.name] // _elements(i) for i in parameters)


def _elements(instruction: Instruction) -> int:
    return sum(array.elements for array in instruction.arrays)


def _written_by_fusion(body: Computation) -> int:
    root = body.instructions[body.root]
    results = body.operands(root) if root.op == "tuple" else [root]
    sources = [_before_bitcasts(body, result) for result in results]
    return sum((_update_in_place(body, source) or source).bytes for source in sources)


def _update_in_place(body: Computation, instruction: Instruction) -> Instruction | None:
    """Return the elements that an instruction writes into a parameter of its fusion."""
    if instruction.op not in ("dynamic-update-slice", "scatter"):
        return None
    target, *others = body.operands(instruction)
    in_place = _before_bitcasts(body, target).op == "parameter"
    return others[-1 if instruction.op == "scatter" else 0] if in_place else None


def _before_bitcasts(body: Computation, instruction: Instruction) -> Instruction:
    while instruction.op == "bitcast":
        (instruction,) = body.operands(instruction)
    return instruction


def product_flops(program: Program, computation: Computation, instruction: Instruction) -> int:
    """Return the FLOPs of matrix products in one run.

    Products are cuBLAS, cuDNN's attention with masked scores, `dot`.
    """
    called = called_kernel(instruction)
    if "fmha" in called:
        scores = _FMHA_SCORES.search(instruction.attributes)
        assert scores, f"{instruction.name} does not state the shape of its scores"
        width = computation.operands(instruction)[0].arrays[0].sizes[-1]
        products = 5 if "Backward" in called else 2
        return 2 * products * width * math.prod(map(int, re.findall(r"\d+", scores[1])))
    if "__cublas" in called or instruction.op == "dot":
        return _dot_flops(computation, instruction)
    return sum(_dot_flops(home, i) for home, i in _inside(program, instruction) if i.op == "dot")


def _dot_flops(computation: Computation, dot: Instruction) -> int:
    axes = _CONTRACTED.search(dot.attributes)
    assert axes, f"{dot.name} does not state its contracted axes"
    sizes = computation.operands(dot)[0].arrays[0].sizes
    return (
        2
        * dot.arrays[0].elements
        * math.prod(sizes[int(axis)] for axis in re.findall(r"\d+", axes[1]))
    )
