"""Reads the text of an optimised XLA program: computations, instructions, loops, and the bytes that pass through HBM."""

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
_ON_CHIP = re.compile(r"S\([1-4]\)")  # memory spaces of the TPU compiler; 0, which is not written, is HBM, 5 the host
_TRIPS = re.compile(r'known_trip_count[^\d}]*"?(\d+)')
# Instructions that move nothing: names for parts of what is there, and the ends of pairs whose start was counted.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "iota"}


class Array(NamedTuple):
    """One array of a shape. `on_chip`: it lies in the chip's own memory, not in HBM."""

    bytes: int
    on_chip: bool


class Instruction(NamedTuple):
    """`operands`: names; `attributes`: the text after the operands; `index`: its place in the schedule."""

    name: str
    op: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    text: str
    index: int

    @property
    def bytes(self) -> int:
        """Of its result."""
        return sum(a.bytes for a in self.arrays)

    @property
    def hbm_bytes(self) -> int:
        """Of its result, as far as it lies in HBM."""
        return sum(a.bytes for a in self.arrays if not a.on_chip)

    @property
    def called(self) -> tuple[str, ...]:
        """Computations that it runs: of a fusion, a call, a loop (body first), the branches of a conditional."""
        found = [name for name in _CALLS.findall(self.attributes)]
        branches = _BRANCHES.search(self.attributes)
        return tuple(found) + (tuple(_NAME.findall(branches[1])) if branches else ())


class Computation(NamedTuple):
    instructions: dict[str, Instruction]
    root: str

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """The instructions that made its operands."""
        return [self.instructions[n] for n in instruction.operands if n in self.instructions]


class Program(NamedTuple):
    """Computations by name, and which one is run."""

    computations: dict[str, Computation]
    entry: str


class Visit(NamedTuple):
    """An instruction that is run `times` times; `known` is False inside a loop whose turns the text does not tell."""

    computation: Computation
    instruction: Instruction
    times: int
    known: bool
    asynchronous: bool


def parse(text: str) -> Program:
    """The program of `Compiled.as_text()`."""
    computations, entry, name, found, root = {}, "", None, {}, ""
    for line in text.splitlines():
        head = _HEAD.match(line) if not line.startswith(" ") else None
        if head:
            name, found, root = head[2], {}, ""
            entry = name if head[1] else entry
        elif line.startswith("}") and name:
            computations[name], name = Computation(found, root), None
        elif name and " = " in line:
            instruction = _instruction(line, len(found))
            found[instruction.name] = instruction
            root = instruction.name if line.lstrip().startswith("ROOT ") else root
    return Program(computations, entry)


def _instruction(line: str, index: int) -> Instruction:
    left, _, right = line.strip().partition(" = ")
    end = _closing(right, 0) + 1 if right.startswith("(") else right.index(" ")
    shape, rest = right[:end], right[end:].lstrip()
    opening = rest.index("(")
    closing = _closing(rest, opening)
    operands, attributes = rest[opening + 1 : closing], rest[closing + 1 :]
    name = left.removeprefix("ROOT ").lstrip("%")
    return Instruction(name, rest[:opening], arrays(shape), tuple(_NAME.findall(operands)), attributes, operands, index)


def _closing(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
    raise ValueError(f"no closing parenthesis in {text[start : start + 80]!r}")


def arrays(shape: str) -> tuple[Array, ...]:
    """The arrays of a shape in HLO notation, of a tuple one after the other."""
    found = []
    for kind, sizes, layout in _ARRAY.findall(shape):
        bits = re.search(r"\d+", kind)
        each = _BYTES.get(kind, max(1, int(bits[0]) // 8) if bits else 4)
        count = math.prod(int(n) for n in sizes.split(",") if n)
        found.append(Array(each * count, bool(_ON_CHIP.search(layout))))
    return tuple(found)


def visits(program: Program, start: str = "", times: int = 1, known=True, asynchronous=False) -> Iterator[Visit]:
    """Every instruction that runs, with how often; what lies inside fusions is left to their one instruction."""
    computation = program.computations[start or program.entry]
    for instruction in computation.instructions.values():
        yield Visit(computation, instruction, times, known, asynchronous)
        if instruction.op == "while":
            turns = trip_count(program, computation, instruction)
            body = re.search(r"body=%?([\w.\-]+)", instruction.attributes)[1]
            for part in (body, re.search(r"condition=%?([\w.\-]+)", instruction.attributes)[1]):
                yield from visits(program, part, times * (turns or 1), known and turns is not None, asynchronous)
        elif instruction.op in ("call", "conditional"):
            for name in instruction.called:
                yield from visits(program, name, times, known, asynchronous)
        elif instruction.op == "async-start":
            for name in instruction.called:
                yield from visits(program, name, times, known, True)


def trip_count(program: Program, computation: Computation, loop: Instruction) -> int | None:
    """Turns of a `while`: as XLA says, or the constant that its condition compares a counter from 0 with; else None."""
    said = _TRIPS.search(loop.attributes)
    if said:
        return int(said[1])
    condition = program.computations[re.search(r"condition=%?([\w.\-]+)", loop.attributes)[1]]
    root = condition.instructions[condition.root]
    if root.op != "compare" or "direction=LT" not in root.attributes:
        return None
    limits = [int(i.text) for i in condition.operands(root) if i.op == "constant" and i.text.strip().isdigit()]
    return limits[0] if len(limits) == 1 else None


def hbm_traffic(program: Program) -> int:
    """Bytes read from and written to HBM by one run: operands and results that do not lie on the chip.

    Each instruction is taken to read its operands once and to write its result once; slices and updates count with
    their own size. Loops whose turns are unknown count one turn.
    """
    return sum(visit.times * _traffic(program, visit) for visit in visits(program))


def _traffic(program: Program, visit: Visit) -> int:
    computation, it = visit.computation, visit.instruction
    if 'custom_call_target="ConcatBitcast"' in it.attributes or 'custom_call_target="AllocateBuffer"' in it.attributes:
        return 0
    if it.op in _FREE or it.op.endswith("-done") or it.op in ("while", "call", "conditional", "async-start"):
        return 0
    operands = computation.operands(it)
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
    if root is not None and root.op == "dynamic-update-slice":
        updated = root.operands[0]
        written = min(written, inside.instructions[root.operands[1]].bytes)
    read = 0
    parameters = {int(i.text): i.name for i in inside.instructions.values() if i.op == "parameter"}
    for number, operand in enumerate(operands):
        name, takers = parameters.get(number), users.get(parameters.get(number), [])
        if name is not None and name == updated and len(takers) == 1:
            continue
        if takers and all(t.op in ("dynamic-slice", "gather", "slice") and t.operands[0] == name for t in takers):
            read += min(operand.hbm_bytes, sum(t.bytes for t in takers))
        else:
            read += operand.hbm_bytes
    return read + written
