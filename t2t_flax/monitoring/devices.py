"""The devices of a run, as its workdir records them: `devices.json`, of the last process that trained there."""

import dataclasses
import json
import os
from pathlib import Path

from etils import epath

from t2t_flax.filesystem import atomic_write, read_if_exists
from t2t_flax.json_file import parse_json

NAME = "devices.json"
CPU = "cpu"
"""Kind of the CPU's devices, which are not chips."""


@dataclasses.dataclass(frozen=True)
class Devices:
    """kind: JAX's name of them. count: chips of all hosts, whatever number of JAX devices each has; on CPU JAX devices."""

    kind: str
    count: int


def record_devices(workdir: epath.Path) -> None:
    """Stores the devices that JAX has in this process and the others of its run."""
    import jax

    devices = jax.devices()
    chips = sum(getattr(device, "core_on_chip", 0) == 0 for device in devices)  # a TPU v3 chip has two cores
    atomic_write(workdir / NAME, json.dumps({"kind": devices[0].device_kind, "count": chips}) + "\n")


def read_devices(workdir: str | os.PathLike) -> Devices | None:
    """The recorded devices; None if there are none, or the file is damaged."""
    try:
        stored = parse_json(read_if_exists(Path(workdir) / NAME) or "")
        return Devices(str(stored["kind"]), int(stored["count"]))
    except (ValueError, KeyError, TypeError):
        return None
