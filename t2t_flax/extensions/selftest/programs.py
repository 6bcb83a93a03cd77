"""Checks of a compiled train step.

They cover kernels, types of its products and the exchange of gradients.
"""

import math
import re
from typing import NamedTuple

_ASKED_PRODUCT = re.compile(
    r"stablehlo\.dot_general .*?: \(tensor<(?:\d+x)*(\w+)>, tensor<(?:\d+x)*(\w+)>\)"
)
_TARGET = re.compile(r'custom_call(?:_target="|\s*@)([\w$.\-]+)')
_KERNELS = re.compile(r"fmha|tpu_custom_call|mosaic|triton", re.IGNORECASE)
_DIVIDED = "CustomSPMDPartitioning"
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*)$")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_NAME = re.compile(r"%([\w.\-]+)")
_REDUCTIONS = ("all-reduce", "all-reduce-start", "reduce-scatter", "all-to-all")
_EXCHANGES = (*_REDUCTIONS, "collective-permute", "collective-permute-start", "async-start")
_NARROW = ("bf16", "f16", "f8e4m3fn", "f8e5m2", "s8")


class Checked(NamedTuple):
    """Result of the checks.

    Args:
        faults: sentences.
        summary: text on the programs.
    """

    faults: list[str]
    summary: str


def check_programs(
    lowered: str,
    compiled: str,
    *,
    precision: str,
    platform: str,
    kernel: str,
    shards: int,
    exchanged: int,
    only_data: bool,
    in_optimizer: int,
) -> Checked:
    """Check the programs of a train step.

    Args:
        lowered: StableHLO.
        compiled: HLO, for "cpu", "gpu" or "tpu".
        precision: requested precision of products.
        kernel: attention kernel.
        shards: shards of the batch.
        exchanged: elements of gradients that a device sums with others.
        only_data: whether the mesh divides the batch alone.
        in_optimizer: products of the optimizer, such as Muon's, which stay in float32.
    """
    faults, bfloat16 = [], precision == "bfloat16"
    asked = [pair for pair in _ASKED_PRODUCT.findall(lowered)]
    narrow = sum("bf16" in pair for pair in asked)
    if not bfloat16 and narrow:
        faults.append(
            f"{narrow} of {len(asked)} matrix products are in bfloat16, where float32 was asked for"
        )
    in_model = len(asked) - in_optimizer
    if bfloat16 and 2 * narrow < in_model:
        faults.append(
            f"only {narrow} of {in_model} matrix products are in bfloat16, which was asked for"
        )
    made = _products(compiled)
    # TPUs multiply wider numbers in several passes of bfloat16.
    if (
        precision == "float32"
        and platform != "tpu"
        and (wrong := sum(any(t in _NARROW for t in types) for types in made))
    ):
        faults.append(
            f"the compiler has made {wrong} products in 16 bits or less, where float32 was"
            " asked for"
        )
    if bfloat16 and platform != "cpu" and made and not any("bf16" in types for types in made):
        faults.append("the compiler has left no product in bfloat16, which was asked for")
    wanted, there = (set(_TARGET.findall(text)) for text in (lowered, compiled))
    divided = _DIVIDED in wanted  # the compiler divides over devices; only then is a kernel named
    wanted = {name for name in wanted if _KERNELS.search(name)}
    if not wanted and divided and kernel != "einsum":
        wanted = {name for name in there if _KERNELS.search(name)} or {kernel}
    if lost := wanted - there:
        faults.append(
            f"the kernel {', '.join(sorted(lost))} of attention was asked for and is not in the"
            " compiled program"
        )
    reductions = _elements(compiled, _REDUCTIONS)
    if shards > 1 and only_data and sum(reductions) < exchanged:
        faults.append(
            f"its exchanges sum {sum(reductions):,} numbers of the {shards} shards of a batch, of"
            f" {exchanged:,} that the gradients have: some gradients are not summed over the"
            " devices"
        )
    if shards > 1 and not only_data and not _elements(compiled, _EXCHANGES):
        faults.append(
            f"nothing is exchanged between the {shards} shards of a batch: no gradient is summed"
            " over the devices"
        )
    kind = (
        f"{narrow} of {in_model} products in bfloat16"
        if bfloat16
        else f"{len(asked)} products in float32"
    )
    kernels = (
        f", attention by {', '.join(sorted(wanted))}"
        if wanted
        else ""
        if kernel == "einsum"
        else f", no {kernel}"
    )
    exchange = f", {len(reductions)} exchanges of {sum(reductions):,} numbers" if shards > 1 else ""
    return Checked(faults, kind + kernels + exchange)


def _instructions(compiled: str):
    for line in compiled.splitlines():
        if match := _INSTRUCTION.match(line):
            yield match.groups()


def _products(compiled: str) -> list[set[str]]:
    """Return the operand types of each matrix product."""
    types, products = {}, []
    for name, result, op, rest in _instructions(compiled):
        if first := _ARRAY.search(result):
            types[name] = first[1]
        if (
            op in ("dot", "convolution")
            or op == "custom-call"
            and re.search(r'target="[^"]*(gemm|matmul)', rest)
        ):
            operands = rest.partition(")")[0]
            products.append({types[n] for n in _NAME.findall(operands) if n in types})
    return products


def _elements(compiled: str, ops: tuple[str, ...]) -> list[int]:
    """Return the number of elements in the result of each such instruction."""
    found = []
    for _, result, op, _ in _instructions(compiled):
        if op in ops:
            found.append(
                sum(
                    math.prod(int(n) for n in sizes.split(",") if n)
                    for _, sizes in _ARRAY.findall(result)
                )
            )
    return found
