"""Benchmark records: the machine they were measured on, and writing them."""

import json
import os
import platform
from pathlib import Path
from typing import Any

from t2t_flax.filesystem import atomic_write


def machine() -> dict[str, str | int]:
    """JAX's name of the device, the CPU with its vector instructions, and the number of cores."""
    import jax  # here, because a benchmark of PyTorch's side runs without it

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    flags = next((line for line in lines if line.startswith("flags")), "")
    vector = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    return {"device": jax.devices()[0].device_kind, "cpu": f"{name}, {vector}", "cores": os.cpu_count() or 1}


def publish(record: dict[str, Any], out: str | None) -> None:
    """Prints a record; also writes it to the file `out`, if given."""
    text = json.dumps(record, indent=2) + "\n"
    if out:
        atomic_write(out, text)
    print(text)
