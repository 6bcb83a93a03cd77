"""The processes of a run, and the short texts and barriers by which they coordinate.

They use the coordination service of `jax.distributed`. A process that is alone has the same interface on a dictionary.
"""

import itertools
import socket
import time
from typing import Any

from t2t_flax.errors import UserError, first_line


class ProcessGroupError(Exception):
    """The coordinator or another process did not answer."""


class ProcessGroup:
    """Process `index` of `count`. Process 0, the lead, prints and writes files for all.

    `client`: of the coordination service; None for a process that is alone. `address`: HOST:PORT of that service.
    """

    MINUTES = 900.0
    """Timeout in seconds of what takes all processes about as long: reading or writing a checkpoint, listing a folder."""

    def __init__(self, index: int = 0, count: int = 1, client: Any = None, address: str = ""):
        self.index, self.count, self.address = index, count, address
        self._client = client
        self._own: dict[str, str] = {}
        self._barriers, self._gathers = itertools.count(), itertools.count()
        self.put(f"host/{index}", socket.gethostname())

    @property
    def is_lead(self) -> bool:
        return self.index == 0

    def say(self, text: str = "") -> None:
        """Prints a line on process 0 alone."""
        if self.is_lead:
            print(text, flush=True)

    def put(self, key: str, value: str) -> None:
        """Publishes `value` under `key`, replacing an older one. Raises ProcessGroupError."""
        if self._client is None:
            self._own[key] = value
        else:
            self._call(self._client.key_value_set, f"t2t_flax/{key}", value, allow_overwrite=True)

    def get(self, key: str, seconds: float) -> str:
        """Waits for the value of `key`. Raises ProcessGroupError after `seconds`."""
        if self._client is not None:
            return self._call(self._client.blocking_key_value_get, f"t2t_flax/{key}", int(seconds * 1000))
        if key not in self._own:
            raise ProcessGroupError(f"no value of {key}")
        return self._own[key]

    def entries(self, folder: str) -> dict[str, str]:
        """All values whose keys begin with `folder/`, by the rest of the key. Raises ProcessGroupError."""
        if self._client is None:
            items = self._own.items()
        else:
            items = self._call(self._client.key_value_dir_get, f"t2t_flax/{folder}/")
        return {key.split(f"{folder}/", 1)[1]: value for key, value in items if f"{folder}/" in key}

    def barrier(self, name: str, seconds: float = 24 * 3600.0) -> None:
        """Waits until all processes are here; all must go through the same barriers. Raises ProcessGroupError."""
        if self._client is not None:
            number = next(self._barriers)
            self._call(self._client.wait_at_barrier, f"t2t_flax/{name}/{number}", int(seconds * 1000))

    def all_gather(self, name: str, value: str = "", seconds: float = MINUTES) -> list[str]:
        """Each process's `value`, in all processes, which must make the same calls. Raises ProcessGroupError, naming those
        that have not come, after `seconds`. `name`: for the error message.
        """
        if self.count == 1:
            return [value]
        number = next(self._gathers)
        self.put(f"gather/{number}/{self.index}", value)
        try:
            self.barrier(name, seconds)
        except ProcessGroupError as error:
            here = self.entries(f"gather/{number}")
            if absent := [self.name_of(i) for i in range(self.count) if str(i) not in here]:
                raise ProcessGroupError(f"{', '.join(absent)} did not come to {name}: {error}") from error
            raise
        values = self.entries(f"gather/{number}")
        return [values[str(i)] for i in range(self.count)]

    def broadcast(self, name: str, value: str = "", seconds: float = MINUTES) -> str:
        """Process 0's `value`, in all processes, see `all_gather`."""
        return self.all_gather(name, value if self.is_lead else "", seconds)[0]

    def name_of(self, index: int) -> str:
        """`process 2 on HOST`."""
        try:
            return f"process {index} on {self.get(f'host/{index}', 2.0)}"
        except ProcessGroupError:
            return f"process {index}"

    @staticmethod
    def _call(method, *arguments, **named) -> Any:
        try:
            return method(*arguments, **named)
        except Exception as error:
            raise ProcessGroupError(first_line(error)) from error


def broken_connection(error: BaseException) -> bool:
    """Whether a collective, a barrier or the coordinator raised `error` because another process is gone."""
    return isinstance(error, ProcessGroupError) or any(
        word in str(error)
        for word in ("Gloo", "gloo", "NCCL", "oordination service", "CoordinationService", "BarrierError")
    )


def check_shared(group: ProcessGroup, folder, flag: str) -> None:
    """Raises UserError, in all processes, naming those that do not see what process 0 writes into `folder`, the value of
    the command line's `flag`.
    """
    import uuid

    if group.count == 1:
        return
    name = f".shared-{uuid.uuid4().hex}"
    if group.is_lead:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    path = folder / group.broadcast("the name in the shared folder", name, 600.0)
    answers = group.all_gather("the shared folder", "" if appears(path) else "not seen")
    if group.is_lead:
        path.unlink(missing_ok=True)
    blind = [group.name_of(i) for i, answer in enumerate(answers) if answer]
    if blind:
        raise UserError(
            f"{flag} {folder} is not shared: {', '.join(blind)} cannot see what {group.name_of(0)} writes there. Several "
            "hosts need a folder that all of them see: a network mount or an object store (gs://...)."
        )


def appears(path, exists: bool = True) -> bool:
    """Whether `path` exists (`exists` False: has gone) within ten seconds: network file systems may show it late."""
    for _ in range(20):
        if path.exists() == exists:
            return True
        time.sleep(0.5)
    return False
