"""What docs/scaling.md has tables of: machines, sizes, and an update on each by the compiler or by the formulas."""

import dataclasses
from typing import Any

ROWS = 32  # packed rows of 256 on a chip in the weak-scaling tables: 8,192 target slots
CHIPS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
SIZES = {"base": "aiayn_base", "big": "aiayn_big"}
ZERO_1 = {"mesh.fsdp": "16", "mesh.fsdp_mode": "zero1"}
# name: preset, machine, rows on a chip (0: the preset's own batch), overrides
POINTS: dict[str, tuple[str, str, int, dict[str, str]]] = {
    "big, v5e-256, its own batch": ("aiayn_big", "v5e-256", 0, {}),
    "big, v5p-128, its own batch": ("aiayn_big", "v5p-128", 0, {}),
    "big, v5e-256, its own batch, ZeRO-1 over 16": ("aiayn_big", "v5e-256", 0, ZERO_1),
    "big, v5e-256, its own batch, FSDP over 16": ("aiayn_big", "v5e-256", 0, {"mesh.fsdp": "16"}),
    "big, 4 slices of v5e-256, its own batch": ("aiayn_big", "4xv5e-256", 0, {}),
    "base, v5e-8": ("aiayn_base", "v5e-8", ROWS, {}),
    "big, v5e-8": ("aiayn_big", "v5e-8", ROWS, {}),
}


@dataclasses.dataclass(frozen=True)
class Point:
    """One line of a table: seconds of a roofline, and whether the compiler's figures or the formulas' are behind it."""

    chips: int
    slices: int
    rows: int
    line: Any
    by: str

    @property
    def slots(self) -> int:
        """Target tokens of an update over all chips, padding included."""
        return self.chips * self.rows * 256


def point(
    preset: str, family: str, chips: int, rows: int, compiled: dict[str, Any] | None = None, zero_1: bool = False
) -> Point:
    """A data-parallel update with `rows` packed rows on each chip; `compiled`: the compiler's answer for it. `zero_1`:
    the optimizer's state divided over 16 chips.
    """
    from t2t_flax.data.batching.batches import Shape
    from t2t_flax.planning.roofline import roofline
    from t2t_flax.planning.shapes import update_flops

    topology = machine(family, chips)
    config = _config(preset)
    flops = update_flops(config, config.data.vocab_size, Shape(256, rows, 1))
    if compiled:
        facts = compiled["train"]
        return Point(chips, topology.slices, rows, roofline(topology, flops, facts["hbm_bytes"], facts["collectives"]),
                     "compiler")  # fmt: skip
    traffic, sent = _by_formula(preset, rows, topology, zero_1)
    return Point(chips, topology.slices, rows, roofline(topology, flops, traffic, sent), "formula")


def machine(family: str, chips: int):
    """The topology of so many chips, in as few slices as it takes."""
    from t2t_flax.planning.chips import CHIPS
    from t2t_flax.planning.topology import parse

    chip = CHIPS[family]
    slices = -(-chips // min(chip.largest, 4096))
    name = f"{family}-{chips // slices * chip.cores_in_name}"
    return parse(name if slices == 1 else f"{slices}x{name}")


def _config(preset: str, overrides: dict[str, str] | None = None):
    from t2t_flax.config import load_config

    return load_config(preset, {"train.precision": "bfloat16"} | (overrides or {}))


def _by_formula(preset: str, rows: int, topology, zero_1: bool) -> tuple[int, list[dict[str, Any]]]:
    """(HBM bytes, collectives) of a device in a data-parallel update."""
    from t2t_flax.data.batching.batches import Shape
    from t2t_flax.planning import formula
    from t2t_flax.planning.places import Places

    subject = _subject(preset, zero_1)
    places = [()]
    for axis in topology.shape:
        places = [(*place, i) for place in places for i in range(axis)]
    everywhere = Places(
        tuple(s for s in range(topology.slices) for _ in places), tuple(places) * topology.slices, topology
    )
    fsdp = 16 if zero_1 else 1
    shape, sizes = Shape(256, rows * subject.shards, 1), {"data": topology.chips // fsdp, "fsdp": fsdp, "tensor": 1}
    return formula.traffic(subject, shape), everywhere.summary(formula.collectives(subject, shape, sizes))


def _subject(preset: str, zero_1: bool):
    from t2t_flax.planning import compiled
    from t2t_flax.planning.topology import parse

    if (preset, zero_1) not in _SUBJECTS:
        config = _config(preset, ZERO_1 if zero_1 else {})
        devices = parse("cpu:16" if zero_1 else "cpu:1")
        _SUBJECTS[preset, zero_1] = compiled.assemble(config, devices, (config.data.vocab_size,) * 2)
    return _SUBJECTS[preset, zero_1]


_SUBJECTS: dict[tuple[str, bool], Any] = {}
