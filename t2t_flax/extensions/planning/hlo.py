"""Reads the text of an optimized XLA program for TPU, GPU or CPU: computations, loops, memory traffic."""

import collections
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

_BYTES = {"pred": 1, "s4": 1, "u4": 1, "bf16": 2, "token": 0}
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](\{[^{}]*\})?")
_CALLS = re.compile(r"(?:calls|to_apply|body|condition|async_wrapped_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_NAME = re.compile(r"%([\w.\-]+)")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_TRIPS = re.compile(r'known_trip_count[^\d}]*"?(\d+)')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
# Memory spaces of the TPU compiler that are on the chip; 0, which is not written, is HBM, 5 the host. On GPU, 1 is a
# part of the GPU's memory that collectives use.
_ON_CHIP = re.compile(r"S\([1-4]\)")
# Instructions that move nothing: names for parts of arrays.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "iota"}
_CALLING = ("while", "call", "conditional", "async-start")
# Custom calls of the TPU compiler that are bookkeeping, not kernels.
_BOOKKEEPING = re.compile("ConcatBitcast|AllocateBuffer|AsyncCollective|AssumeGather|GatherScatter|Sharding")


class Array(NamedTuple):
    """One array of a shape. `on_chip`: in a TPU's own memory (VMEM, SMEM), not in HBM. `sizes`: of its axes."""

    bytes: int
    on_chip: bool
    sizes: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)


class Instruction(NamedTuple):
    """`operands`: names; `text`: what is between the parentheses; `attributes`: what follows; `index`: its place in the
    schedule.
    """

    name: str
    op: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    text: str
    index: int

    @property
    def bytes(self) -> int:
        """Of the result."""
        return sum(a.bytes for a in self.arrays)

    @property
    def hbm_bytes(self) -> int:
        """Of the part of the result that is in HBM."""
        return sum(a.bytes for a in self.arrays if not a.on_chip)

    @property
    def called(self) -> tuple[str, ...]:
        """Computations that it runs: of a fusion, a call, a loop, or the branches of a conditional."""
        branches = _BRANCHES.search(self.attributes)
        return (*_CALLS.findall(self.attributes), *(_NAME.findall(branches[1]) if branches else ()))


class Computation(NamedTuple):
    instructions: dict[str, Instruction]
    root: str

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """The instructions whose results are its operands."""
        return [self.instructions[n] for n in instruction.operands if n in self.instructions]

    def after(self, instruction: Instruction) -> list[Instruction]:
        """The rest of the schedule."""
        return list(self.instructions.values())[instruction.index + 1 :]


class Program(NamedTuple):
    """Computations by name; `entry` is the name of the one that runs."""

    computations: dict[str, Computation]
    entry: str


class Visit(NamedTuple):
    """An instruction that runs `times` times; `known` is False in a loop whose trip count the text does not say; `in_loop`: in
    the body or condition of a loop.
    """

    computation: Computation
    instruction: Instruction
    times: int
    known: bool
    asynchronous: bool
    in_loop: bool


def parse(text: str, platform: str = "tpu") -> Program:
    """The program of `Compiled.as_text()`, compiled for "tpu", "gpu" or "cpu"."""
    computations, entry, name, body, root = {}, "", None, {}, ""
    for line in text.splitlines():
        head = _HEAD.match(line) if not line.startswith(" ") else None
        if head:
            name, body, root = head[2], {}, ""
            entry = name if head[1] else entry
        elif line == "}" and name:  # a kernel's metadata, over several lines, may have "}}, ..." there
            computations[name], name = Computation(body, root), None
        elif name and " = " in line:
            instruction = _instruction(line, len(body), platform)
            body[instruction.name] = instruction
            root = instruction.name if line.lstrip().startswith("ROOT ") else root
    return Program(computations, entry)


def _instruction(line: str, index: int, platform: str) -> Instruction:
    left, _, right = line.strip().partition(" = ")
    end = _closing(right, 0) + 1 if right.startswith("(") else right.index(" ")
    shape, rest = right[:end], right[end:].lstrip()
    opening = rest.index("(")
    closing = _closing(rest, opening)
    text, attributes = rest[opening + 1 : closing], rest[closing + 1 :]
    name = left.removeprefix("ROOT ").lstrip("%")
    arrays = _arrays(shape, platform)
    return Instruction(name, rest[:opening], arrays, tuple(_NAME.findall(text)), attributes, text, index)


def _closing(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
    raise ValueError(f"no closing parenthesis in {text[start : start + 80]!r}")


def _arrays(shape: str, platform: str) -> tuple[Array, ...]:
    arrays = []
    for kind, sizes, layout in _ARRAY.findall(shape):
        bits = re.search(r"\d+", kind)
        item = _BYTES.get(kind, max(1, int(bits[0]) // 8) if bits else 4)
        axes = tuple(int(n) for n in sizes.split(",") if n)
        on_chip = platform == "tpu" and bool(_ON_CHIP.search(layout))
        arrays.append(Array(item * math.prod(axes), on_chip, axes))
    return tuple(arrays)


def visits(
    program: Program, start: str = "", times: int = 1, known=True, asynchronous=False, in_loop=False
) -> Iterator[Visit]:
    """Every instruction that runs, and how often; the inside of a fusion counts as its one instruction."""
    computation = program.computations[start or program.entry]
    for instruction in computation.instructions.values():
        yield Visit(computation, instruction, times, known, asynchronous, in_loop)
        if instruction.op == "while":
            trips = trip_count(program, computation, instruction)
            for part in ("body", "condition"):
                name = re.search(rf"{part}=%?([\w.\-]+)", instruction.attributes)[1]
                counted = known and trips is not None
                yield from visits(program, name, times * (trips or 1), counted, asynchronous, in_loop=True)
        elif instruction.op in _CALLING:
            for name in instruction.called:
                started = asynchronous or instruction.op == "async-start"
                yield from visits(program, name, times, known, started, in_loop)


def trip_count(program: Program, computation: Computation, loop: Instruction) -> int | None:
    """Of a `while`: as XLA states it, or the constant with which its condition compares a counter from 0; else None."""
    stated = _TRIPS.search(loop.attributes)
    if stated:
        return int(stated[1])
    condition = program.computations[re.search(r"condition=%?([\w.\-]+)", loop.attributes)[1]]
    root = condition.instructions[condition.root]
    if root.op != "compare" or "direction=LT" not in root.attributes:
        return None
    limits = [int(i.text) for i in condition.operands(root) if i.op == "constant" and i.text.strip().isdigit()]
    return limits[0] if len(limits) == 1 else None


def custom_calls(program: Program) -> dict[str, int]:
    """Kernels that XLA calls instead of generating them (cuBLAS, cuDNN, Mosaic), and how often they run."""
    counts: collections.Counter[str] = collections.Counter()
    for visit in visits(program):
        target = _TARGET.search(visit.instruction.attributes)
        if target and not _BOOKKEEPING.match(target[1]):
            counts[target[1]] += visit.times
    return dict(counts)


def hbm_traffic(program: Program) -> int:
    """Bytes read from and written to the device's memory in one run.

    Each instruction reads its operands once and writes its result once; slices and updates count with their own size.
    Caches are not modelled. Loops of unknown trip count count one turn.
    """
    return sum(visit.times * _traffic(program, visit) for visit in visits(program))


def _traffic(program: Program, visit: Visit) -> int:
    computation, it = visit.computation, visit.instruction
    if it.op in _FREE or it.op.endswith("-done") or it.op in _CALLING:
        return 0
    operands = computation.operands(it)
    if it.op == "custom-call":
        target = _TARGET.search(it.attributes)[1]
        if target in ("ConcatBitcast", "AllocateBuffer"):
            return 0
        # The last result of cuBLAS and cuDNN calls is scratch memory.
        results = it.arrays[:-1] if target.startswith("__cu") and len(it.arrays) > 1 else it.arrays
        return sum(a.bytes for a in results if not a.on_chip) + sum(o.hbm_bytes for o in operands)
    if it.op == "copy-start":  # its shape is (target, source, context)
        return sum(a.bytes for a in it.arrays[:2] if not a.on_chip)
    if it.op.endswith("slice-start"):  # (source), target, context
        return it.arrays[-2].bytes * sum(not a.on_chip for a in (it.arrays[0], it.arrays[-2]))
    if it.op in ("dynamic-slice", "gather", "slice"):
        return 2 * it.hbm_bytes
    if it.op in ("dynamic-update-slice", "scatter"):
        return 2 * operands[1 if it.op != "scatter" else -1].hbm_bytes
    if it.op == "fusion" and it.called and it.called[0] in program.computations:
        return _fusion_traffic(program.computations[it.called[0]], it, operands)
    return it.hbm_bytes + sum(o.hbm_bytes for o in operands)


def _fusion_traffic(inside: Computation, fusion: Instruction, operands: list[Instruction]) -> int:
    users: dict[str, list[Instruction]] = {}
    for instruction in inside.instructions.values():
        for name in instruction.operands:
            users.setdefault(name, []).append(instruction)
    root = inside.instructions.get(inside.root)
    updated, written = None, fusion.hbm_bytes
    if root is not None and root.op in ("dynamic-update-slice", "scatter"):  # in place: what is not updated stays
        updated = root.operands[0]
        update = root.operands[1] if root.op == "dynamic-update-slice" else root.operands[-1]
        written = min(written, inside.instructions[update].bytes * (2 if root.op == "scatter" else 1))
    read = 0
    parameters = {int(i.text): i.name for i in inside.instructions.values() if i.op == "parameter"}
    for number, operand in enumerate(operands):
        name = parameters.get(number)
        readers = users.get(name, [])
        if name is not None and name == updated and len(readers) == 1:
            continue
        if readers and all(r.op in ("dynamic-slice", "gather", "slice") and r.operands[0] == name for r in readers):
            read += min(operand.hbm_bytes, sum(r.bytes for r in readers))
        else:
            read += operand.hbm_bytes
    return read + written
