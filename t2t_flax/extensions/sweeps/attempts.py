"""Attempts at trials: the process that trains, what its end means, and the device-hours that it used."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t2t_flax import errors
from t2t_flax.extensions.shared.processes import RUNS_FOLDER, child_environment
from t2t_flax.extensions.sweeps import child_process
from t2t_flax.extensions.sweeps.folder import COMPLETE, DIVERGED, FAILED, OUT_OF_MEMORY, STOPPED, Folder, Status
from t2t_flax.extensions.sweeps.resources import Resources
from t2t_flax.filesystem import read_if_exists
from t2t_flax.json_file import parse_json
from t2t_flax.process_setup import ALONE

DEVICES = "devices.json"
"""In a workdir; as `training.workdir` names it, which would import JAX here."""
_OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED.*(memory|alloc|hbm)|\bMemoryError\b", re.IGNORECASE)
"""How JAX and Python report it. A process that the kernel kills says nothing: it counts as any other failure."""


def start_training(
    folder: Folder,
    names: list[str],
    resources: Resources,
    cwd: str | None,
    descriptors: Sequence[int] = (),
    process: int = 0,
) -> subprocess.Popen:
    """Starts the process that trains these trials. cwd: where the sweep was created, the base of its relative paths.
    descriptors: of the claims, which last as long as the training. process: its number where the worker is a pod.
    """
    path = folder.log(names[0], process)
    path.parent.mkdir(parents=True, exist_ok=True)
    variables = {RUNS_FOLDER: str(folder.path.resolve()), ALONE: "1"} | resources.environment
    with path.open("ab") as log:
        # Without `on_stop_signal`: several threads wait for one child each, which inherits its trials' locks, and may prune it.
        return subprocess.Popen(
            training_command(folder, names, resources),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=child_environment(**variables),
            cwd=cwd,
            pass_fds=descriptors,
            start_new_session=True,
        )


def training_command(folder: Folder, names: list[str], resources: Resources) -> list[str]:
    """The command that trains these trials, with the tokenized data in the sweep's folder unless the config names a cache."""
    cores, command = ",".join(map(str, resources.cores)) or "-", "train" if len(names) == 1 else "train_together"
    train = ["t2t_flax", command]
    for name in names:
        train += [f"--config={folder.config(name)}", f"--workdir={folder.workdir(name)}"]
    if not folder.read_config(names[0]).data.cache:
        train += [f"--config.data.cache={folder.path / 'data'}"]
    return [sys.executable, "-S", child_process.__file__, str(os.getpid()), cores, sys.executable, "-m", *train]


def begin_attempt(folder: Folder, name: str, names: list[str], resources: Resources) -> None:
    """Stores that an attempt at a trial begins. names: of the trials that share its program."""
    _diverged_marker(folder, name).unlink(missing_ok=True)  # of an earlier attempt
    status = _with_unseen_attempt(folder, name)
    (folder.workdir(name) / DEVICES).unlink(missing_ok=True)
    status = folder.update_status(
        name,
        attempts=status.attempts + 1,
        start_step=folder.newest_step(name),
        unresolved=folder.unresolved_attempts(name) + 1,
        began=time.time(),
        stacked=len(names) * resources.sharing,
    )
    output = f", output in the log of {names[0]}" if name != names[0] else ""
    folder.append_to_log(name, f"== attempt {status.attempts}, {resources.description}{output}")


def end_attempt(folder: Folder, name: str, names: list[str], exit_code: int, *, terminated: bool, retries: int) -> str:
    """Stores how an attempt at a trial has ended; returns COMPLETE, STOPPED, PRUNED or FAILED. terminated: its worker has
    stopped it.
    """
    seconds = _device_seconds(folder, name, time.time())
    status = folder.update_status(name, began=0.0, device_seconds=seconds)
    if folder.state(name) == COMPLETE:
        folder.update_status(name, unresolved=0)
        return COMPLETE
    # Killed by SIGTERM before it installed a handler: it had only just started and has nothing to save.
    stopped = exit_code == errors.STOPPED or terminated and exit_code == -signal.SIGTERM
    if marker := read_if_exists(_diverged_marker(folder, name)):
        _mark_failed(folder, name, parse_json(marker)["reason"], exit_code=errors.DIVERGED, cause=DIVERGED)
    elif stopped:
        if terminated:
            folder.update_status(name, unresolved=0, failures=0)
        return status.outcome or STOPPED
    elif len(names) > 1:  # another trial of the stack may be the cause
        folder.update_status(name, unresolved=0, failed_in_stack=True)
    elif exit_code == errors.USER_ERROR:
        _mark_failed(folder, name, "user error", exit_code=exit_code)
    else:  # exit code 0 without complete.json too
        status = folder.update_status(name, unresolved=0, failures=status.failures + 1, exit_code=exit_code)
        if status.failures > retries:
            cause = OUT_OF_MEMORY if _OUT_OF_MEMORY.search(folder.last_attempt(name)) else ""
            last = f"with exit code {exit_code}{cause and f': {cause}'}"
            _mark_failed(folder, name, f"{status.failures} attempts failed, the last {last}", cause=cause)
    if name != names[0]:
        folder.append_to_log(name, folder.log_tail(names[0]))
    return status.outcome or FAILED  # a pruned trial stays pruned, however its training ended


def give_up(folder: Folder, name: str, reason: str) -> None:
    """Marks a trial as failed whose last attempt no worker saw end."""
    _with_unseen_attempt(folder, name)
    _mark_failed(folder, name, reason)


def _mark_failed(folder: Folder, name: str, reason: str, **changes: Any) -> None:
    if not folder.status(name).outcome:
        folder.update_status(name, outcome=FAILED, reason=reason, unresolved=0, **changes)
        folder.append_to_log(name, f"== failed: {reason}")


def _diverged_marker(folder: Folder, name: str) -> Path:
    return folder.workdir(name) / "diverged.json"


def device_hours(folder: Folder, name: str) -> Counter[str]:
    """Hours of all attempts of a trial by the kind of devices. A running attempt counts until now, one whose end no worker
    saw until its last output.
    """
    end = time.time() if folder.holder(name) else _last_output(folder, name)
    seconds = _device_seconds(folder, name, end)
    return Counter({kind: value / 3600 for kind, value in seconds.items()})


def _with_unseen_attempt(folder: Folder, name: str) -> Status:
    """Stores the device-hours of an attempt, if there is one, whose end no worker saw. Call it before anything is written
    to the trial's log, whose last change counts as the end.
    """
    seconds = _device_seconds(folder, name, _last_output(folder, name))
    return folder.update_status(name, began=0.0, device_seconds=seconds)


def _device_seconds(folder: Folder, name: str, end: float) -> dict[str, float]:
    """Device-seconds by kind of device: of earlier attempts, and of one that is not counted yet and ends at `end`."""
    status = folder.status(name)
    if not status.began:
        return dict(status.device_seconds)
    if (devices := _devices(folder, name)) is None:
        return dict(status.device_seconds)
    kind, count = devices
    seconds = max(0.0, end - status.began) * count / status.stacked
    return dict(status.device_seconds) | {kind: round(status.device_seconds.get(kind, 0.0) + seconds, 1)}


def _devices(folder: Folder, name: str) -> tuple[str, int] | None:
    """Kind and number of the devices that trained a trial last; None for an attempt that ended before it had any."""
    try:
        stored = parse_json(read_if_exists(folder.workdir(name) / DEVICES) or "")
        return str(stored["kind"]), int(stored["count"])
    except (ValueError, KeyError, TypeError):
        return None


def _last_output(folder: Folder, name: str) -> float:
    """Unix time of the last write to the trial's log or metrics; 0 if there is none."""
    paths = (folder.log(name), folder.workdir(name) / "metrics.jsonl")
    return max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)
