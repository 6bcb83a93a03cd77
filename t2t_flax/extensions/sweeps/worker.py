"""Worker that claims free trials and trains them until all have ended.

It trains several at a time. Any number of workers, on any hosts, may share a folder.
"""

import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, Protocol

from t2t_flax import errors
from t2t_flax.config.overrides import values_of_user
from t2t_flax.distributed.signals import STOP_SIGNALS
from t2t_flax.extensions.shared.processes import RUNS_FOLDER, child_environment
from t2t_flax.extensions.sweeps import child_process
from t2t_flax.extensions.sweeps.folder import (
    COMPLETE,
    DIVERGED,
    ENDED,
    FAILED,
    PRUNED,
    STOPPED,
    Claim,
    Folder,
)
from t2t_flax.extensions.sweeps.resources import Resources
from t2t_flax.process_setup import ALONE

_CLAIM_INTERVAL = 1.0
"""Seconds between attempts to claim a trial while other workers hold all of them."""
_POLL_INTERVAL = 0.2
"""Seconds between checks of a training process."""
_MOST_STARTS = 5
"""Maximum starts of a trial that end with their worker, without a checkpoint.

The trial may be what kills it.
"""
_SIGNAL_SECONDS = 2.0
"""Seconds until a signal to all processes of a job reaches the worker.

It may reach the training earlier.
"""


class Trials(Protocol):
    """Trials that a worker trains."""

    def names(self) -> list[str]: ...

    def open(self) -> list[str]:
        """Return the trials to be trained, or whose end is not reported yet."""

    def propose(self) -> bool:
        """Add a trial if there should be another one now; return whether it did."""

    def should_prune(self, name: str) -> bool:
        """Return whether to stop a running trial for good."""

    def end(self, name: str) -> None:
        """Take note that a trial has ended."""


class ListedTrials:
    """Trials of a grid, known from the start."""

    def __init__(self, folder: Folder, names: Sequence[str]):
        self._folder, self._names = folder, list(names)

    def names(self) -> list[str]:
        return self._names

    def open(self) -> list[str]:
        return [name for name in self._names if self._folder.state(name) not in ENDED]

    def propose(self) -> bool:
        return False

    def should_prune(self, name: str) -> bool:
        return False

    def end(self, name: str) -> None:
        pass


def start_training(
    folder: Folder, name: str, resources: Resources, cwd: str, descriptor: int
) -> subprocess.Popen:
    """Start the process that trains a trial.

    Args:
        cwd: folder in which the sweep was created, the base of its relative paths.
        descriptor: descriptor of the claim, which lasts as long as the training.
    """
    path = folder.log(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    variables = {RUNS_FOLDER: str(folder.path.resolve()), ALONE: "1"} | resources.environment
    with path.open("ab") as log:
        return subprocess.Popen(
            training_command(folder, name, resources),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=child_environment(**variables),
            cwd=cwd,
            pass_fds=(descriptor,),
            start_new_session=True,
        )


def training_command(folder: Folder, name: str, resources: Resources) -> list[str]:
    """Return the command that trains a trial.

    Its data is in the sweep's folder unless the config names a cache.
    """
    train = [
        "t2t_flax",
        "train",
        f"--config={folder.config(name)}",
        f"--workdir={folder.workdir(name)}",
    ]
    values = {"data.cache": folder.path / "data"} | values_of_user(folder.read_config(name))
    train += [f"--config.{key}={value}" for key, value in values.items()]
    cores = ",".join(map(str, resources.cores)) or "-"
    return [
        sys.executable,
        "-S",
        child_process.__file__,
        str(os.getpid()),
        cores,
        sys.executable,
        "-m",
        *train,
    ]


@dataclasses.dataclass
class Worker:
    """Worker that trains trials.

    Attributes:
        resources: one entry for each trial that trains at the same time.
        retries: new attempts at a trial that fails.
        stop: ends the worker once its running trials have saved.
        cwd: base of relative paths.
        start: starts a training, as `start_training`; the result can `poll` and `terminate`.
    """

    folder: Folder
    trials: Trials
    resources: Sequence[Resources]
    retries: int
    stop: threading.Event
    say: Callable[[str], None]
    cwd: str = "."
    start: Callable[..., Any] = start_training

    def __post_init__(self):
        self._claiming = threading.Lock()
        self._failed: dict[
            str, str
        ] = {}  # last line of a log -> the first trial that ended with it

    def run(self) -> None:
        """Train until every trial has ended or `stop` is set.

        While other workers train the last trials it waits, so that it can take over if one of them
        dies.
        """
        with ThreadPoolExecutor(len(self.resources)) as pool:
            threads = [
                pool.submit(self._train_until_done, resources) for resources in self.resources
            ]
            ended, _ = wait(threads, return_when=FIRST_EXCEPTION)
            if any(thread.exception() for thread in ended):
                self.stop.set()
        for thread in threads:
            thread.result()

    def _train_until_done(self, resources: Resources) -> None:
        waiting = False
        while not self.stop.is_set():
            with self._claiming:
                claimed = self._claim_next()
            if claimed:
                waiting = False
                name, claim = claimed
                try:
                    self._train(name, claim, resources)
                finally:
                    claim.release()
            elif open_trials := self.trials.open():
                if not waiting and resources is self.resources[0]:
                    self.say(f"waiting for running trials: {', '.join(open_trials)}")
                waiting = True
                self.stop.wait(_CLAIM_INTERVAL)
            else:
                return

    def _claim_next(self) -> tuple[str, Claim] | None:
        """Claim the next trial, stopped ones first; return None if no trial is free."""
        while True:
            for name in sorted(
                self.trials.open(), key=lambda name: self.folder.state(name) != STOPPED
            ):
                claim = self.folder.claim(name)
                if claim is None:
                    continue
                if self.folder.state(name) not in ENDED:
                    return name, claim
                # Ended just before the claim, or its worker died before reporting.
                self.trials.end(name)
                claim.release()
            if not self.trials.propose():
                return None

    def _train(self, name: str, claim: Claim, resources: Resources) -> None:
        """Train a claimed trial until it ends or the worker stops."""
        folder = self.folder
        verb = "resumes" if folder.state(name) == STOPPED else "starts"
        self.say(f"{name}: {verb}, {resources.description}, log: {folder.log(name)}")
        failures = 0
        while True:
            if folder.count_start(name) > _MOST_STARTS:
                folder.end(name, FAILED, f"killed with its worker {_MOST_STARTS} times")
                break
            code = self._attempt(name, claim, resources)
            folder.end_start(name)
            if folder.state(name) in ENDED:  # complete or pruned
                break
            if code == errors.STOPPED or -code in STOP_SIGNALS:
                self.stop.wait(_SIGNAL_SECONDS)
            if self.stop.is_set():
                self.say(f"{name}: stopped")
                return
            if code == errors.DIVERGED:
                folder.end(name, DIVERGED, f"exit code {code}")
                break
            failures += code != errors.STOPPED  # stopped by others, with everything saved
            if code == errors.USER_ERROR or failures > self.retries:
                folder.end(name, FAILED, f"exit code {code}")
                break
            self.say(f"{name}: exit code {code}, tried again")
        self.trials.end(name)
        state = folder.state(name)
        if state == FAILED:
            state += f", {folder.reason(name)}{self._log_end(name)}"
        self.say(f"{name}: {state}")

    def _log_end(self, name: str) -> str:
        """Return the end of a failed trial's log, or the trial whose log ended like it before."""
        lines = self.folder.log_tail(name).splitlines()
        if lines and (first := self._failed.setdefault(lines[-1], name)) != name:
            return f", as {first}"
        return "\n    ".join([f". The end of {self.folder.log(name)}:", *lines])

    def _attempt(self, name: str, claim: Claim, resources: Resources) -> int:
        """Train until the process ends; return its exit code."""
        training = self.start(self.folder, name, resources, self.cwd, claim.descriptor)
        stopping = False
        try:
            while (code := training.poll()) is None:
                if not stopping and self.trials.should_prune(name):
                    # First, so that the decision holds even if this worker dies now.
                    self.folder.end(name, PRUNED)
                    stopping = True
                    training.terminate()
                elif not stopping and self.stop.is_set():
                    stopping = True
                    training.terminate()
                time.sleep(_POLL_INTERVAL)
        except BaseException:
            training.terminate()
            raise
        self.trials.should_prune(name)  # report the last evaluations
        return code


def count_states(folder: Folder, names: Sequence[str]) -> dict[str, int]:
    """Return the number of trials in each state."""
    return dict(Counter(map(folder.displayed_state, names)))


def has_result(states: dict[str, int]) -> bool:
    """Return True if every trial has ended with a result.

    Diverged and pruned trials have a result.
    """
    return states.keys() <= {COMPLETE, DIVERGED, PRUNED}
