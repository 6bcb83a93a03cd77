"""The processes of a run and what they tell each other besides arrays: short texts and barriers.

They go through the coordination service of `jax.distributed`, whose client has no public name: this is the only file
that touches it. One process alone has the same interface on a dictionary.
"""

import itertools
import socket
import time
from typing import Any

from t2t_flax.errors import UserError, first_line


class ProcessGroupError(Exception):
    """Another process did not answer, or is gone."""


class ProcessGroup:
    """`index` of `count` processes, one of which, `lead`, speaks and writes for all."""

    MINUTES = 900.0
    """Seconds for what takes every process about as long: reading or writing a checkpoint, listing a folder."""

    def __init__(self, index: int = 0, count: int = 1, client: Any = None):
        self.index, self.count = index, count
        self._client = client
        self._own: dict[str, str] = {}
        self._barriers, self._questions = itertools.count(), itertools.count()
        self.put(f"host/{index}", socket.gethostname())

    @property
    def is_lead(self) -> bool:
        return self.index == 0

    def say(self, text: str = "") -> None:
        """Prints a line, once for all processes."""
        if self.is_lead:
            print(text, flush=True)

    def put(self, key: str, value: str) -> None:
        """Makes `value` known to all under `key`, in place of what was there. Raises ProcessGroupError."""
        if self._client is None:
            self._own[key] = value
        else:
            self._ask(self._client.key_value_set, f"t2t_flax/{key}", value, allow_overwrite=True)

    def get(self, key: str, seconds: float) -> str:
        """The value of `key`, waiting for it. Raises ProcessGroupError after that time."""
        if self._client is not None:
            return self._ask(self._client.blocking_key_value_get, f"t2t_flax/{key}", int(seconds * 1000))
        if key not in self._own:
            raise ProcessGroupError(f"nobody has said {key}")
        return self._own[key]

    def entries(self, folder: str) -> dict[str, str]:
        """All values under `folder/`, by the rest of their keys. Raises ProcessGroupError."""
        if self._client is None:
            found = self._own.items()
        else:
            found = self._ask(self._client.key_value_dir_get, f"t2t_flax/{folder}/")
        return {key.split(f"{folder}/", 1)[1]: value for key, value in found if f"{folder}/" in key}

    def barrier(self, name: str, seconds: float = 24 * 3600.0) -> None:
        """Returns when all have come here. Every process must go through the same barriers. Raises ProcessGroupError."""
        if self._client is not None:
            number = next(self._barriers)
            self._ask(self._client.wait_at_barrier, f"t2t_flax/{name}/{number}", int(seconds * 1000))

    def all_gather(self, what: str, mine: str = "", seconds: float = MINUTES) -> list[str]:
        """What each process says about `what`, known to all. Every process must ask the same. Raises ProcessGroupError where one
        has not answered after `seconds`.
        """
        if self.count == 1:
            return [mine]
        number = next(self._questions)
        self.put(f"agree/{number}/{self.index}", mine)
        self.barrier(what, seconds)
        told = self.entries(f"agree/{number}")
        return [told[str(i)] for i in range(self.count)]

    def broadcast(self, what: str, mine: str = "", seconds: float = MINUTES) -> str:
        """What process 0 says about `what`, on all processes. Every process must ask the same. Raises ProcessGroupError."""
        return self.all_gather(what, mine if self.is_lead else "", seconds)[0]

    def name_of(self, index: int) -> str:
        """`process 2 on HOST`."""
        try:
            return f"process {index} on {self.get(f'host/{index}', 2.0)}"
        except ProcessGroupError:
            return f"process {index}"

    @staticmethod
    def _ask(call, *arguments, **named) -> Any:
        try:
            return call(*arguments, **named)
        except Exception as error:
            raise ProcessGroupError(first_line(error)) from error


def broken_connection(error: BaseException) -> bool:
    """Whether an exception is what a collective, a barrier or a text raises where another process is gone."""
    return isinstance(error, ProcessGroupError) or any(
        word in str(error)
        for word in ("Gloo", "gloo", "NCCL", "oordination service", "CoordinationService", "BarrierError")
    )


def check_shared(group: ProcessGroup, folder, what: str) -> None:
    """Raises UserError, on all, naming the processes that do not see what process 0 writes into `folder`."""
    import uuid

    if group.count == 1:
        return
    if group.is_lead:
        mark = f".shared-{uuid.uuid4().hex}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / mark).write_text("")
        group.put("shared/mark", mark)
    seen = group.all_gather(
        "the shared folder", "" if appears(folder / group.get("shared/mark", 600.0)) else "not seen"
    )
    blind = [i for i, answer in enumerate(seen) if answer]
    if group.is_lead:
        (folder / mark).unlink(missing_ok=True)
    if blind:
        raise UserError(
            f"{what} {folder} is not shared: what {group.name_of(0)} writes there is not seen by "
            f"{', '.join(map(group.name_of, blind))}. Several hosts need one folder that all see: a network mount or an "
            "object store (gs://...)."
        )


def appears(path, there: bool = True) -> bool:
    """Whether `path` is there (or, `there` False, is gone) within some seconds: network file systems show it late."""
    for _ in range(20):
        if path.exists() == there:
            return True
        time.sleep(0.5)
    return False
