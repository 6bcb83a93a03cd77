"""The step time that no machine can beat, from data-sheet bandwidths: three terms, and which of them is the bottleneck."""

import dataclasses
from typing import Any

from t2t_flax.extensions.planning.chips import HOP_SECONDS
from t2t_flax.extensions.planning.topology import Topology


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Predicted seconds of one update on a device. `compute`: its matrix products at the bfloat16 peak. `memory`: parameters
    and optimizer state read once and written once. `ici`, `dcn`: collectives within a slice (GPU: a host) and between slices;
    `overlapping`: the part of both that runs beside other work.
    """

    compute: float
    memory: float
    ici: float
    dcn: float
    overlapping: float

    @property
    def seconds(self) -> float:
        """The longest of what runs at the same time, plus the collectives that overlap with nothing."""
        alone = self.ici + self.dcn - self.overlapping
        return max(self.compute, self.memory, self.overlapping) + alone

    @property
    def bottleneck(self) -> str:
        """The largest of the terms."""
        terms = {"compute": self.compute, "memory": self.memory, "interconnect": self.ici + self.dcn}
        return max(terms, key=terms.get)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"seconds": self.seconds, "bottleneck": self.bottleneck}


def roofline(topology: Topology, flops: float, memory_bytes: float, rows: list[dict[str, Any]]) -> Roofline | None:
    """`flops`, `memory_bytes`: of a device. `rows`: of `DeviceLayout.summary`. None for a CPU, which has no data sheet."""
    chip = topology.chip
    if chip is None:
        return None
    times = [(row, collective_seconds(topology, row)) for row in rows]
    return Roofline(
        compute=flops / chip.peak_flops,
        memory=memory_bytes / (chip.hbm_bandwidth / chip.devices),
        ici=sum(ici for _, (ici, _) in times),
        dcn=sum(dcn for _, (_, dcn) in times),
        overlapping=sum(ici + dcn for row, (ici, dcn) in times if row["overlaps"]),
    )


def sent_bytes(row: dict[str, Any]) -> tuple[float, float]:
    """Bytes that a device sends (within its slice, to other slices) in all runs of a row.

    The least that any algorithm needs: an all-reduce of S bytes over n devices 2 (n - 1) / n S, a gather, a scatter or
    an all-to-all (n - 1) / n S, a permutation S. Over several slices each device exchanges its n-th part with its peers.
    """
    n, slices, size = row["devices"], row["slices"], row["bytes"]
    if row["kind"] == "collective-permute":
        return (size, 0.0) if slices == 1 else (0.0, size)
    double = 2 if row["kind"] == "all-reduce" else 1
    part = size / n if n > 1 else size
    return double * (n - 1) / n * size, double * (slices - 1) / slices * part


def collective_seconds(topology: Topology, row: dict[str, Any]) -> tuple[float, float]:
    """(within the slice, between slices): bytes over the links that the group can use at once, and each run's hops."""
    chip = topology.chip
    near, far = sent_bytes(row)
    ici = near / (row["links"] * chip.link_bandwidth) if row["devices"] > 1 else 0.0
    ici += row["runs"] * row["hops"] * HOP_SECONDS * (2 if row["kind"] == "all-reduce" else 1)
    return ici, far / (chip.network_bandwidth / chip.devices)
