"""Coordination of a run's processes: discovery, short messages and barriers.

A process learns from its environment whether it is one of several:

T2T_NUM_PROCESSES=4 T2T_PROCESS_ID=0 JAX_COORDINATOR_ADDRESS=host:1234
    set by launch/local_pod.sh or by hand
SLURM (srun with several tasks), TPU VMs, GKE, several slices
    detected by JAX
T2T_ALONE=1
    a trial of a sweep: never one of several

The processes use the coordination service of `jax.distributed`. A process that is alone has the
same interface on a dictionary.
"""

import importlib.util
import itertools
import os
import socket
import sys
import threading
import time
import uuid
from typing import Any, NoReturn

from t2t_flax.config import Distributed
from t2t_flax.errors import FAILURE, UserError, first_line
from t2t_flax.process_setup import A_WEEK, ALONE


class ProcessGroupError(Exception):
    """Missing answer of the coordinator or another process.

    A host may be slow, and a restart helps.
    """


class ProcessGroup:
    """Process `index` of `count`.

    Process 0, the lead, prints and writes files for all.

    Args:
        client: client of the coordination service; None for a process that is alone.
    """

    TIMEOUT = 900.0
    """Seconds to wait where all processes need about as long, as for reading a checkpoint."""

    def __init__(self, index: int = 0, count: int = 1, client: Any = None):
        self.index, self.count = index, count
        self._client = client
        self._own: dict[str, str] = {}
        self._barriers, self._gathers = itertools.count(), itertools.count()
        self.put(f"host/{index}", socket.gethostname())

    @property
    def is_lead(self) -> bool:
        return self.index == 0

    def say(self, text: str = "") -> None:
        """Print a line on process 0 alone."""
        if self.is_lead:
            print(text, flush=True)

    def put(self, key: str, value: str) -> None:
        """Publish `value` under `key`, replacing an older one. Raises ProcessGroupError."""
        if self._client is None:
            self._own[key] = value
        else:
            self._call(self._client.key_value_set, f"t2t_flax/{key}", value, allow_overwrite=True)

    def get(self, key: str, seconds: float) -> str:
        """Wait for the value of `key`. Raises ProcessGroupError after `seconds`."""
        if self._client is not None:
            return self._call(
                self._client.blocking_key_value_get, f"t2t_flax/{key}", int(seconds * 1000)
            )
        if key not in self._own:
            raise ProcessGroupError(f"no value of {key}")
        return self._own[key]

    def entries(self, folder: str) -> dict[str, str]:
        """Return the values whose keys begin with `folder/`, by the rest of the key.

        Raises ProcessGroupError.
        """
        if self._client is None:
            items = self._own.items()
        else:
            items = self._call(self._client.key_value_dir_get, f"t2t_flax/{folder}/")
        return {key.split(f"{folder}/", 1)[1]: value for key, value in items if f"{folder}/" in key}

    def barrier(self, name: str, seconds: float = 24 * 3600.0) -> None:
        """Wait until all processes are here.

        All processes go through the same barriers. Raises ProcessGroupError.
        """
        if self._client is not None:
            number = next(self._barriers)
            self._call(
                self._client.wait_at_barrier, f"t2t_flax/{name}/{number}", int(seconds * 1000)
            )

    def all_gather(self, name: str, value: str = "", seconds: float = TIMEOUT) -> list[str]:
        """Return each process's `value`, in all processes.

        All processes make the same calls. Raises ProcessGroupError after `seconds`, with `name` and
        the processes that have not come.
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
                raise ProcessGroupError(
                    f"{', '.join(absent)} did not come to {name}: {error}"
                ) from error
            raise
        values = self.entries(f"gather/{number}")
        return [values[str(i)] for i in range(self.count)]

    def broadcast(self, name: str, value: str = "", seconds: float = TIMEOUT) -> str:
        """Return process 0's `value` in all processes; see `all_gather`."""
        return self.all_gather(name, value if self.is_lead else "", seconds)[0]

    def name_of(self, index: int) -> str:
        """Return a name for messages: `process 2 on HOST`."""
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


def initialize(config: Distributed) -> ProcessGroup:
    """Join the processes of this run, so that JAX sees the devices of all of them.

    Call it before anything touches a device. Ends the process if the others do not come within
    `initialization_timeout`. If process 0 dies later, JAX itself aborts the others.

    Raises:
        UserError: environment variables do not fit.
        ProcessGroupError: this process cannot join the others.
    """
    place, address = _place()
    if not place:
        return ProcessGroup()
    import jax

    jax.config.update("jax_enable_preemption_service", False)  # `RunSupervisor` handles the signals
    seconds = config.initialization_timeout
    place += f", coordinator at {address['coordinator_address']}" if address else ""
    print(f"{place}: waiting at most {seconds} s for the others", flush=True)
    late = (
        f"t2t_flax: {place}: the processes of this run did not all start within"
        f" config.distributed.initialization_timeout = {seconds} s. Start the same command on every"
        " host, with the address and a free port of process 0."
    )
    # JAX's own timeout aborts the process with a stack trace, so ours comes first.
    timer = threading.Timer(seconds, end, (FAILURE, late))
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            **address,
            initialization_timeout=seconds + 60,
            # The watcher finds dead processes. JAX would also abort processes suspended together.
            heartbeat_timeout_seconds=A_WEEK,
            shutdown_timeout_seconds=15,
        )
    except Exception as error:
        raise ProcessGroupError(
            f"{place}: this process could not join the others ({first_line(error)})."
        ) from error
    finally:
        timer.cancel()
    from jax._src.distributed import global_state  # its client has no public name

    return ProcessGroup(jax.process_index(), jax.process_count(), global_state.client)


def place_among_several() -> str:
    """Describe this process among several, for messages; "" if it is alone.

    Raises UserError as `initialize` does.
    """
    place, _ = _place()
    return "" if place == _TPU_VM else place


def require_single_process(command: str) -> None:
    """Raise UserError if `command` runs in one of several processes."""
    if place := place_among_several():
        raise UserError(
            f"{command} runs in a single process, and this is {place}: start it on one host,"
            " without the variables of a run of several processes."
        )


_TPU_VM = "a TPU VM"  # with one host or several: only JAX knows, from the metadata server


def _place() -> tuple[str, dict[str, Any]]:
    """Return this process's place among several, and how it joins them.

    The place is "" for a process that is alone. The second value has the arguments of
    `jax.distributed.initialize`; it is empty if JAX finds the others itself. Raises UserError for
    environment variables that do not fit.
    """
    e = os.environ
    if e.get(ALONE):
        return "", {}
    if e.get("T2T_NUM_PROCESSES") or e.get("T2T_PROCESS_ID"):
        return _place_by_hand()
    if int(e.get("SLURM_NTASKS") or 1) > 1 and "SLURM_STEP_NODELIST" in e:
        return f"SLURM task {e.get('SLURM_PROCID')} of {e['SLURM_NTASKS']}", {}
    if e.get("MEGASCALE_COORDINATOR_ADDRESS"):
        return f"slice {e.get('MEGASCALE_SLICE_ID')} of {e.get('MEGASCALE_NUM_SLICES')}", {}
    hosts = (e.get("TPU_WORKER_HOSTNAMES") or e.get("TPU_PROCESS_ADDRESSES") or "").split(",")
    if len(hosts) > 1:
        return f"TPU worker {e.get('TPU_WORKER_ID')} of {len(hosts)}", {}
    has_tpu = (
        os.path.exists("/dev/accel0")
        or os.path.exists("/dev/vfio/0")
        and importlib.util.find_spec("libtpu")
    )
    return _TPU_VM if has_tpu and e.get("JAX_PLATFORMS", "tpu").startswith("tpu") else "", {}


def _place_by_hand() -> tuple[str, dict[str, Any]]:
    names = ("T2T_NUM_PROCESSES", "T2T_PROCESS_ID", "JAX_COORDINATOR_ADDRESS")
    count, index, address = values = [os.environ.get(name, "") for name in names]
    host, _, port = address.rpartition(":")
    if not (
        host
        and count.isdecimal()
        and index.isdecimal()
        and port.isdecimal()
        and int(index) < int(count)
    ):
        given = ", ".join(f"{name} = {value!r}" for name, value in zip(names, values, strict=True))
        raise UserError(
            f"{given}: a process of several needs the number of processes N, its own number from 0"
            " to N - 1, and HOST:PORT of process 0."
        )
    if int(count) == 1:
        return "", {}
    address_of_all = dict(
        num_processes=int(count), process_id=int(index), coordinator_address=address
    )
    return f"process {index} of {count}", address_of_all


def broken_connection(error: BaseException) -> bool:
    """Return whether `error` came because another process is gone."""
    return isinstance(error, ProcessGroupError) or any(
        word in str(error)
        for word in (
            "Gloo",
            "gloo",
            "NCCL",
            "oordination service",
            "CoordinationService",
            "BarrierError",
        )
    )


def check_shared(group: ProcessGroup, folder, flag: str) -> None:
    """Raise UserError if some processes do not see a file of process 0 in `folder`.

    All processes raise it.

    Args:
        flag: command-line flag that names the folder.
    """
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
            f"{flag} {folder} is not shared: {', '.join(blind)} cannot see what {group.name_of(0)}"
            " writes there. Several hosts need a folder that all of them see, such as a network"
            " mount."
        )


def appears(path, exists: bool = True) -> bool:
    """Wait at most ten seconds until `path` exists, or is gone.

    Network file systems may be late.
    """
    for _ in range(20):
        if path.exists() == exists:
            return True
        time.sleep(0.5)
    return False


def end(code: int, message: str = "") -> NoReturn:
    """End the process without the barrier at exit.

    The barrier would wait for processes that are gone.
    """
    try:
        if message:
            print(message, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # also if nobody reads the output
        os._exit(code)
