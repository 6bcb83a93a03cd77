"""Parser of optimized XLA programs for TPU, GPU or CPU.

It reads computations, loops, and how often each instruction runs.
"""

import collections
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

_BYTES = {"pred": 1, "s4": 1, "u4": 1, "bf16": 2, "token": 0}
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_CALLS = re.compile(r"(?:calls|to_apply|body|condition|async_wrapped_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_NAME = re.compile(r"%([\w.\-]+)")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_TRIPS = re.compile(r'known_trip_count[^\d}]*"?(\d+)')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_CALLING = ("while", "call", "conditional", "async-start")
# Custom calls of the TPU compiler that are bookkeeping, not kernels.
_BOOKKEEPING = re.compile(
    "ConcatBitcast|AllocateBuffer|AsyncCollective|AssumeGather|GatherScatter|Sharding"
)


class Array(NamedTuple):
    """One array of a shape, with the sizes of its axes."""

    bytes: int
    sizes: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)


class Instruction(NamedTuple):
    """An instruction of a computation.

    Args:
        operands: their names.
        text: text between the parentheses.
        attributes: text after them.
        index: place in the schedule.
    """

    name: str
    op: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    text: str
    index: int  # type: ignore[assignment]  # not the method of a tuple

    @property
    def bytes(self) -> int:
        """Bytes of the result."""
        return sum(a.bytes for a in self.arrays)

    @property
    def called(self) -> tuple[str, ...]:
        """Computations of a fusion, a call, a loop, or a conditional's branches."""
        branches = _BRANCHES.search(self.attributes)
        return (*_CALLS.findall(self.attributes), *(_NAME.findall(branches[1]) if branches else ()))


class Computation(NamedTuple):
    instructions: dict[str, Instruction]
    root: str

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """Return the instructions whose results are its operands."""
        return [self.instructions[n] for n in instruction.operands if n in self.instructions]

    def after(self, instruction: Instruction) -> list[Instruction]:
        """Return the rest of the schedule."""
        return list(self.instructions.values())[instruction.index + 1 :]


class Program(NamedTuple):
    """Computations by name.

    Args:
        entry: name of the computation that runs.
    """

    computations: dict[str, Computation]
    entry: str


class Visit(NamedTuple):
    """An instruction that runs `times` times.

    Args:
        known: False in a loop whose trip count the text does not say.
        in_loop: whether it is in the body or condition of a loop.
    """

    computation: Computation
    instruction: Instruction
    times: int
    known: bool
    asynchronous: bool
    in_loop: bool


def parse(text: str) -> Program:
    """Parse the program of `Compiled.as_text()`, compiled for a TPU, a GPU or a CPU."""
    computations: dict[str, Computation] = {}
    body: dict[str, Instruction] = {}
    entry, name, root = "", None, ""
    for line in text.splitlines():
        head = _HEAD.match(line) if not line.startswith(" ") else None
        if head:
            name, body, root = head[2], {}, ""
            entry = name if head[1] else entry
        elif line == "}" and name:
            computations[name], name = Computation(body, root), None
        elif name and body and not line.startswith(" "):
            # A kernel's metadata goes over several lines.
            last = next(reversed(body.values()))
            body[last.name] = last._replace(attributes=f"{last.attributes}\n{line}")
        elif name and " = " in line:
            instruction = _instruction(line, len(body))
            body[instruction.name] = instruction
            root = instruction.name if line.lstrip().startswith("ROOT ") else root
    return Program(computations, entry)


def _instruction(line: str, index: int) -> Instruction:
    left, _, right = line.strip().partition(" = ")
    end = _closing(right, 0) + 1 if right.startswith("(") else right.index(" ")
    shape, rest = right[:end], right[end:].lstrip()
    opening = rest.index("(")
    closing = _closing(rest, opening)
    text, attributes = rest[opening + 1 : closing], rest[closing + 1 :]
    name = left.removeprefix("ROOT ").lstrip("%")
    return Instruction(
        name, rest[:opening], _arrays(shape), tuple(_NAME.findall(text)), attributes, text, index
    )


def _closing(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
    raise ValueError(f"no closing parenthesis in {text[start : start + 80]!r}")


def _arrays(shape: str) -> tuple[Array, ...]:
    arrays = []
    for kind, sizes in _ARRAY.findall(shape):
        bits = re.search(r"\d+", kind)
        item = _BYTES.get(kind, max(1, int(bits[0]) // 8) if bits else 4)
        axes = tuple(int(n) for n in sizes.split(",") if n)
        arrays.append(Array(item * math.prod(axes), axes))
    return tuple(arrays)


def visits(
    program: Program, start: str = "", times: int = 1, known=True, asynchronous=False, in_loop=False
) -> Iterator[Visit]:
    """Yield every instruction that runs, and how often.

    The inside of a fusion counts as its one instruction.
    """
    computation = program.computations[start or program.entry]
    for instruction in computation.instructions.values():
        yield Visit(computation, instruction, times, known, asynchronous, in_loop)
        if instruction.op == "while":
            trips = trip_count(program, computation, instruction)
            for part in ("body", "condition"):
                name = _computation(part, instruction)
                counted = known and trips is not None
                yield from visits(
                    program, name, times * (trips or 1), counted, asynchronous, in_loop=True
                )
        elif instruction.op in _CALLING:
            for name in instruction.called:
                started = asynchronous or instruction.op == "async-start"
                yield from visits(program, name, times, known, started, in_loop)


def _computation(part: str, loop: Instruction) -> str:
    """Return the name of the body or the condition of a `while`."""
    found = re.search(rf"{part}=%?([\w.\-]+)", loop.attributes)
    assert found, loop.text
    return found[1]


def trip_count(program: Program, computation: Computation, loop: Instruction) -> int | None:
    """Return the trip count of a `while`, or None.

    XLA states it, or its condition compares a counter from 0 with a constant.
    """
    stated = _TRIPS.search(loop.attributes)
    if stated:
        return int(stated[1])
    condition = program.computations[_computation("condition", loop)]
    root = condition.instructions[condition.root]
    if root.op != "compare" or "direction=LT" not in root.attributes:
        return None
    limits = [
        int(i.text)
        for i in condition.operands(root)
        if i.op == "constant" and i.text.strip().isdigit()
    ]
    return limits[0] if len(limits) == 1 else None


def called_kernel(instruction: Instruction) -> str:
    """Return the kernel that XLA calls instead of generating one, or "".

    Such kernels are cuBLAS, cuDNN, Mosaic.
    """
    target = _TARGET.search(instruction.attributes)
    return target[1] if target and not _BOOKKEEPING.match(target[1]) else ""


def custom_calls(program: Program) -> dict[str, int]:
    """Return how often each called kernel runs."""
    counts: collections.Counter[str] = collections.Counter()
    for visit in visits(program):
        if name := called_kernel(visit.instruction):
            counts[name] += visit.times
    return dict(counts)
