"""The plan of a config on a machine: what the compiler and the formulas say, as one record of plain values."""

import dataclasses
import functools
from typing import Any

from t2t_flax.config import Config
from t2t_flax.config.sharding_rules import DEFAULT_RULES
from t2t_flax.data.batching.batches import Shape
from t2t_flax.errors import UserError
from t2t_flax.monitoring.flops import Tokens, forward_flops
from t2t_flax.planning.ask import ask
from t2t_flax.planning.chips import GIB
from t2t_flax.planning.roofline import Roofline, roofline
from t2t_flax.planning.shapes import FILL, real_tokens, update_flops
from t2t_flax.planning.topology import Topology

RESERVED = 0.25 * GIB  # of HBM by the runtime: the compiler offers 15.75 of the 16 GiB of a v5e
_FIT_ROWS = ((8, 16), (4, 8), (1, 2))


def make_plan(
    config: Config, topology: Topology, *, store: str = "", rows: int = 0, decode: bool = True
) -> dict[str, Any]:
    """Compiles (for GPUs: does not) and predicts. `rows`: packed rows on each device at once, in place of the config's
    batch. Raises UserError where the mesh does not fit the machine or the model.
    """
    if topology.platform == "gpu" and config.mesh.rules != DEFAULT_RULES:
        raise UserError(
            f"--topology={topology.name}: the formulas know the default config.mesh.rules alone; leave it out."
        )
    vocab = (config.data.vocab_size,) * 2
    parts = ("train", "decode") if decode else ("train",)
    return complete(config, topology, ask(config, topology, vocab, parts, store=store, rows=rows), rows=rows)


def complete(config: Config, topology: Topology, told: dict[str, Any], *, rows: int = 0) -> dict[str, Any]:
    """The worker's answer with the predictions that follow from it."""
    vocab, shape = config.data.vocab_size, Shape(*told["shape"])
    compiled = told.get("train")
    by_compiler = bool(compiled and compiled["fits"])
    facts = compiled if by_compiler else told["formula"]
    flops = update_flops(config, vocab, shape) / told["devices"]
    slots = shape.length * shape.rows * shape.micro
    tokens = slots * FILL if rows else real_tokens(config, shape)
    line = roofline(topology, flops, facts["hbm_bytes"], facts["collectives"])
    plan = {
        "topology": topology.name,
        "machine": topology.describe(),
        "chips": topology.chips,
        "devices": told["devices"],
        "mesh": told["mesh"],
        "shape": {"length": shape.length, "rows": shape.rows, "micro": shape.micro},
        "slots": slots,
        "tokens": tokens,
        "by": "compiler" if by_compiler else "formula",
        "hbm_per_device": hbm_of(topology),
        "state_bytes": told["state_bytes"],
        "flops_per_device": flops,
        "train": facts,
        "formula": told["formula"],
        "prediction": _prediction(config, topology, line, tokens),
    }
    if compiled and not compiled["fits"]:
        plan["refused"] = compiled
    if "decode" in told:
        plan["decode"] = _decode(config, topology, vocab, told)
    return plan


def hbm_of(topology: Topology) -> float | None:
    """Bytes of HBM that a program may use on a device; None where there is no data sheet."""
    chip = topology.chip
    return chip.hbm_bytes / chip.devices - RESERVED if chip else None


def _prediction(config: Config, topology: Topology, line: Roofline | None, tokens: float) -> dict[str, Any] | None:
    if line is None:
        return None
    hours = line.seconds * config.train.steps / 3600
    return dataclasses.asdict(line) | {
        "seconds": line.seconds,
        "binds": line.binds,
        "tokens_per_second": tokens / line.seconds,
        "hours": hours,
        "chip_hours": hours * topology.chips,
    }


def _decode(config: Config, topology: Topology, vocab: int, told: dict[str, Any]) -> dict[str, Any]:
    """One target token of every sentence: all beams attend to the whole cache, as the compiled loop does."""
    facts = told["decode"]
    if not facts["fits"]:
        return facts
    sentences = config.decode.batch_size * told["shards"]
    beams = float(sentences * config.decode.beam_size)
    one = Tokens(0.0, beams, 0.0, beams * facts["cache_length"], beams * facts["source_length"])
    flops = forward_flops(config.model, vocab, one) / told["devices"]
    line = roofline(topology, flops, facts["hbm_bytes"], facts["collectives"])
    found = facts | {"sentences": sentences, "flops_per_device": flops, "prediction": None}
    if line:
        found["prediction"] = dataclasses.asdict(line) | {
            "seconds": line.seconds,
            "binds": line.binds,
            "tokens_per_second": sentences / line.seconds,
        }
    return found


def largest_batch(config: Config, topology: Topology) -> dict[str, Any]:
    """Packed rows that fit on a device at once: two compilations, a line through their peaks, one more to confirm.

    `confirmed`: the compiler accepts `rows`. Nothing where the machine is not compiled for or has no data sheet.
    """
    room = hbm_of(topology)
    if topology.platform != "tpu" or room is None:
        return {"rows": None, "why": "no compiler to ask" if topology.platform == "gpu" else "no memory to fit into"}
    asked = functools.cache(functools.partial(_peak, config, topology))
    told = next((told for told in ({n: asked(n) for n in sizes} for sizes in _FIT_ROWS) if _all_fit(told)), None)
    if told is None:
        few = _FIT_ROWS[-1][0]
        why = f"{few + 1} rows on a device already do not fit" if asked(few)["fits"] else f"{few} row does not fit"
        return {"rows": None, "why": f"{why}: use mesh.fsdp or mesh.tensor"}
    (low, first), (high, second) = ((rows, facts["memory"]["peak"]) for rows, facts in told.items())
    per_row = (second - first) / (high - low)
    rows = int((room - first) // per_row) + low
    last = _peak(config, topology, rows)
    return {
        "rows": rows,
        "tokens_of_all_devices": rows * _length(last) * last["shards"],
        "bytes_per_row": per_row,
        "bytes_without_rows": first - low * per_row,
        "measured_rows": [low, high],
        "confirmed": last["fits"],
        "peak": last["memory"]["peak"] if last["fits"] else last["needed_bytes"],
    }


def _all_fit(told: dict[int, dict[str, Any]]) -> bool:
    return all(facts["fits"] for facts in told.values())


def _length(facts: dict[str, Any]) -> int:
    return facts["shape"][0]


def _peak(config: Config, topology: Topology, rows: int) -> dict[str, Any]:
    told = ask(config, topology, (config.data.vocab_size,) * 2, ("train",), rows=rows)
    return told["train"] | {"shape": told["shape"], "shards": told["shards"]}
