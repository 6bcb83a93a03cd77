"""Joins the processes of a run, by our environment variables or by those of a cluster that JAX knows.

T2T_NUM_PROCESSES=4 T2T_PROCESS_ID=0 JAX_COORDINATOR_ADDRESS=host:1234     set by launch/local_pod.sh or by hand
SLURM (srun with several tasks), TPU VMs, GKE, several slices              detected by JAX
T2T_ALONE=1                                                                a trial of a sweep: never one of several
"""

import contextlib
import importlib.util
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from t2t_flax.config import Distributed
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.supervisor import end
from t2t_flax.errors import FAILURE, UserError, first_line
from t2t_flax.process_setup import ALONE

_OURS = ("T2T_NUM_PROCESSES", "T2T_PROCESS_ID", "JAX_COORDINATOR_ADDRESS")


class InitializationError(Exception):
    """The processes did not all start in time. Not a user error: a host may be slow, and a restart helps."""


def initialize(config: Distributed, say: Callable[[str], None] = print, *, use_devices: bool = True) -> ProcessGroup:
    """Joins the processes of this run, after which JAX sees the devices of all of them.

    use_devices: False for processes that only coordinate their children, which need the devices. Must run before anything
    touches a device. Raises UserError for environment variables that do not fit, and InitializationError where the others do
    not come within `initialization_timeout`. Where process 0 dies later, JAX itself aborts the others.
    """
    own = _from_environment()
    if os.environ.get(ALONE) or own is None and not _cluster():
        return ProcessGroup()
    import jax

    jax.config.update("jax_enable_preemption_service", False)  # `RunSupervisor` handles the signals
    seconds = config.initialization_timeout
    address: dict[str, Any] = {}
    if own:
        count, index, coordinator = own
        address = dict(num_processes=count, process_id=index, coordinator_address=coordinator)
        say(f"process {index} of {count}: coordinator at {coordinator}, waiting at most {seconds} s for the others")
        _await_coordinator(coordinator, index, seconds, say)
    else:
        say(f"several processes ({_cluster()}): waiting at most {seconds} s for the others")
    late = (
        f"the processes of this run did not all start within config.distributed.initialization_timeout = {seconds} s. Start "
        "the same command on every host, with a coordinator address and port that all can reach."
    )
    # JAX's own timeout aborts the process with a stack trace, so ours comes first.
    timer = threading.Timer(seconds, _exit, [late])
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            **address,
            initialization_timeout=seconds + 60,
            # `Heartbeats` notices earlier, and names the process; this ends one whose own thread is gone. JAX sends a
            # heartbeat every half of this time, so that a process may seem dead that long earlier.
            heartbeat_timeout_seconds=2 * config.heartbeat_timeout + 30,
            shutdown_timeout_seconds=15,
        )
    except Exception as error:
        cause = first_line(error, limit=200)
        raise InitializationError(
            f"{late if 'DEADLINE' in cause else 'this process could not join the others.'} ({cause})"
        ) from error
    finally:
        timer.cancel()
    state = _distributed_state()
    if not use_devices:
        return ProcessGroup(state.process_id, state.num_processes, state.client, state.coordinator_address)
    return ProcessGroup(jax.process_index(), jax.process_count(), state.client, state.coordinator_address)


def _distributed_state() -> Any:
    """JAX's client and address of the coordination service, which have no public name; only `ProcessGroup` uses them."""
    from jax._src.distributed import global_state

    return global_state


def place_among_several() -> str:
    """Which of several processes this is, for messages; empty for one that is alone."""
    if os.environ.get(ALONE):
        return ""
    own = _from_environment()
    place = f"process {own[1]} of {own[0]}" if own else _cluster()
    return "" if place == "TPU VM" else place


def require_single_process(command: str) -> None:
    """Raises UserError where this process is one of several, which `command` cannot use."""
    place = place_among_several()
    if place:
        raise UserError(
            f"{command} runs as one process, this is {place}: run it on one host. (train, evaluate, translate and sweep use all.)"
        )


def _from_environment() -> tuple[int, int, str] | None:
    given = {name: os.environ.get(name, "") for name in _OURS}
    if not given["T2T_NUM_PROCESSES"] and not given["T2T_PROCESS_ID"]:
        return None
    missing = [name for name, value in given.items() if not value]
    if missing:
        raise UserError(f"{', '.join(missing)} not set: a process of several needs {', '.join(_OURS)}.")
    try:
        count, index = int(given["T2T_NUM_PROCESSES"]), int(given["T2T_PROCESS_ID"])
    except ValueError:
        raise UserError(f"T2T_NUM_PROCESSES and T2T_PROCESS_ID must be whole numbers: got {given}.") from None
    if not 0 <= index < count:
        raise UserError(f"T2T_PROCESS_ID = {index} is not one of 0 .. {count - 1} (T2T_NUM_PROCESSES = {count}).")
    address = given["JAX_COORDINATOR_ADDRESS"]
    if not address.rpartition(":")[2].isdecimal():
        raise UserError(f"JAX_COORDINATOR_ADDRESS = {address!r}: expected HOST:PORT.")
    return (count, index, address) if count > 1 else None


def _cluster() -> str:
    """The cluster in which this process is one of several, by its environment variables; empty where there is none."""
    e = os.environ
    if int(e.get("SLURM_NTASKS", "1")) > 1 and "SLURM_STEP_NODELIST" in e:
        return f"SLURM, task {e.get('SLURM_PROCID')} of {e['SLURM_NTASKS']}"
    if e.get("MEGASCALE_COORDINATOR_ADDRESS"):
        return f"slice {e.get('MEGASCALE_SLICE_ID')} of {e.get('MEGASCALE_NUM_SLICES')}"
    hosts = (e.get("TPU_WORKER_HOSTNAMES") or e.get("TPU_PROCESS_ADDRESSES") or "").split(",")
    if len(hosts) > 1:
        return f"TPU worker {e.get('TPU_WORKER_ID')} of {len(hosts)}"
    if os.path.exists("/dev/accel0") or os.path.exists("/dev/vfio/0") and importlib.util.find_spec("libtpu"):
        return "TPU VM" if e.get("JAX_PLATFORMS", "tpu").startswith("tpu") else ""
    return ""


def _exit(text: str) -> None:
    print(f"t2t_flax: {text}", file=sys.stderr, flush=True)
    end(FAILURE)


def _await_coordinator(address: str, index: int, seconds: float, say: Callable[[str], None]) -> None:
    """Waits for the coordinator with messages. JAX's own wait prints nothing, and ends in an abort."""
    host, port = address.rpartition(":")[::2]
    start = last_report = time.monotonic()
    while index:
        with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=2.0):
            return
        now = time.monotonic()
        if now - start > seconds:
            raise InitializationError(
                f"no coordinator answers at {address} after {seconds} s (config.distributed.initialization_timeout): is "
                "process 0 running there, and is the port open? JAX_COORDINATOR_ADDRESS names process 0's host."
            )
        if now - last_report > 10:
            last_report = now
            say(f"process {index}: still no coordinator at {address} after {now - start:.0f} s")
        time.sleep(0.3)
