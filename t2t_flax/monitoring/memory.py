"""What a compiled program takes, weighed against the memory there is."""

import math
from typing import Any

import jax
import psutil

from t2t_flax.errors import UserError


def device_memory() -> int | None:
    """Bytes that one device offers this process: its own limit, or on CPU a share of what is free; None if unknown."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return psutil.virtual_memory().available // jax.local_device_count()
    return (device.memory_stats() or {}).get("bytes_limit")


def program_bytes(compiled: jax.stages.Compiled) -> int | None:
    """Bytes that a compiled program holds on a device while it runs: arguments, results and temporaries."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    aliased = getattr(analysis, "alias_size_in_bytes", 0)
    return analysis.argument_size_in_bytes + analysis.output_size_in_bytes + analysis.temp_size_in_bytes - aliased


def resident_bytes(tree: Any) -> int:
    """Bytes that arrays, given as themselves or as shapes with shardings, take on one device."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def weigh(name: str, needed: int | None, available: int | None, advice: str) -> None:
    """Raises UserError, before a program first runs, where it needs more memory than there is."""
    if needed and available and needed > available:
        raise UserError(
            f"{name} needs {needed / 2**30:.2f} GiB on each device, {available / 2**30:.2f} GiB are there. {advice}"
        )
