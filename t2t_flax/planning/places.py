"""Where the devices of a mesh are in their machine, and so which links a collective can use."""

import dataclasses
from typing import Any

import jax

from t2t_flax.planning.collectives import Collective
from t2t_flax.planning.topology import Topology


@dataclasses.dataclass(frozen=True)
class Places:
    """Of each device in the order of the mesh: its slice, and its chip's coordinates there."""

    slices: tuple[int, ...]
    coordinates: tuple[tuple[int, ...], ...]
    topology: Topology

    @classmethod
    def of(cls, mesh: jax.sharding.Mesh, topology: Topology) -> "Places":
        devices = list(mesh.devices.flat)
        if topology.platform == "tpu":
            slices = [getattr(d, "slice_index", None) or 0 for d in devices]
            coordinates = [tuple(d.coords)[: len(topology.shape)] for d in devices]
        else:  # simulated devices and GPUs: a slice is a run of ids
            per_slice = len(devices) // topology.slices
            slices = [d.id // per_slice for d in devices]
            coordinates = [(d.id % per_slice,) for d in devices]
        return cls(tuple(slices), tuple(coordinates), topology)

    def links(self, group: tuple[int, ...]) -> tuple[int, int]:
        """(links that a chip of the group can send over at once, hops across it), within one slice.

        An axis that the group spans whole and that closes to a ring gives two links, any other axis one.
        """
        if self.topology.platform == "gpu":  # a switch
            return 1, 1
        first = self.slices[group[0]]
        members = [self.coordinates[i] for i in group if self.slices[i] == first]
        links = hops = 0
        for axis, size in enumerate(self.topology.shape):
            span = len({place[axis] for place in members})
            if span > 1:
                links += 2 if span == size and self._closed(axis) else 1
                hops += span // 2 if span == size and self._closed(axis) else span - 1
        return max(1, links), hops

    def _closed(self, axis: int) -> bool:
        chip, shape = self.topology.chip, self.topology.shape
        if chip is None or self.topology.platform != "tpu":
            return False
        # Three axes close when the slice is made of whole cubes of 4 x 4 x 4, two when an axis is as long as the pod.
        return all(n % chip.wraps == 0 for n in shape) if chip.axes == 3 else shape[axis] == chip.wraps

    def summary(self, found: list[Collective]) -> list[dict[str, Any]]:
        """The collectives by kind, group and overlap, as plain values: bytes are sums over all their runs.

        devices: of a group in one slice; slices: that it spans; links, hops: see `links`; known: False where the turns
        of a loop are not known, one counted.
        """
        rows: dict[tuple, dict[str, Any]] = {}
        for c in found:
            slices = self.topology.slices if c.across else len({self.slices[i] for i in c.group})
            links, hops = self.links(c.group)
            within = 1 if c.across else len(c.group) // slices
            key = (c.kind, within, slices, links, hops, c.overlaps, c.known)
            names = ("kind", "devices", "slices", "links", "hops", "overlaps", "known")
            row = rows.setdefault(key, dict(zip(names, key, strict=True)) | {"runs": 0, "bytes": 0})
            row["runs"] += c.times
            row["bytes"] += c.times * c.bytes
        return list(rows.values())
