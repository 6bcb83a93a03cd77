"""Memory of compiled programs, checked against the available memory."""

import math
from typing import Any

import jax
import psutil

from t2t_flax.errors import UserError


def device_memory() -> int | None:
    """Bytes that this process can use on one device; on CPU each device's share of the free memory. None if unknown."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return psutil.virtual_memory().available // jax.local_device_count()
    return (device.memory_stats() or {}).get("bytes_limit")


def program_memory(compiled: jax.stages.Compiled) -> dict[str, int] | None:
    """Bytes on a device by use: argument, output, alias (results in place of arguments), temp, generated_code; `peak` is what
    they take together. None where the compiler does not say.
    """
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    parts = {
        name: int(getattr(analysis, f"{name}_size_in_bytes", 0))
        for name in ("argument", "output", "alias", "temp", "generated_code")
    }
    return parts | {"peak": sum(parts.values()) - 2 * parts["alias"]}


def program_bytes(compiled: jax.stages.Compiled) -> int | None:
    """Bytes that a compiled program holds on a device while it runs."""
    memory = program_memory(compiled)
    return memory["peak"] if memory else None


def resident_bytes(tree: Any) -> int:
    """Bytes on one device of arrays, or of abstract arrays with shardings."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def check_fits_in_memory(name: str, needed: int | None, available: int | None, advice: str) -> None:
    """Raises UserError where a program needs more memory than is available."""
    if needed and available and needed > available:
        raise UserError(
            f"{name} needs {needed / 2**30:.2f} GiB on each device, of which {available / 2**30:.2f} GiB are available. {advice}"
        )
