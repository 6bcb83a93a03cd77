"""The plan of a config on a machine as one record of plain values: what the compiler says, and a predicted time (roofline),
which no machine can beat.

Runs in the environment of `command.compiler_environment`.
"""

import dataclasses
import functools
import math
from typing import Any

from t2t_flax.config import Config
from t2t_flax.data.batching.batch_sampler import bucket_edges
from t2t_flax.data.batching.batches import Batches, Shape, shape_of
from t2t_flax.data.hooks import training_stream
from t2t_flax.data.token_store import TokenStore
from t2t_flax.extensions.planning.abstract_run import abstract_run, compile_train_step
from t2t_flax.extensions.planning.chips import HOP_SECONDS
from t2t_flax.extensions.planning.flops import forward_products, padded_tokens, training_products
from t2t_flax.extensions.planning.topology import Topology
from t2t_flax.training.setup import resident_bytes

FILL = 0.97  # of packed rows, as `explain` estimates
_FIT_ROWS = ((8, 16), (4, 8), (1, 2))


def make_plan(config: Config, topology: Topology, *, store: str = "", rows: int = 0) -> dict[str, Any]:
    """Compiles the train step and predicts its time. The batch has the largest shape that training on the token store
    `store` uses, or `rows` packed rows on each device, or else an estimate from the config.

    Raises UserError where the mesh does not fit the machine or the model.
    """
    run = abstract_run(config, topology)
    shape = batch_shape(config, run.shards, store=store, rows=rows)
    slots = shape.length * shape.rows * shape.micro
    train = compile_train_step(run, shape)
    flops = update_flops(config, shape, run.state.params) / run.mesh.size
    tokens = slots * FILL if rows else float(min(config.data.batch_tokens, slots))
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
        "prediction": None,
    }
    line = roofline(topology, flops, 2 * state_bytes, train["collectives"]) if train["fits"] else None
    if line:
        hours = line.seconds * config.train.steps / 3600
        plan["prediction"] = line.as_dict() | {
            "tokens_per_second": tokens / line.seconds,
            "hours": hours,
            "chip_hours": hours * topology.chips,
        }
    return plan


def batch_shape(config: Config, shards: int, *, store: str = "", rows: int = 0) -> Shape:
    """The largest shape of a run over `shards` devices along the batch; see `make_plan`."""
    data = config.data
    if store:
        batches = Batches(
            TokenStore.open(store), data, seed=config.seed.data, shards=shards, make_stream=training_stream(config)
        )
        return max(batches.shapes, key=lambda s: s.length * s.rows * s.micro)
    if data.batching == "packed":
        length, needed = data.pack_length, math.ceil(data.batch_tokens / int(data.pack_length * FILL))
    else:
        edges = [4, *bucket_edges(data.max_length)]
        length, needed = edges[-1], math.ceil(data.batch_tokens / edges[-2])
    return Shape(length, rows * shards, 1) if rows else shape_of(length, needed, data.microbatch_tokens, shards)


def update_flops(config: Config, shape: Shape, params: Any) -> float:
    """FLOPs of one update over every slot of the shape, padding included. params: of the run, arrays or shapes.

    With train.remat = full the forward pass of the layers runs twice.
    """
    tokens, vocab = padded_tokens(shape.micro * shape.rows, shape.length), config.data.vocab_size
    flops = training_products(config, vocab, params).flops(config.model, tokens)
    if config.train.remat == "full":
        flops += forward_products(config.model, 0, params).flops(config.model, tokens)  # of no vocabulary: no logits
    return flops


def largest_batch(config: Config, topology: Topology) -> dict[str, Any]:
    """Packed rows that fit on a device at once: two compilations, a line through their peaks, one more to confirm.

    `confirmed`: the program for `rows` fits. `rows` is None, with the reason in `why`, where it cannot be found.
    """
    if topology.chip is None:
        return {"rows": None, "why": "simulated devices have no memory limit"}
    compile_rows = functools.cache(functools.partial(_compile_rows, config, topology))
    for sizes in _FIT_ROWS:
        facts = {rows: compile_rows(rows) for rows in sizes}
        if all(f["fits"] for f in facts.values()):
            break
    else:
        few = _FIT_ROWS[-1][0]
        why = f"{few + 1} rows on a device do not fit" if facts[few]["fits"] else f"{few} row on a device does not fit"
        return {"rows": None, "why": f"{why}: use mesh.fsdp or mesh.tensor"}
    (low, first), (high, second) = ((rows, f["memory"]["peak"]) for rows, f in facts.items())
    per_row = (second - first) / (high - low)
    rows = int((topology.chip.usable_bytes - first) // per_row) + low
    last = compile_rows(rows)
    return {
        "rows": rows,
        "tokens_of_all_devices": rows * last["length"] * last["shards"],
        "bytes_per_row": per_row,
        "bytes_without_rows": first - low * per_row,
        "measured_rows": [low, high],
        "confirmed": last["fits"],
        "peak": last["memory"]["peak"] if last["fits"] else last["needed_bytes"],
    }


def _compile_rows(config: Config, topology: Topology, rows: int) -> dict[str, Any]:
    run = abstract_run(config, topology)
    shape = batch_shape(config, run.shards, rows=rows)
    return compile_train_step(run, shape) | {"length": shape.length, "shards": run.shards}


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
