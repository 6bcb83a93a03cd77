"""Division of this machine among trials that train at the same time."""

import dataclasses
import glob
import os

from t2t_flax.errors import UserError

_GPU_MEMORY_FRACTION = 0.9
"""Share of a GPU's memory that all of its trials use together."""


@dataclasses.dataclass(frozen=True)
class Resources:
    """Share of this machine for one trial.

    It has CPU cores (empty: all), and the environment that selects its accelerators.
    """

    cores: tuple[int, ...] = ()
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    description: str = "whole machine"


def divide_machine(parts: int) -> list[Resources]:
    """Split cores, GPUs and TPU chips into equal parts.

    With fewer GPUs than parts, several trials share a GPU. Raises UserError if there are too few
    cores or chips, or they do not divide evenly.
    """
    if parts == 1:
        return [Resources()]
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:
        cores = list(range(os.cpu_count() or 1))
    if parts > len(cores):
        raise UserError(
            f"--parallel={parts} needs one core per trial, and this machine has {len(cores)}: use"
            f" {len(cores)} or fewer."
        )
    resources = []
    for i, (environment, devices) in enumerate(_divide_accelerators(parts)):
        own = tuple(cores[i * len(cores) // parts : (i + 1) * len(cores) // parts])
        resources.append(Resources(own, environment, f"cores {','.join(map(str, own))}{devices}"))
    return resources


def _divide_accelerators(parts: int) -> list[tuple[dict[str, str], str]]:
    """Return (environment, description) for each part."""
    if os.environ.get("JAX_PLATFORMS", "").split(",")[0] == "cpu":
        return [({}, "")] * parts
    if gpus := visible_gpus():
        return _divide_gpus(parts, gpus)
    chips = glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")
    if not chips:
        return [({}, "")] * parts
    if parts != len(chips):
        raise UserError(
            f"--parallel={parts}: a TPU host runs 1 trial on all its chips, or {len(chips)} with"
            " one chip each."
        )
    bounds = {"TPU_PROCESS_BOUNDS": "1,1,1", "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1"}
    return [(bounds | {"TPU_VISIBLE_CHIPS": str(i)}, f", chip {i}") for i in range(parts)]


def _divide_gpus(parts: int, gpus: list[str]) -> list[tuple[dict[str, str], str]]:
    if max(parts, len(gpus)) % min(parts, len(gpus)):
        raise UserError(
            f"--parallel={parts} does not divide {len(gpus)} GPUs evenly: use a divisor or a"
            " multiple."
        )
    if parts <= len(gpus):
        count = len(gpus) // parts
        groups = [",".join(gpus[i * count : (i + 1) * count]) for i in range(parts)]
        return [({"CUDA_VISIBLE_DEVICES": group}, f", GPU {group}") for group in groups]
    per_gpu = parts // len(gpus)
    fraction = f"{_GPU_MEMORY_FRACTION / per_gpu:.3f}"
    # JAX refuses both.
    memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": fraction, "XLA_CLIENT_MEM_FRACTION": ""}
    shared = [gpus[i // per_gpu] for i in range(parts)]
    return [
        ({"CUDA_VISIBLE_DEVICES": gpu} | memory, f", 1/{per_gpu} of GPU {gpu}") for gpu in shared
    ]


def visible_gpus() -> list[str]:
    """Return the GPUs in CUDA_VISIBLE_DEVICES.

    If it is not set, the indices of all GPUs of this machine.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [
            name.strip() for name in visible.split(",") if name.strip() and name.strip() != "-1"
        ]
    return [str(i) for i in range(len(glob.glob("/dev/nvidia[0-9]*")))]
