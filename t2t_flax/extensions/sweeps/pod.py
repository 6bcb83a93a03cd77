"""A worker that is a pod: one process of `sweep` on each host, whose trials train on all of them.

Process 0 is the worker: it alone claims trials, proposes and prunes them, and stores their outcomes. It tells the others
which trials to train, and when the worker ends. On each host a fresh child process trains, so that a crash ends the
training and not the worker; the children of all hosts are the processes of one multi-process run, with a coordinator of
their own.
"""

import contextlib
import json
import math
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.errors import DIVERGED, OK, STOPPED, USER_ERROR, UserError
from t2t_flax.extensions.sweeps.attempts import start_training
from t2t_flax.extensions.sweeps.folder import Folder
from t2t_flax.extensions.sweeps.resources import Resources
from t2t_flax.extensions.sweeps.worker import POLL_INTERVAL
from t2t_flax.process_setup import ALONE

PORTS = 100
"""The coordinators of trainings use ports up to so many above that of the worker's coordinator, or the last ones."""
GRACE = 300.0
"""Seconds after the end of a training on one host in which it must end on the others; then it is killed there."""
REPORT_INTERVAL = 1.0
"""Seconds between two looks at the exit codes of the other hosts."""
_WAIT = 7 * 24 * 3600.0
"""Seconds that a process waits for process 0's next order; heartbeats end the wait for a dead one."""


class Pod:
    """One process of a worker on several hosts. Process 0 calls `start` and `end`, the others `follow`."""

    def __init__(self, group: ProcessGroup, coordinator: str):
        self._group, self._coordinator, self._trainings = group, coordinator, 0

    def start(
        self, folder: Folder, names: list[str], resources: Resources, cwd: str | None, descriptors: Sequence[int]
    ) -> "PodTraining":
        """Starts a training on all hosts; for `Worker.start`."""
        order = {"train": names, "port": free_port(self._coordinator)}
        return self._start(self._order(order), folder, cwd, descriptors)

    def end(self, code: int) -> None:
        """Ends the other processes with this exit code."""
        self._order({"exit": code})

    def follow(self, folder: Folder, cwd: str | None, stop: threading.Event) -> int:
        """Trains what process 0 says until it ends the worker; returns the exit code. stop: ends a training with everything
        saved, on all hosts.
        """
        while "exit" not in (order := self._order()):
            training, terminated = self._start(order, folder, cwd), False
            while training.poll() is None:
                if stop.is_set() and not terminated:
                    training.terminate()
                    terminated = True
                time.sleep(POLL_INTERVAL)
        return order["exit"]

    def _order(self, order: Mapping | None = None) -> dict:
        """Process 0's next order, in all processes."""
        return json.loads(self._group.broadcast("the next trial", json.dumps(order), _WAIT))

    def _start(self, order: Mapping, folder: Folder, cwd: str | None, descriptors: Sequence[int] = ()) -> "PodTraining":
        index = self._group.index
        environment = {ALONE: "", "T2T_NUM_PROCESSES": str(self._group.count), "T2T_PROCESS_ID": str(index)}
        environment["JAX_COORDINATOR_ADDRESS"] = _with_port(self._coordinator, order["port"])
        if bind := os.environ.get("JAX_COORDINATOR_BIND_ADDRESS"):
            environment["JAX_COORDINATOR_BIND_ADDRESS"] = _with_port(bind, order["port"])
        own = Resources(environment=environment)
        self._trainings += 1
        process = start_training(folder, order["train"], own, cwd, descriptors, index)
        return PodTraining(self._group, self._trainings, process)


def _with_port(address: str, port: int) -> str:
    return f"{address.rpartition(':')[0]}:{port}"


class PodTraining:
    """Training `number` of a worker: its child process on this host, and the exit codes of those on the others."""

    def __init__(self, group: ProcessGroup, number: int, process: subprocess.Popen):
        self._group, self._key, self._process = group, f"training/{number}", process
        self._reported = self._terminated = False
        self._asked_at, self._first_end = 0.0, math.inf

    def poll(self) -> int | None:
        """Returns the exit code of all (`pod_exit_code`), or None while the training runs on any host. Raises
        ProcessGroupError.
        """
        own, now = self._process.poll(), time.monotonic()
        if own is not None and not self._reported:
            self._group.put(f"{self._key}/{self._group.index}", f"{own} {'terminated' * self._terminated}")
            self._reported = True
        if now - self._asked_at < REPORT_INTERVAL:
            return None
        self._asked_at = now
        ends = [text.split() for text in self._group.entries(self._key).values()]
        codes = [int(end[0]) for end in ends]
        if len(codes) == self._group.count:
            # The signal to another host is about to be known here too: then the trial counts as stopped on purpose.
            stopping = self._group.is_lead and not self._terminated and any("terminated" in end for end in ends)
            return None if stopping else pod_exit_code(codes)
        if codes:
            self._first_end = min(self._first_end, now)
        if own is None and now - self._first_end > GRACE:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        return None

    def terminate(self) -> None:
        """Stops the training on all hosts: that on this one tells the others."""
        self._terminated = True
        self._process.terminate()


def pod_exit_code(codes: list[int]) -> int:
    """The exit code of a training whose processes ended with these: the cause, not its effect on the other hosts."""
    # A SIGTERM that came before the handler: the others stop too, but cannot know that nothing was lost.
    for cause in (USER_ERROR, DIVERGED, -signal.SIGTERM):
        if cause in codes:
            return cause
    return next((code for code in codes if code not in (OK, STOPPED)), max(codes))


def free_port(address: str) -> int:
    """A free port of this host near that of `address`, for firewalls that open a range."""
    first = min(int(address.rpartition(":")[2]) + 1, 2**16 - PORTS)
    for port in random.sample(range(first, first + PORTS), PORTS):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise UserError(f"the ports {first} to {first + PORTS - 1} of {socket.gethostname()} are all in use.")
