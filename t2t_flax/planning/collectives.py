"""The collectives of an optimised program: kind, bytes, group, how often, and whether something else runs meanwhile.

The TPU compiler writes them in three ways, all of which are read here: as instructions, alone or as pairs of a start and
a done; inside fusions, where one that runs beside products appears in each of these with the same channel; and, between
slices, as transfers of each device to the host and back, which name the operation.
"""

import dataclasses
import re

import numpy as np

from t2t_flax.planning.hlo import Computation, Instruction, Program, Visit, visits

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_COMPUTING = ("fusion", "dot", "convolution", "custom-call", "while")
_ACROSS = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:,\s*device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))?\s*\{([^}]*)\}"
)
_CHANNEL = re.compile(r"channel_id=(\d+)")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective. `bytes`: the whole array that it makes or takes, on one device, each time it runs (all-gather: the
    gathered result). `group`: places in the mesh of the devices of the first group. `across`: it is the part of one
    that slices exchange over the data-centre network. `times`: runs in one run of the program; `known` False = in a loop
    of unknown turns, counted once. `overlaps`: other work is scheduled between its start and its end.
    """

    kind: str
    bytes: int
    group: tuple[int, ...]
    times: int = 1
    known: bool = True
    overlaps: bool = False
    across: bool = False


def collectives(program: Program, devices: int) -> list[Collective]:
    """Every collective that moves something between devices, in the order of the program."""
    found: list[Collective] = []
    channels: dict[str, int] = {}
    for visit in visits(program):
        it, computation = visit.instruction, visit.computation
        across = _ACROSS.search(it.attributes) if it.op == "send" else None
        if across:
            kind = across[1].lower().replace("_", "-")
            size = sum(o.bytes for o in computation.operands(it))
            overlaps = _work_before(computation, it, _RENDEZVOUS.search(it.attributes)[1])
            found.append(Collective(kind, size, (0,), visit.times, visit.known, overlaps, across=True))
            continue
        fused = _fused(program, it)
        home, collective = fused or (computation, it)
        if _kind(collective) is None:
            continue
        kind = "reduce-scatter" if fused and "reduce-scatter" in it.called[0] else _kind(collective)
        channel = _CHANNEL.search(collective.attributes)
        if fused and channel and channel[1] in channels:  # a later part of one that has been counted
            if any(i.op in ("dot", "convolution", "reduce") for i in home.instructions.values()):
                at = channels[channel[1]]
                found[at] = dataclasses.replace(found[at], overlaps=True)
            continue
        group = first_group(collective.attributes, devices)
        size = sum(o.bytes for o in home.operands(collective)) * (len(group) if kind == "all-gather" else 1)
        if len(group) > 1:
            if fused and channel:
                channels[channel[1]] = len(found)
            found.append(Collective(kind, size, group, visit.times, visit.known, _overlaps(visit)))
    return found


def _kind(instruction: Instruction) -> str | None:
    name = instruction.op.removesuffix("-start")
    return name if name in KINDS else None


def _fused(program: Program, it: Instruction) -> tuple[Computation, Instruction] | None:
    """The collective inside a fusion, with the computation that it is in."""
    if it.op != "fusion" or not it.called or it.called[0] not in program.computations:
        return None
    home = program.computations[it.called[0]]
    inside = next((i for i in home.instructions.values() if _kind(i)), None)
    return (home, inside) if inside else None


def _overlaps(visit: Visit) -> bool:
    it = visit.instruction
    if visit.asynchronous:
        return True
    if not it.op.endswith("-start"):
        return False
    for later in list(visit.computation.instructions.values())[it.index + 1 :]:
        if it.name in later.operands and later.op.endswith("-done"):
            return False
        if later.op in _COMPUTING:
            return True
    return False


def _work_before(computation: Computation, send: Instruction, rendezvous: str) -> bool:
    """Whether something is computed between a transfer to other slices and the arrival of its answer."""
    order = list(computation.instructions.values())[send.index + 1 :]
    answers = {
        i.name for i in computation.instructions.values() if i.op == "recv" and f'"{rendezvous}"' in i.attributes
    }
    for later in order:
        if later.op == "recv-done" and answers & set(later.operands):
            return False
        if later.op in _COMPUTING:
            return True
    return False


def first_group(attributes: str, devices: int) -> tuple[int, ...]:
    """Places in the mesh of the first group of `replica_groups` in any of XLA's notations; all where it names none."""
    pairs = re.search(r"source_target_pairs=\{\{(\d+),(\d+)\}", attributes)
    if pairs:
        return tuple(sorted({int(pairs[1]), int(pairs[2])}))
    listed = re.search(r"replica_groups=\{\{([\d,]*)\}", attributes)
    if listed:
        return tuple(int(n) for n in listed[1].split(","))
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes)
    if iota:
        sizes, shape, order = ([int(n) for n in part.split(",")] if part else None for part in iota.groups())
        places = np.arange(np.prod(shape)).reshape(shape)
        places = places.transpose(order) if order else places
        return tuple(int(n) for n in places.reshape(sizes)[0])
    named = _MESH.search(attributes)
    if named:
        return _mesh_group(*named.groups())
    if "replica_groups=" in attributes and "replica_groups={}" not in attributes:
        raise ValueError(f"unknown notation of groups: {attributes[attributes.index('replica_groups=') :][:120]}")
    return tuple(range(devices))


def _mesh_group(mesh: str, order_sizes: str | None, order: str | None, axes: str) -> tuple[int, ...]:
    """`'a'=4,'b'=2` and `'a'`, or a part of an axis: `'a':(2)2` is the 2 after the first 2 of a. The devices of the mesh
    are numbered row by row, or as those of a mesh of `order_sizes` whose axes are taken in `order`.
    """
    sizes = {name: int(n) for name, n in re.findall(r"'(\w+)'=(\d+)", mesh)}
    places = np.arange(np.prod(list(sizes.values())))
    if order_sizes:
        places = places.reshape([int(n) for n in order_sizes.split(",")])
        places = places.transpose([int(n) for n in order.split(",")]) if order else places
    places = places.reshape(list(sizes.values()))
    index: list = [slice(0, 1)] * places.ndim
    for name, before, size in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", axes):
        axis = list(sizes).index(name)
        if not size:
            index[axis] = slice(None)
            continue
        step = sizes[name] // (int(before) * int(size))
        index[axis] = slice(0, step * int(size), step)
    return tuple(int(n) for n in places[tuple(index)].ravel())
