"""Collectives of an optimized XLA program.

They say what devices exchange, how often, beside which other work, and over which links.
"""

import dataclasses
import re
from typing import Any

import jax
import numpy as np

from t2t_flax.extensions.planning.hlo import Computation, Instruction, Program, Visit, visits
from t2t_flax.extensions.planning.topology import Topology

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_SUMMING = ("all-reduce", "reduce-scatter")
_COMPUTING = ("fusion", "dot", "convolution", "custom-call", "while")
_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:,\s*device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))?\s*\{([^}]*)\}"
)
_CHANNEL = re.compile(r"channel_id=(\d+)")


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective operation.

    Args:
        bytes: bytes of the whole array on one device each time it runs (all-gather: the gathered
            one).
        group: positions in the mesh of the first group's devices.
        times: runs in one run of the program.
        known: False in a loop of unknown trip count, which is counted once.
        overlaps: whether other work is scheduled between its start and its end.
        across_slices: whether it is the part that TPU slices exchange over the data-centre network.
        in_loop: whether it runs in a loop.
        sums: whether it sums arrays of several elements that each device has whole, and not only
            numbers, or parts that together are one array.
    """

    kind: str
    bytes: int
    group: tuple[int, ...]
    times: int = 1
    known: bool = True
    overlaps: bool = False
    across_slices: bool = False
    in_loop: bool = dataclasses.field(default=False, compare=False)
    sums: bool = dataclasses.field(default=False, compare=False)


def collectives(program: Program, devices: int) -> list[Collective]:
    """Return every collective that moves data between devices, in program order.

    GPU programs and most TPU programs have pairs of a start and a done, or single instructions. The
    TPU compiler also writes them inside fusions, where one that runs beside products appears in
    each of these with the same channel; and, between slices, as transfers of each device to the
    host and back, which name the operation.
    """
    result: list[Collective] = []
    channels: dict[str, int] = {}
    for visit in visits(program):
        it, computation = visit.instruction, visit.computation
        transfer = _TRANSFER.search(it.attributes) if it.op == "send" else None
        if transfer:
            kind = transfer[1].lower().replace("_", "-")
            size = sum(o.bytes for o in computation.operands(it))
            overlaps = _work_before_answer(computation, it)
            sums = kind in _SUMMING and any(
                a.elements > 1 for o in computation.operands(it) for a in o.arrays
            )
            result.append(
                Collective(
                    kind,
                    size,
                    (0,),
                    visit.times,
                    visit.known,
                    overlaps,
                    True,
                    in_loop=visit.in_loop,
                    sums=sums,
                )
            )
            continue
        fused = _fused(program, it)
        home, collective = fused or (computation, it)
        kind = _kind(collective)
        if kind is None:
            continue
        if fused and "reduce-scatter" in it.called[0]:
            kind = "reduce-scatter"
        channel = _CHANNEL.search(collective.attributes)
        # A later part of a collective that is in the list.
        if fused and channel and channel[1] in channels:
            if any(i.op in ("dot", "convolution", "reduce") for i in home.instructions.values()):
                index = channels[channel[1]]
                result[index] = dataclasses.replace(result[index], overlaps=True)
            continue
        group = first_group(collective.attributes, devices)
        size = sum(o.bytes for o in home.operands(collective)) * (
            len(group) if kind == "all-gather" else 1
        )
        if len(group) > 1:
            if fused and channel:
                channels[channel[1]] = len(result)
            sums = kind in _SUMMING and _sums_whole_arrays(program, home, collective)
            runs = visit.times, visit.known, _overlaps(visit)
            result.append(Collective(kind, size, group, *runs, in_loop=visit.in_loop, sums=sums))
    return result


def _sums_whole_arrays(program: Program, home: Computation, collective: Instruction) -> bool:
    """Return True if a collective sums whole arrays.

    The TPU compiler gathers small arrays by a sum of their parts, each written into zeros.
    """

    def is_part(operand: Instruction) -> bool:
        inside = (
            program.computations.get(operand.called[0])
            if operand.op == "fusion" and operand.called
            else None
        )
        made_by = (
            inside.instructions[inside.root].op
            if inside and inside.root in inside.instructions
            else operand.op
        )
        return made_by == "dynamic-update-slice"

    operands = home.operands(collective)
    return any(
        a.elements > 1 and not is_part(operand) for operand in operands for a in operand.arrays
    )


def _kind(instruction: Instruction) -> str | None:
    name = instruction.op.removesuffix("-start")
    return name if name in KINDS else None


def _fused(program: Program, it: Instruction) -> tuple[Computation, Instruction] | None:
    """Return the collective inside a fusion, with its computation."""
    if it.op != "fusion" or not it.called or it.called[0] not in program.computations:
        return None
    home = program.computations[it.called[0]]
    inside = next((i for i in home.instructions.values() if _kind(i)), None)
    return (home, inside) if inside else None


def _overlaps(visit: Visit) -> bool:
    it = visit.instruction
    if visit.asynchronous or not it.op.endswith("-start"):
        return visit.asynchronous
    return _works_until(visit.computation, it, "-done", {it.name})


def _work_before_answer(computation: Computation, send: Instruction) -> bool:
    """Return True if there is work between a transfer to other slices and its answer."""
    rendezvous = _RENDEZVOUS.search(send.attributes)
    if rendezvous is None:
        raise ValueError(f"{send.name} names no rendezvous")
    mark = f'"{rendezvous[1]}"'
    answers = {
        i.name for i in computation.instructions.values() if i.op == "recv" and mark in i.attributes
    }
    return _works_until(computation, send, "recv-done", answers)


def _works_until(
    computation: Computation, start: Instruction, end: str, operands: set[str]
) -> bool:
    """Return True if there is work between `start` and an `end` instruction.

    The latter has one of these operands.
    """
    for later in computation.after(start):
        if later.op.endswith(end) and operands & set(later.operands):
            return False
        if later.op in _COMPUTING:
            return True
    return False


def first_group(attributes: str, devices: int) -> tuple[int, ...]:
    """Return positions in the mesh of the first group of `replica_groups`.

    All positions if it is empty. It reads any of XLA's notations.
    """
    pairs = re.search(r"source_target_pairs=\{\{(\d+),(\d+)\}", attributes)
    if pairs:
        return tuple(sorted({int(pairs[1]), int(pairs[2])}))
    listed = re.search(r"replica_groups=\{\{([\d,]*)\}", attributes)
    if listed:
        return tuple(int(n) for n in listed[1].split(","))
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes)
    if iota:
        sizes, shape, order = (
            [int(n) for n in part.split(",")] if part else [] for part in iota.groups()
        )
        positions = np.arange(np.prod(shape)).reshape(shape)
        positions = positions.transpose(order) if order else positions
        return tuple(int(n) for n in positions.reshape(sizes)[0])
    named = _MESH.search(attributes)
    if named:
        return _mesh_group(*named.groups())
    if "replica_groups=" in attributes and "replica_groups={}" not in attributes:
        raise ValueError(
            f"unknown notation of groups: {attributes[attributes.index('replica_groups=') :][:120]}"
        )
    return tuple(range(devices))


def _mesh_group(
    mesh: str, order_sizes: str | None, order: str | None, axes: str
) -> tuple[int, ...]:
    """Parse a mesh `'a'=4,'b'=2` and axes such as `'a'`, or a part of an axis.

    `'a':(2)2` is the 2 after the first 2 of a. Devices are numbered row by row, or as in a mesh of
    `order_sizes` whose axes are permuted by `order`.
    """
    sizes = {name: int(n) for name, n in re.findall(r"'(\w+)'=(\d+)", mesh)}
    positions = np.arange(np.prod(list(sizes.values())))
    if order_sizes:
        positions = positions.reshape([int(n) for n in order_sizes.split(",")])
        positions = positions.transpose([int(n) for n in order.split(",")]) if order else positions
    positions = positions.reshape(list(sizes.values()))
    index: list = [slice(0, 1)] * positions.ndim
    for name, before, size in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", axes):
        axis = list(sizes).index(name)
        if not size:
            index[axis] = slice(None)
            continue
        step = sizes[name] // (int(before) * int(size))
        index[axis] = slice(0, step * int(size), step)
    return tuple(int(n) for n in positions[tuple(index)].ravel())


@dataclasses.dataclass(frozen=True)
class DeviceLayout:
    """Places of a mesh's devices in their machine.

    Args:
        slices: slice (GPU: host) of each device, in mesh order.
        coordinates: its chip's coordinates there.
        mesh: size of each axis.
    """

    slices: tuple[int, ...]
    coordinates: tuple[tuple[int, ...], ...]
    topology: Topology
    mesh: dict[str, int]

    @classmethod
    def of(cls, mesh: jax.sharding.Mesh, topology: Topology) -> "DeviceLayout":
        devices = list(mesh.devices.flat)
        if topology.platform == "tpu":
            slices = [getattr(d, "slice_index", None) or 0 for d in devices]
            coordinates = [tuple(d.coords)[: len(topology.shape)] for d in devices]
        else:  # GPUs and simulated devices: consecutive ids
            per_slice = len(devices) // topology.slices
            slices = [d.id // per_slice for d in devices]
            coordinates = [(d.id % per_slice,) for d in devices]
        return cls(tuple(slices), tuple(coordinates), topology, dict(mesh.shape))

    def axes(self, group: tuple[int, ...]) -> str:
        """Return the mesh axes along which the devices of a group differ.

        An example is "data fsdp".
        """
        index = np.unravel_index(group, tuple(self.mesh.values()))
        return " ".join(
            axis
            for axis, positions in zip(self.mesh, index, strict=True)
            if len(set(positions)) > 1
        )

    def links(self, group: tuple[int, ...]) -> tuple[int, int]:
        """Return (links over which a chip of the group sends at once, hops across the group).

        Both are within one slice. An axis that the group spans whole and that closes to a ring
        gives two links, any other axis one.
        """
        if self.topology.platform == "gpu":  # a switch
            return 1, 1
        first = self.slices[group[0]]
        members = [self.coordinates[i] for i in group if self.slices[i] == first]
        links = hops = 0
        for axis, size in enumerate(self.topology.shape):
            span = len({member[axis] for member in members})
            if span > 1:
                ring = span == size and self._is_ring(axis)
                links += 2 if ring else 1
                hops += span // 2 if ring else span - 1
        return max(1, links), hops

    def _is_ring(self, axis: int) -> bool:
        chip, shape = self.topology.chip, self.topology.shape
        if chip is None:
            return False
        # Three axes close when the slice consists of cubes of 4 x 4 x 4, two when an axis is as
        # long as the pod.
        return (
            all(n % chip.wraps == 0 for n in shape) if chip.axes == 3 else shape[axis] == chip.wraps
        )

    def summary(self, collectives: list[Collective]) -> list[dict[str, Any]]:
        """Return the collectives by kind, group and overlap, as plain values.

        Bytes are sums over all runs. axes: mesh axes; in_loop: runs in a loop; devices: devices of
        a group in one slice; slices: slices that it spans; links, hops: see `links`; known: False
        if a loop's trip count is unknown and one turn is counted.
        """
        rows: dict[tuple, dict[str, Any]] = {}
        for c in collectives:
            slices = (
                self.topology.slices if c.across_slices else len({self.slices[i] for i in c.group})
            )
            links, hops = self.links(c.group)
            devices = 1 if c.across_slices else len(c.group) // slices
            axes = "data" if c.across_slices else self.axes(c.group)
            key = (c.kind, axes, devices, slices, links, hops, c.overlaps, c.known, c.in_loop)
            names = (
                "kind",
                "axes",
                "devices",
                "slices",
                "links",
                "hops",
                "overlaps",
                "known",
                "in_loop",
            )
            row = rows.setdefault(key, dict(zip(names, key, strict=True)) | {"runs": 0, "bytes": 0})
            row["runs"] += c.times
            row["bytes"] += c.times * c.bytes
        return list(rows.values())

    def gradient_exchanges(self, collectives: list[Collective]) -> dict[str, Any]:
        """Return how an update sums gradients over devices.

        `times`: number of sums; `in_loop`: whether one of them is in a loop, such as the loop over
        microbatches; `bytes`: bytes of the summed arrays, in all runs. Gradients are the only
        arrays of more than one number that are summed along the axes that divide the batch.
        """
        sums = [
            c
            for c in collectives
            if c.sums and (c.across_slices or {"data", "fsdp"} & set(self.axes(c.group).split()))
        ]
        return {
            "times": max((c.times for c in sums), default=0),
            "in_loop": any(c.in_loop for c in sums),
            "bytes": sum(c.times * c.bytes for c in sums),
        }
