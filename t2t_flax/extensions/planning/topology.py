"""Machine names: TPU slices, GPUs (`h100-8`), simulated devices (`cpu:8`).

A TPU slice is named by size (`v5e-16`) or shape (`v5p:4x4x4`). `2xv5e-256` is two slices,
`2xh100-8` or `h100-16` two hosts. The number in v3-, v4-, v5p- and tpu7x- names counts TensorCores,
two to a chip; in v5e-, v6e- and GPU names it counts chips. A shape always counts chips.
"""

import dataclasses
import math
import re

from t2t_flax.errors import UserError
from t2t_flax.extensions.planning.chips import GPUS, TPUS, Chip

_ALIASES = {"v5litepod": "v5e", "v5lite": "v5e"}
# The shapes that the vendor's sizes stand for. Other sizes of v4 and v5p exist, by shape.
_PLANE = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_PLANE_V3 = ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32")
_SOLID = (
    "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16",
    "16x16x16",
)  # fmt: skip
_SHAPES = {
    "v5e": _PLANE,
    "v6e": _PLANE,
    "v3": _PLANE_V3,
    "v4": _SOLID,
    "v5p": (*_SOLID, "16x16x24"),
    "tpu7x": _SOLID,
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A machine.

    Args:
        shape: chips along each axis of a slice, or GPUs of a host.
        slices: number of slices or hosts, joined by the network.
        platform: tpu, gpu or cpu.
    """

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
        """JAX devices: the cores of v3 and TPU7x, else the chips."""
        return self.chips * (self.chip.devices if self.chip else 1)

    @property
    def family(self) -> str:
        """Family such as v5e or h100; cpu for simulated devices."""
        return next((name for name, chip in (TPUS | GPUS).items() if chip is self.chip), "cpu")

    def describe(self) -> str:
        """Return a text such as "v5p-128: 64 chips (TPU v5p, 4x4x4), 64 JAX devices"."""
        if self.platform == "cpu":
            return f"{self.name}: {self.devices} simulated devices of this machine's CPU"
        assert self.chip
        shape = "x".join(map(str, self.shape))
        if self.platform == "gpu":
            hosts = f"{self.slices} hosts" if self.slices > 1 else "1 host"
            return f"{self.name}: {self.chips} GPUs ({self.chip.kind}, {hosts} of {shape})"
        across = f"{self.slices} slices of {shape}" if self.slices > 1 else shape
        return (
            f"{self.name}: {self.chips} chips ({self.chip.kind}, {across}), {self.devices} JAX"
            " devices"
        )


def parse(name: str) -> Topology:
    """Return the machine of that name. Raises UserError for a name without a machine."""
    match = re.fullmatch(
        r"(?:(\d+)x(?=[a-z]))?([a-z]\w*?)(?:-(\d+)|:([\w]+))", name.strip().lower()
    )
    if not match:
        raise _unknown(name)
    slices, family = int(match[1] or 1), _ALIASES.get(match[2], match[2])
    if slices < 1:
        raise _unknown(name)
    if family == "cpu" and (match[4] or "").isdigit() and int(match[4]) > 0:
        return Topology(name, "cpu", None, (int(match[4]),), slices)
    if family in GPUS and match[3]:
        return _gpus(name, GPUS[family], int(match[3]), slices)
    if family not in TPUS:
        raise _unknown(name)
    shape = _by_shape(name, family, match[4]) if match[4] else _by_size(name, family, int(match[3]))
    return Topology(name, "tpu", TPUS[family], shape, slices)


def parse_all(names: list[str]) -> list[Topology]:
    """Return the machines of all names, comma-separated or one each. Raises UserError."""
    return [parse(part) for name in names for part in name.split(",") if part.strip()]


def _sizes(family: str) -> dict[int, tuple[int, ...]]:
    shapes = [tuple(map(int, text.split("x"))) for text in _SHAPES[family]]
    return {math.prod(shape) * TPUS[family].cores_in_name: shape for shape in shapes}


def _gpus(name: str, chip: Chip, count: int, hosts: int) -> Topology:
    if count < 1:
        raise _unknown(name)
    if count > chip.largest:
        if count % chip.largest:
            raise UserError(
                f"--topology={name}: NVLink joins groups of {chip.largest} GPUs; give a multiple."
            )
        count, hosts = chip.largest, hosts * count // chip.largest
    return Topology(name, "gpu", chip, (count,), hosts)


def _by_size(name: str, family: str, size: int) -> tuple[int, ...]:
    sizes = _sizes(family)
    if size not in sizes:
        counted = "chips" if TPUS[family].cores_in_name == 1 else "TensorCores"
        raise UserError(
            f"--topology={name}: {family} slices have {', '.join(map(str, sizes))} {counted}; give"
            f" one of these, several slices (2x{family}-{max(sizes)}), or a shape"
            f" ({family}:{_SHAPES[family][3]})."
        )
    return sizes[size]


def _by_shape(name: str, family: str, text: str) -> tuple[int, ...]:
    chip = TPUS[family]
    shape = tuple(map(int, text.split("x"))) if re.fullmatch(r"\d+(x\d+)*", text) else ()
    chips = math.prod(shape)
    even = chips == 1 or all(n % 2 == 0 for n in shape[:2])  # hosts hold 2x2 chips
    if len(shape) != chip.axes or not 0 < chips <= chip.largest or not even:
        raise UserError(
            f"--topology={name}: {text!r} is no shape of a {family} slice: {chip.axes} axes, the"
            f" first two even, at most {chip.largest:,} chips, as in {family}:{_SHAPES[family][3]}."
        )
    return shape


def _unknown(name: str) -> UserError:
    return UserError(
        f"--topology={name}: no such machine. Known: {', '.join(TPUS)} by size (v5e-16) or shape"
        f" (v5p:4x4x4), {', '.join(GPUS)} by number (h100-8), several slices or hosts (2xv5e-256,"
        " 2xh100-8), cpu:N."
    )
