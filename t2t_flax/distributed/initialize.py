"""Starts the processes of a run together: by our environment variables, or by what a cluster tells JAX.

T2T_NUM_PROCESSES=4 T2T_PROCESS_ID=0 JAX_COORDINATOR_ADDRESS=host:1234     set by launch/local_pod.sh or by hand
SLURM (srun with several tasks), TPU VMs, GKE, several slices              found by JAX
T2T_ALONE=1                                                                a trial of a sweep: one of none of them
"""

import contextlib
import importlib.util
import os
import socket
import sys
import threading
import time
from collections.abc import Callable

from t2t_flax.config import Distributed
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.supervisor import end
from t2t_flax.errors import FAILURE, UserError, first_line
from t2t_flax.process_setup import ALONE

_OURS = ("T2T_NUM_PROCESSES", "T2T_PROCESS_ID", "JAX_COORDINATOR_ADDRESS")


class NotTogether(Exception):
    """The other processes did not come in time. Not a mistake of the user's: a host may be slow, and a restart helps."""


def start(config: Distributed, say: Callable[[str], None] = print) -> ProcessGroup:
    """The group of this process; JAX sees the devices of all afterwards. Where process 0 dies, JAX itself ends the others
    at once, with its own words.

    Must run before anything touches a device. Raises UserError for variables that do not fit, NotTogether where the
    others do not come within `initialization_timeout`.
    """
    own = _from_environment()
    if os.environ.get(ALONE) or own is None and not _cluster():
        return ProcessGroup()
    import jax

    jax.config.update("jax_enable_preemption_service", False)  # `RunSupervisor` handles the signals
    seconds = config.initialization_timeout
    told = {}
    if own:
        count, index, address = own
        told = dict(num_processes=count, process_id=index, coordinator_address=address)
        say(f"process {index} of {count}: coordinator at {address}, waiting at most {seconds} s for the others")
        _await_coordinator(address, index, seconds, say)
    else:
        say(f"several processes ({_cluster()}): waiting at most {seconds} s for the others")
    late = (
        f"the processes of this run did not all start within config.distributed.initialization_timeout = {seconds} s. Start "
        "the same command on every host, with a coordinator address and port that all can reach."
    )
    # JAX's own timeout aborts the process with a stack trace, so it is set behind ours.
    timer = threading.Timer(seconds, _give_up, [late])
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            **told,
            initialization_timeout=seconds + 60,
            # The group's own beats notice earlier, and say who it is; this is what ends a process without them.
            heartbeat_timeout_seconds=config.heartbeat_timeout + 30,
            shutdown_timeout_seconds=15,
        )
    except Exception as error:
        cause = first_line(error, limit=200)
        raise NotTogether(
            f"{late if 'DEADLINE' in cause else 'this process could not join the others.'} ({cause})"
        ) from error
    finally:
        timer.cancel()
    from jax._src.distributed import global_state

    return ProcessGroup(jax.process_index(), jax.process_count(), global_state.client)


def alone(command: str) -> None:
    """Raises UserError where this process is one of several, which `command` cannot use."""
    if os.environ.get(ALONE):
        return
    own = _from_environment()
    told = f"process {own[1]} of {own[0]}" if own else _cluster()
    if told and told != "TPU VM":
        raise UserError(
            f"{command} runs as one process, this is {told}: run it on one host. (train and evaluate use all.)"
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
    """What surrounds this process, where it is one of several; judged by the environment alone."""
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


def _give_up(text: str) -> None:
    print(f"t2t_flax: {text}", file=sys.stderr, flush=True)
    end(FAILURE)


def _await_coordinator(address: str, index: int, seconds: float, say) -> None:
    """JAX's own wait says nothing, and ends in an abort: this one speaks and gives up in words."""
    host, port = address.rpartition(":")[::2]
    began, told = time.monotonic(), time.monotonic()
    while index:
        with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=2.0):
            return
        now = time.monotonic()
        if now - began > seconds:
            raise NotTogether(
                f"no coordinator answers at {address} after {seconds} s (config.distributed.initialization_timeout): is "
                "process 0 running there, and is the port open? JAX_COORDINATOR_ADDRESS names process 0's host."
            )
        if now - told > 10:
            told = now
            say(f"process {index}: still no coordinator at {address} after {now - began:.0f} s")
        time.sleep(0.3)
