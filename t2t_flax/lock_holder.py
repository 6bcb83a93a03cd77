"""Who holds a lock: as stored in a lock file, and in messages."""

import dataclasses
import datetime
import os
import socket
import uuid
from pathlib import Path

import psutil
from etils import epath

from t2t_flax.errors import UserError
from t2t_flax.filesystem import read_if_exists
from t2t_flax.json_file import parse_json


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who holds a lock: host, process, command, and the time since when (UTC)."""

    host: str
    process: int
    command: str
    since: str
    started: float
    """When the process started, in seconds since the host did: process numbers are reused."""
    processes: str = ""
    """Where `process` is a number: this boot of this machine, and the container."""
    token: str = ""

    def __str__(self) -> str:
        return f"{self.command}, process {self.process} on {self.host}, since {self.since}"

    @property
    def gone(self) -> bool:
        """Whether the process is known to have ended; unknown, so False, for another host or container."""
        if self.processes != _process_space():
            return False
        try:
            return abs(_start_time(self.process) - self.started) > 2.0
        except psutil.Error:
            return True


def this_process(command: str) -> Holder:
    """This process as a holder."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    number, started = os.getpid(), round(_start_time(os.getpid()), 2)
    return Holder(socket.gethostname(), number, command, now, started, _process_space(), uuid.uuid4().hex)


def _start_time(process: int) -> float:
    """Seconds from the start of the machine to that of a process: a clock that is set does not change them."""
    return psutil.Process(process).create_time() - psutil.boot_time()


def _process_space() -> str:
    """Two processes for which this is equal see each other under the same numbers. Names of hosts are not enough: many
    machines are called `localhost`, and containers may share a name.
    """
    try:
        return f"{machine_tag()}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return machine_tag()


def read_holder(path: epath.PathLike) -> Holder | None:
    return parse_holder(read_if_exists(path) or "")


def parse_holder(text: str) -> Holder | None:
    try:
        values = parse_json(text)
        return Holder(**{field.name: values[field.name] for field in dataclasses.fields(Holder)})
    except (ValueError, KeyError, TypeError):
        return None


def in_use(folder: epath.PathLike, holder: Holder | None) -> UserError:
    return UserError(
        f"--workdir={folder} is in use by another process: {holder or 'unknown'}. Only one process at a time may write there: "
        "wait until it has ended, or stop it."
    )


def machine_tag() -> str:
    """Identifies this boot of this machine; containers that share a kernel, and so its locks, share it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]
    except OSError:
        return socket.gethostname()
