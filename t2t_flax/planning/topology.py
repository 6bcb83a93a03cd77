"""Machines by the vendor's name or by shape: `v5e-16`, `v5p:4x4x4`, `2xv5e-256`, `cpu:8`, `gpu:h100x8`.

The number in v3-, v4- and v5p- names counts TensorCores, two to a chip; in v5e- and v6e- names it counts chips. A shape
always counts chips.
"""

import dataclasses
import difflib
import math
import re

from t2t_flax.errors import UserError
from t2t_flax.planning.chips import CHIPS, GPUS, Chip

_ALIASES = {"v5litepod": "v5e", "v5lite": "v5e"}
# The shapes that the vendor gives to sizes. Other sizes of v4 and v5p exist, by shape.
_PLANE = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_PLANE_V3 = ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32")
_SOLID = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16", "16x16x16")
_SHAPES = {"v5e": _PLANE, "v6e": _PLANE, "v3": _PLANE_V3, "v4": _SOLID, "v5p": (*_SOLID, "16x16x24")}


@dataclasses.dataclass(frozen=True)
class Topology:
    """`shape`: chips of a slice along each axis. `platform`: tpu and cpu are compiled for, gpu is not."""

    name: str
    platform: str
    chip: Chip | None
    shape: tuple[int, ...]
    slices: int = 1

    @property
    def chips(self) -> int:
        return math.prod(self.shape) * self.slices

    @property
    def devices(self) -> int:
        """JAX devices: the cores of v3, else the chips."""
        return self.chips * (self.chip.devices if self.chip else 1)

    @property
    def family(self) -> str:
        return next((name for name, chip in CHIPS.items() if chip is self.chip), self.platform)

    def describe(self) -> str:
        """Such as "v5p-128: 64 chips (TPU v5p, 4x4x4), 64 JAX devices"."""
        shape = "x".join(map(str, self.shape))
        if self.platform == "cpu":
            return f"{self.name}: {self.devices} simulated devices of this machine's CPU, no chip"
        across = f"{self.slices} slices of {shape}" if self.slices > 1 else shape
        if self.platform == "gpu":
            across = f"{self.slices} x {shape} GPUs" if self.slices > 1 else f"{shape} GPUs of one host"
        return f"{self.name}: {self.chips} chips ({self.chip.kind}, {across}), {self.devices} JAX devices"


def parse(name: str) -> Topology:
    """The machine of that name. Raises UserError, naming the nearest one, for a name that no machine has."""
    found = re.fullmatch(r"(?:(\d+)x(?=[a-z]))?([a-z]\w*?)(?:-(\d+)|:([\w]+))", name.strip().lower())
    if not found:
        raise _unknown(name)
    slices, family = int(found[1] or 1), _ALIASES.get(found[2], found[2])
    if slices < 1:
        raise UserError(f"--topology={name}: 0 slices are no machine.")
    if family == "cpu" and (found[4] or "").isdigit() and int(found[4]) > 0:
        return Topology(name, "cpu", None, (int(found[4]),), slices)
    gpu = re.fullmatch(r"([a-z]\d+)(?:x(\d+))?", found[4] or "") if family == "gpu" else None
    if gpu and gpu[1] in GPUS:
        return _gpus(name, GPUS[gpu[1]], int(gpu[2] or 1), slices)
    if family not in CHIPS:
        raise _unknown(name)
    shape = _by_shape(name, family, found[4]) if found[4] else _by_size(name, family, int(found[3]))
    return Topology(name, "tpu", CHIPS[family], shape, slices)


def parse_all(names: list[str]) -> list[Topology]:
    """The machines of all names, comma-separated or one each. Raises UserError."""
    return [parse(part) for name in names for part in name.split(",") if part.strip()]


def vendor_names() -> list[str]:
    """Every name with a size that `parse` knows."""
    return [
        f"{family}-{math.prod(map(int, shape.split('x'))) * CHIPS[family].cores_in_name}"
        for family, shapes in _SHAPES.items()
        for shape in shapes
    ]


def _gpus(name: str, chip: Chip, count: int, hosts: int) -> Topology:
    if count > chip.per_host and count % chip.per_host:
        raise UserError(f"--topology={name}: more than {chip.per_host} GPUs come in hosts of {chip.per_host}.")
    if count > chip.per_host:
        count, hosts = chip.per_host, hosts * count // chip.per_host
    if count < 1:
        raise _unknown(name)
    return Topology(name, "gpu", chip, (count,), hosts)


def _by_size(name: str, family: str, size: int) -> tuple[int, ...]:
    chip = CHIPS[family]
    for text in _SHAPES[family]:
        shape = tuple(int(n) for n in text.split("x"))
        if math.prod(shape) * chip.cores_in_name == size:
            return shape
    if size > chip.largest * chip.cores_in_name:
        raise UserError(
            f"--topology={name}: one {family} slice ends at {chip.largest:,} chips. Several slices are written "
            f"2x{family}-{chip.largest * chip.cores_in_name}."
        )
    sizes = [math.prod(map(int, s.split("x"))) * chip.cores_in_name for s in _SHAPES[family]]
    counted = "chips" if chip.cores_in_name == 1 else "TensorCores"
    nearest = min(sizes, key=lambda n: abs(math.log(n / max(size, 1))))
    raise UserError(
        f"--topology={name}: no known {family} slice has {size} {counted}; the nearest is {family}-{nearest}. Sizes: "
        f"{', '.join(map(str, sizes))}; or give a shape, such as {family}:{_SHAPES[family][3]}."
    )


def _by_shape(name: str, family: str, text: str) -> tuple[int, ...]:
    chip = CHIPS[family]
    example = f"{family}:{_SHAPES[family][3]}"
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise UserError(f"--topology={name}: {text!r} is not a shape; write {example}.")
    shape = tuple(int(n) for n in text.split("x"))
    if len(shape) != chip.axes or 0 in shape:
        raise UserError(f"--topology={name}: a {family} slice has {chip.axes} axes, as in {example}.")
    if math.prod(shape) > chip.largest:
        raise UserError(
            f"--topology={name}: {math.prod(shape):,} chips, but one {family} slice ends at {chip.largest:,}. Several "
            f"slices are written 2x{family}:{_SHAPES[family][-1]}."
        )
    if math.prod(shape) > 1 and any(n % 2 for n in shape[:2]):
        raise UserError(f"--topology={name}: hosts hold 2x2 chips, so the first two sizes are even, as in {example}.")
    return shape


def _unknown(name: str) -> UserError:
    known = [*vendor_names(), "cpu:8", *(f"gpu:{gpu}x8" for gpu in GPUS)]
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.3)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UserError(
        f"--topology={name}: no such machine.{hint} Known: {', '.join(CHIPS)} by size (v5e-16) or shape (v5p:4x4x4), "
        "several slices (2xv5e-256), cpu:N, gpu:a100xN, gpu:h100xN, gpu:h200xN."
    )
