"""This machine divided among trials that train at the same time."""

import dataclasses
import glob
import os

from t2t_flax.errors import UserError

_MEMORY = 0.9
"""Share of a GPU's memory that its trials take together."""


@dataclasses.dataclass(frozen=True)
class Share:
    """What one trial may use: its cores (all where empty) and environment variables that choose its devices."""

    cores: tuple[int, ...] = ()
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    told: str = "the whole machine"


def shares(jobs: int) -> list[Share]:
    """The machine in `jobs` parts. GPUs and TPU chips are divided; several trials share a GPU where there are fewer.

    Raises UserError where there are not enough cores or chips, or they do not divide evenly.
    """
    if jobs < 1:
        raise UserError(f"--jobs={jobs}: at least one trial trains at a time.")
    if jobs == 1:
        return [Share()]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    if jobs > len(cores):
        raise UserError(f"--jobs={jobs} needs a core for each; there are {len(cores)}.")
    parts = [tuple(cores[i * len(cores) // jobs : (i + 1) * len(cores) // jobs]) for i in range(jobs)]
    devices = _devices(jobs)
    return [
        Share(part, env, f"cores {','.join(map(str, part))}{told}")
        for part, (env, told) in zip(parts, devices, strict=True)
    ]


def _devices(jobs: int) -> list[tuple[dict[str, str], str]]:
    """(environment, in words) for each trial."""
    if os.environ.get("JAX_PLATFORMS", "").split(",")[0] == "cpu":
        return [({}, "")] * jobs
    gpus, chips = gpu_names(), sorted(glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*"))
    if gpus:
        if max(jobs, len(gpus)) % min(jobs, len(gpus)):
            raise UserError(f"--jobs={jobs} does not divide {len(gpus)} GPUs evenly: take a divisor or a multiple.")
        if jobs <= len(gpus):
            each = len(gpus) // jobs
            own = [",".join(gpus[i * each : (i + 1) * each]) for i in range(jobs)]
            return [({"CUDA_VISIBLE_DEVICES": names}, f", GPU {names}") for names in own]
        together = jobs // len(gpus)
        memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{_MEMORY / together:.3f}"}
        names = [gpus[i // together] for i in range(jobs)]
        return [({"CUDA_VISIBLE_DEVICES": n} | memory, f", 1/{together} of GPU {n}") for n in names]
    if chips:
        if jobs != len(chips):
            raise UserError(f"--jobs={jobs}: a TPU host trains 1 trial on all its chips, or {len(chips)}, one on each.")
        bounds = {"TPU_PROCESS_BOUNDS": "1,1,1", "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1"}
        return [(bounds | {"TPU_VISIBLE_CHIPS": str(i)}, f", chip {i}") for i in range(jobs)]
    return [({}, "")] * jobs


def gpu_names() -> list[str]:
    """What CUDA_VISIBLE_DEVICES allows, or the numbers of all GPUs of this machine."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return [name.strip() for name in allowed.split(",") if name.strip() and name.strip() != "-1"]
    return [str(i) for i in range(len(glob.glob("/dev/nvidia[0-9]*")))]
