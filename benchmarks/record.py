"""Benchmark records: the machine they were measured on, and writing them."""

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t2t_flax.files import atomic_write
from t2t_flax.model_forms import is_name
from t2t_flax.process_setup import cpu_info


def machine() -> dict[str, str | int]:
    """Return JAX's name of the device, the CPU's name and features, and the number of cores."""
    import jax  # here, because a benchmark of PyTorch's side runs without it

    lines = cpu_info().splitlines()
    said = dict(line.replace("\t", "").split(":", 1) for line in reversed(lines) if ":" in line)
    name = said.get("model name", platform.processor()).strip()
    if "cpu family" in said:  # servers of two generations may have one name
        name += f" (family{said['cpu family']}, model{said['model']})"
    flags = next((line for line in lines if line.startswith("flags")), "")
    vector = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    return {
        "device": jax.devices()[0].device_kind,
        "cpu": f"{name}, {vector}",
        "cores": os.cpu_count() or 1,
    }


_OF_THIS_MACHINE = ("--out=", "--beside=", "--environments=", "--no-install")


def command_of(benchmark: str, argv: Sequence[str]) -> str:
    """Return the given command, without flags that only concern this machine."""
    words: list[str] = []
    for word in argv:  # "--out FILE" as "--out=FILE"
        if (
            words
            and not word.startswith("--")
            and words[-1].startswith("--")
            and "=" not in words[-1]
        ):
            word = f"{words.pop()}={word}"
        words.append(word)
    words = [word for word in words if not word.startswith(_OF_THIS_MACHINE)]
    flag = "--workdir="
    words = [
        flag + shown_workdir(word.removeprefix(flag)) if word.startswith(flag) else word
        for word in words
    ]
    return " ".join([f"python -m benchmarks.{benchmark}", *words])


def shown_workdir(workdir: str) -> str:
    """Return a workdir without the folders of this machine."""
    return workdir if is_name(workdir) else f"runs/{Path(workdir).name}"


def publish(record: dict[str, Any], out: str | None) -> None:
    """Print a record; also write it to the file `out`, if given."""
    text = json.dumps(record, indent=2) + "\n"
    if out:
        atomic_write(out, text)
    print(text)
