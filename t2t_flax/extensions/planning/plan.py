"""Plan of a config on a machine: memory, collectives, traffic, least time.

The results are plain values. Runs in the environment of `command.compiler_environment`.
"""

import dataclasses
from typing import Any

from t2t_flax.config import Config
from t2t_flax.data.batching.layouts import bucket_edges
from t2t_flax.data.batching.rows import Shape, shape_of
from t2t_flax.extensions.planning.abstract_run import abstract_run, compile_train_step
from t2t_flax.extensions.planning.chips import HOP_SECONDS
from t2t_flax.extensions.planning.topology import Topology
from t2t_flax.training.flops import forward_products, padded_tokens, training_products
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.setup import resident_bytes

FILL = 0.97  # share of real tokens in packed rows, as in `explain`


def make_plan(config: Config, topology: Topology, *, rows: int = 0) -> dict[str, Any]:
    """Compile the train step, and compute the least time of an update.

    `bound`: see `Roofline`. `rates`: tokens per second and hours by the longest of the bound, the
    traffic of a GPU program and the estimate of the TPU compiler.

    Args:
        rows: packed rows on each device; 0 = the config's largest shape.

    Raises:
        UserError: the mesh does not fit the machine or the model.
    """
    run = abstract_run(config, topology)
    shape = batch_shape(config, run.shards, rows=rows)
    slots = shape.length * shape.rows * shape.micro
    train = compile_train_step(run, shape)
    flops = update_flops(config, shape, run.state.params) / run.mesh.size
    tokens = FILL * (slots if rows else min(config.data.batch_tokens, slots))
    state_bytes = resident_bytes(run.state)
    plan = {
        "topology": topology.name,
        "machine": topology.describe(),
        "chips": topology.chips,
        "devices": run.mesh.size,
        "mesh": dict(run.mesh.shape),
        "shape": {"length": shape.length, "rows": shape.rows, "micro": shape.micro},
        "slots": slots,
        "tokens": tokens,
        "usable_bytes": topology.chip and topology.chip.usable_bytes,
        "state_bytes": state_bytes,
        "flops_per_device": flops,
        "train": train,
        "bound": None,
        "rates": None,
    }
    line = (
        roofline(topology, flops, 2 * state_bytes, train["collectives"]) if train["fits"] else None
    )
    if line:
        compiled = [
            train[name]["seconds"] or 0.0 for name in ("traffic", "estimate") if train[name]
        ]
        seconds = max([line.seconds, *compiled])
        hours = seconds * config.train.steps / 3600
        plan["bound"] = line.as_dict()
        plan["rates"] = {
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "hours": hours,
            "chip_hours": hours * topology.chips,
        }
    return plan


def batch_shape(config: Config, shards: int, *, rows: int = 0) -> Shape:
    """Return the largest shape of a run; see `make_plan`.

    The run has `shards` devices along the batch.
    """
    data = config.data
    if data.batching == "packed":
        length = data.pack_length
    else:
        length = bucket_edges(data.max_length)[-1]
    needed = max(1, data.batch_tokens // length)
    return (
        Shape(length, rows * shards, 1)
        if rows
        else shape_of(length, needed, data.microbatch_tokens, shards)
    )


def update_flops(config: Config, shape: Shape, params: Any) -> float:
    """Return the FLOPs of one update over every slot of the shape, padding included.

    With train.remat = full the forward pass of the layers runs twice.

    Args:
        params: the run's parameters, arrays or shapes.
    """
    tokens, vocab = padded_tokens(shape.micro * shape.rows, shape.length), config.data.vocab_size
    flops = training_products(config, vocab, params, parametrization_of(config)).flops(
        config.model, tokens
    )
    if config.train.remat == "full":
        # Vocabulary 0: no logits.
        flops += forward_products(config.model, 0, params).flops(config.model, tokens)
    return flops


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Least seconds of one update on a device.

    Attributes:
        compute: matrix products at the bfloat16 peak.
        memory: parameters and optimizer state, read once and written once.
        ici, dcn: collectives within a slice (GPU: a host), and between slices.
        overlapping: the part of both that runs beside other work.
    """

    compute: float
    memory: float
    ici: float
    dcn: float
    overlapping: float

    @property
    def seconds(self) -> float:
        """Longest time of concurrent work, plus the collectives that overlap with nothing."""
        alone = self.ici + self.dcn - self.overlapping
        return max(self.compute, self.memory, self.overlapping) + alone

    @property
    def bottleneck(self) -> str:
        terms = {
            "compute": self.compute,
            "memory": self.memory,
            "interconnect": self.ici + self.dcn,
        }
        return max(terms, key=lambda term: terms[term])

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"seconds": self.seconds, "bottleneck": self.bottleneck}


def roofline(
    topology: Topology, flops: float, memory_bytes: float, rows: list[dict[str, Any]]
) -> Roofline | None:
    """Return the least time of an update; None for a CPU, which has no data sheet.

    Args:
        flops, memory_bytes: on a device.
        rows: collectives, from `DeviceLayout.summary`.
    """
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
    """Return the least bytes that a device sends in all runs of a row.

    The result is (bytes within its slice, bytes to other slices). An all-reduce of S bytes over n
    devices needs 2 (n - 1) / n S, a gather, a scatter or an all-to-all (n - 1) / n S, a permutation
    S. Over several slices each device exchanges its n-th part with its peers.
    """
    n, slices, size = row["devices"], row["slices"], row["bytes"]
    if row["kind"] == "collective-permute":
        return (size, 0.0) if slices == 1 else (0.0, size)
    double = 2 if row["kind"] == "all-reduce" else 1
    part = size / n if n > 1 else size
    return double * (n - 1) / n * size, double * (slices - 1) / slices * part


def collective_seconds(topology: Topology, row: dict[str, Any]) -> tuple[float, float]:
    """Return seconds (within the slice, between slices).

    They are bytes over the links that the group can use, and hops.
    """
    chip = topology.chip
    assert chip is not None, "CPUs have no links that are known"
    near, far = sent_bytes(row)
    ici = near / (row["links"] * chip.link_bandwidth) if row["devices"] > 1 else 0.0
    ici += row["runs"] * row["hops"] * HOP_SECONDS * (2 if row["kind"] == "all-reduce" else 1)
    return ici, far / (chip.network_bandwidth / chip.devices)
