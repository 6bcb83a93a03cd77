"""Where the devices of a mesh are in their machine, and with that the links that a collective can use."""

import dataclasses
from typing import Any

import jax
import numpy as np

from t2t_flax.extensions.planning.collectives import Collective
from t2t_flax.extensions.planning.topology import Topology


@dataclasses.dataclass(frozen=True)
class DeviceLayout:
    """For each device in mesh order: its slice (GPU: its host), and its chip's coordinates there. `mesh`: the size of
    each axis.
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
        """The mesh axes along which the devices of a group differ, such as "data" or "data fsdp"."""
        index = np.unravel_index(group, tuple(self.mesh.values()))
        return " ".join(axis for axis, positions in zip(self.mesh, index, strict=True) if len(set(positions)) > 1)

    def links(self, group: tuple[int, ...]) -> tuple[int, int]:
        """(links over which a chip of the group can send at once, hops across the group), within one slice.

        An axis that the group spans whole and that closes to a ring gives two links, any other axis one.
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
        # Three axes close when the slice consists of cubes of 4 x 4 x 4, two when an axis is as long as the pod.
        return all(n % chip.wraps == 0 for n in shape) if chip.axes == 3 else shape[axis] == chip.wraps

    def summary(self, collectives: list[Collective]) -> list[dict[str, Any]]:
        """The collectives by kind, group and overlap, as plain values; bytes are sums over all runs.

        axes: of the mesh; in_loop: runs in a loop; devices: of a group in one slice; slices: that it spans; links, hops:
        see `links`; known: False where a loop's trip count is unknown and one turn is counted.
        """
        rows: dict[tuple, dict[str, Any]] = {}
        for c in collectives:
            slices = self.topology.slices if c.across_slices else len({self.slices[i] for i in c.group})
            links, hops = self.links(c.group)
            devices = 1 if c.across_slices else len(c.group) // slices
            axes = "data" if c.across_slices else self.axes(c.group)
            key = (c.kind, axes, devices, slices, links, hops, c.overlaps, c.known, c.in_loop)
            names = ("kind", "axes", "devices", "slices", "links", "hops", "overlaps", "known", "in_loop")
            row = rows.setdefault(key, dict(zip(names, key, strict=True)) | {"runs": 0, "bytes": 0})
            row["runs"] += c.times
            row["bytes"] += c.times * c.bytes
        return list(rows.values())

    def gradient_exchanges(self, collectives: list[Collective]) -> dict[str, Any]:
        """`times`: how often an update sums gradients over devices; `in_loop`: whether one of these sums is in a loop, such as
        that over microbatches; `bytes`: of the summed arrays, in all runs.

        Gradients are the only arrays of more than one number that are summed along the axes that divide the batch.
        """
        sums = [
            c for c in collectives if c.sums and (c.across_slices or {"data", "fsdp"} & set(self.axes(c.group).split()))
        ]
        return {
            "times": max((c.times for c in sums), default=0),
            "in_loop": any(c.in_loop for c in sums),
            "bytes": sum(c.times * c.bytes for c in sums),
        }
