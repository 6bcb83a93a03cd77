"""Comparison of each device's arrays with a reference.

They must agree bit for bit, or within the error that the precision explains.
"""

import dataclasses
import json
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from t2t_flax.distributed.coordination import ProcessGroup

UNIT = {"bfloat16": 2.0**-8, "tf32": 2.0**-11, "float32": 2.0**-24}
"""Relative distance of neighbouring numbers."""
_SLACK = {"bfloat16": 1.0, "tf32": 2.0, "float32": 64.0}
"""Allowed difference of sums in another order, in units.

float32 sums have up to some thousand terms. Products in bfloat16 are summed in float32.
"""
NORM, LARGEST = 4.0, 8.0
"""Allowed multiples of the explained error.

The first is for a tensor's norm, the second for its largest element.
"""


@dataclasses.dataclass(frozen=True)
class Compared:
    """A tensor on a device.

    Args:
        error: norm of its error relative to the norm of the reference.
        explained: relative error that the precision explains.
        ratio: error relative to the allowed one; above 1 the tensor is wrong.
        wrong: sentence on a fault other than the size of an error.
    """

    stage: str
    tensor: str
    device: jax.Device
    error: float
    explained: float
    ratio: float
    wrong: str = ""


@dataclasses.dataclass(frozen=True)
class Expected:
    """A tensor in float32, and the expected error of each element.

    Args:
        valid: where it is compared.
    """

    value: np.ndarray
    error: np.ndarray
    valid: np.ndarray | None = None


def expected(
    exact: np.ndarray, rounded: np.ndarray, precision: str, *, more: float = 0.0
) -> Expected:
    """Return the expected tensor and error.

    In another precision than bfloat16 the error is as many times smaller as the numbers are denser.

    Args:
        rounded: `exact`, computed in bfloat16.
        more: relative error of work that the reference does not do, such as sums over devices in
            bfloat16.
    """
    scale = _SLACK[precision] * UNIT[precision] / UNIT["bfloat16"]
    real = np.abs(exact) < 1e8  # excludes logits of vocabulary padding
    floor = (
        (_SLACK[precision] * UNIT[precision] + more)
        * np.sqrt(np.mean(np.square(exact), where=real))
        if real.any()
        else 0
    )
    error = scale * np.abs(rounded.astype(np.float32) - exact) + np.float32(floor)
    return Expected(exact, error)


def compare(stage: str, name: str, array: jax.Array, wanted: Expected) -> list[Compared]:
    """Compare each device's part of an array with its part of the reference.

    Only devices of this process count.
    """
    found = []
    all_norm, all_largest = _norm(wanted.error), float(wanted.error.max(initial=0.0))
    for shard in array.addressable_shards:
        here, value = wanted.value[shard.index], np.asarray(shard.data, np.float32)
        difference = value - here
        if wanted.valid is not None:
            valid = wanted.valid[shard.index[: wanted.valid.ndim]]
            difference = np.where(
                valid.reshape(valid.shape + (1,) * (difference.ndim - valid.ndim)), difference, 0
            )
        # A small part may have less error by luck than the whole.
        share = (here.size / max(1, wanted.value.size)) ** 0.5
        norm = NORM * max(_norm(wanted.error[shard.index]), share * all_norm) + 1e-30
        error = _norm(difference)
        largest = float(np.abs(difference).max(initial=0.0))
        ratio = max(error / norm, largest / (LARGEST * all_largest + 1e-30))
        ratio = float(ratio) if np.isfinite(ratio) else np.inf
        size = _norm(np.where(np.abs(here) < 1e8, here, 0)) + 1e-30
        found.append(Compared(stage, name, shard.device, error / size, norm / NORM / size, ratio))
    return found


def _norm(x: np.ndarray) -> float:
    return float(np.linalg.norm(x.reshape(-1).astype(np.float64)))


def compare_number(
    stage: str, name: str, device: jax.Device, value: float, wanted: float, allowed: float
) -> Compared:
    """Compare a scalar."""
    size = abs(wanted) + 1e-30
    ratio = float(abs(value - wanted) / (allowed + 1e-30))
    text = (
        f"{name} is {value:.6g}, on the CPU {wanted:.6g}, and differences up to {allowed:.2g} are"
        " explained"
    )
    return Compared(
        stage,
        name,
        device,
        abs(value - wanted) / size,
        allowed / size,
        ratio if ratio == ratio else np.inf,
        text,
    )


def compare_bits(
    arrays: Mapping[str, jax.Array], wanted: Mapping[str, np.ndarray]
) -> list[Compared]:
    """Compare each device's part of the arrays with the values that were put there.

    Only devices of this process count.
    """
    found = []
    for name, array in arrays.items():
        parts = {shard.device: np.asarray(shard.data) for shard in array.addressable_shards}
        for shard in array.addressable_shards:
            here = np.asarray(wanted[name])[shard.index]
            if not (count := _different(parts[shard.device], here)):
                continue
            other = next(
                (
                    d
                    for d, part in parts.items()
                    if d != shard.device and not _different(part, here)
                ),
                None,
            )
            if other is not None:
                text = _copies(name, shard, other, parts[shard.device], here)
            else:
                text = (
                    f"{_place(shard, name, array)} differs from what was put there at {count:,} of"
                    f" {here.size:,} values"
                )
                swapped = _owner(array, parts[shard.device], np.asarray(wanted[name]))
                text += f": it is the shard of {device_name(swapped)}" if swapped else ""
            found.append(_wrong("parameters", name, shard.device, text))
    return found


def compare_copies(arrays: Mapping[str, jax.Array], group: ProcessGroup) -> list[Compared]:
    """Check that devices with the same part of an array hold the same bits.

    Devices of this process and of others count.
    """
    found, sums = [], {}
    for name, array in arrays.items():
        first: dict[str, Any] = {}
        for shard in array.addressable_shards:
            key, value = str(shard.index), np.asarray(shard.data)
            if key not in first:
                first[key] = shard.device, value
                sums[f"{name} {key}"] = [
                    zlib.crc32(np.ascontiguousarray(value).tobytes()),
                    str(shard.device.id),
                ]
            elif _different(value, first[key][1]):
                found.append(
                    _wrong(
                        "copies",
                        name,
                        shard.device,
                        _copies(name, shard, first[key][0], value, first[key][1]),
                    )
                )
    if group.count > 1:
        found += _between_processes(arrays, sums, group)
    return found


def _between_processes(
    arrays: Mapping[str, jax.Array], sums: dict, group: ProcessGroup
) -> list[Compared]:
    everywhere = [
        json.loads(text) for text in group.all_gather("self-test: copies", json.dumps(sums))
    ]
    found = []
    for part, (checksum, device) in sums.items():
        for index, others in enumerate(everywhere[: group.index]):
            if part in others and others[part][0] != checksum:
                name = part.partition(" ")[0]
                devices: Any = arrays[name].sharding.device_set
                here = next(d for d in devices if str(d.id) == device)
                text = (
                    f"device {device}'s copy of {name} differs from that of device"
                    f" {others[part][1]} of {group.name_of(index)}"
                )
                found.append(_wrong("copies", name, here, text))
                break
    return found


def _wrong(stage: str, name: str, device: jax.Device, text: str) -> Compared:
    return Compared(stage, name, device, np.inf, 0.0, np.inf, text)


def _different(x: np.ndarray, y: np.ndarray) -> int:
    """Return how many elements differ in their bits."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return x.size
    bits = f"u{x.dtype.itemsize}"
    return int((np.ascontiguousarray(x).view(bits) != np.ascontiguousarray(y).view(bits)).sum())


def _copies(name: str, shard: Any, other: jax.Device, value: np.ndarray, right: np.ndarray) -> str:
    differing = f"{_different(value, right):,} of {value.size:,} values"
    return (
        f"{device_name(shard.device)}'s copy of {name} differs from {device_name(other)}'s at"
        f" {differing}"
    )


def _place(shard: Any, name: str, array: jax.Array) -> str:
    if array.is_fully_replicated:
        return f"{device_name(shard.device)}'s copy of {name}"
    spans = ", ".join(
        "{}:{}".format(*index.indices(size)[:2])
        for index, size in zip(shard.index, array.shape, strict=True)
    )
    return f"{device_name(shard.device)}'s shard [{spans}] of {name}"


def _owner(array: jax.Array, value: np.ndarray, whole: np.ndarray) -> jax.Device | None:
    """Return the device whose shard has these values."""
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        if not _different(value, whole[index]):
            return device
    return None


def device_name(device: jax.Device) -> str:
    """Return a name such as "device 3"."""
    return f"device {device.id}"
