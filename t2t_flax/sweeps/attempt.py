"""One attempt at a trial: `train` in a process of its own, which the worker watches."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from t2t_flax import errors
from t2t_flax.sweeps.folder import COMPLETE, FAILED, PRUNED, STOPPED, Claim, Folder
from t2t_flax.sweeps.shares import Share

POLL = 0.2
"""Seconds between looks at a training process."""
TAIL = 25
"""Lines of a failed trial's log that are shown."""


def attempt(
    folder: Folder, name: str, claim: Claim, share: Share, *, retries: int, stopping: Callable[[], bool],
    prune: Callable[[], bool] = lambda: False, code: str = "",
) -> str:  # fmt: skip
    """Trains a claimed trial until it ends; returns `complete`, `stopped`, `failed` or `pruned`, and notes it.

    stopping: whether the worker is to end, upon which the training saves and stops. prune: whether this trial is to.
    A trial that failed more than `retries` times, or by a user's mistake, is given up.
    """
    number = 1 + sum(line["event"] == "begin" for line in folder.attempts(name))
    folder.note(name, event="begin", attempt=number, code=code, share=share.told)
    began = time.monotonic()
    folder.log(name).parent.mkdir(parents=True, exist_ok=True)
    with folder.log(name).open("ab") as log:
        log.write(f"== attempt {number}, {share.told}\n".encode())
        log.flush()
        process = subprocess.Popen(
            command(folder, name, share),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(share),
            pass_fds=[claim.descriptor],
            start_new_session=True,
        )
    pruned = asked = False
    while (exit_code := process.poll()) is None:
        pruned = pruned or (not asked and prune())
        if (pruned or stopping()) and not asked:
            asked = True
            process.send_signal(signal.SIGTERM)
        time.sleep(POLL)
    outcome = {errors.OK: COMPLETE, errors.STOPPED: PRUNED if pruned else STOPPED}.get(exit_code, FAILED)
    if asked and outcome == FAILED and exit_code == -signal.SIGTERM:
        outcome = PRUNED if pruned else STOPPED  # before it could save anything
    seconds = round(time.monotonic() - began, 1)
    folder.note(name, event=outcome, attempt=number, exit=exit_code, seconds=seconds)
    if outcome == FAILED and (exit_code == errors.USER_ERROR or folder.failures(name) > retries):
        folder.note(name, event="given up", attempt=number)
    return outcome


def command(folder: Folder, name: str, share: Share) -> list[str]:
    """The training of a trial, as this worker starts it."""
    cores = ",".join(map(str, share.cores)) or "-"
    train = ["-m", "t2t_flax", "train", f"--config={folder.config(name)}", f"--workdir={folder.workdir(name)}"]
    leash = str(Path(__file__).with_name("leash.py"))
    return [sys.executable, "-S", leash, str(os.getpid()), cores, sys.executable, *train]


def environment(share: Share) -> dict[str, str]:
    """The worker's, with the devices of the share, and this package where its processes find it."""
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join(dict.fromkeys([package, *filter(None, [os.environ.get("PYTHONPATH")])]))
    return dict(os.environ) | share.environment | {"PYTHONPATH": path}


def log_tail(folder: Folder, name: str) -> str:
    """The last lines of a trial's log."""
    path = folder.log(name)
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 20_000))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-TAIL:])
