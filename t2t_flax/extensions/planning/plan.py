"""The plan of a config on a machine as one record of plain values: what the compiler says, and a predicted time.

Runs in a process with `compiler_process.compiler_environment`, which the command `plan` starts.
"""

import functools
import math
from typing import Any

from t2t_flax.config import Config
from t2t_flax.data.batching.batch_sampler import bucket_edges
from t2t_flax.data.batching.batches import Batches, Shape, shape_of
from t2t_flax.data.hooks import training_stream
from t2t_flax.data.token_store import TokenStore
from t2t_flax.extensions.planning.abstract_run import abstract_run, compile_train_step
from t2t_flax.extensions.planning.flops import forward_products, padded_tokens, training_products
from t2t_flax.extensions.planning.roofline import roofline
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
