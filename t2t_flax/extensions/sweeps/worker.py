"""A worker claims free trials and trains them, several at a time, until all have ended. Any number of workers, on any
hosts, may share a folder. A worker may also be a pod of hosts (`pod`).
"""

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from t2t_flax import errors
from t2t_flax.config import Config, parse_test_sets, parse_train_sources, parse_valid_sets
from t2t_flax.config.schema import fields
from t2t_flax.data.sources import files_of
from t2t_flax.errors import UserError
from t2t_flax.extensions.sweeps import child_process
from t2t_flax.extensions.sweeps.device_hours import begin_attempt, end_attempt, end_unseen_attempt
from t2t_flax.extensions.sweeps.folder import (
    COMPLETE,
    DIVERGED,
    FAILED,
    OUT_OF_MEMORY,
    PRUNED,
    STOPPED,
    Folder,
    code_version,
)
from t2t_flax.extensions.sweeps.logs import append_to_log, last_attempt, log_tail
from t2t_flax.extensions.sweeps.resources import Resources
from t2t_flax.filesystem import is_remote, read_if_exists
from t2t_flax.json_file import parse_json
from t2t_flax.locks import FileLock
from t2t_flax.model_forms import is_name
from t2t_flax.process_setup import ALONE, RUNS_FOLDER, child_environment

MAX_UNRESOLVED = 10
"""A trial whose process dies this often without a new checkpoint (possibly crashing its worker) is marked failed."""
_CLAIM_INTERVAL = 1.0
"""Seconds between attempts to claim a trial while other workers hold all of them."""
POLL_INTERVAL = 0.2
"""Seconds between checks of a training process."""
_OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED.*(memory|alloc|hbm)|\bMemoryError\b", re.IGNORECASE)
"""How JAX and Python report it. A process that the kernel kills says nothing: it counts as any other failure."""


class TrialQueue:
    """The trials of a sweep in the order of training; all of them known from the start, unless a subclass proposes more."""

    def __init__(self, names: Sequence[str]):
        self._names = list(names)

    def names(self) -> list[str]:
        return self._names

    def is_final(self) -> bool:
        """Whether `names` will not grow any more."""
        return True

    def propose(self) -> bool:
        """Adds a trial if there should be another one now; returns whether it did."""
        return False

    def should_prune(self, name: str) -> bool:
        """Whether a running trial should be stopped for good."""
        return False


class Training(Protocol):
    """A running training, on one host or on several."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""

    def terminate(self) -> None:
        """Makes it save and end with STOPPED."""


@dataclasses.dataclass(frozen=True)
class Assignment:
    """Trials to train in one program, with the folder of their sweep and the base of its relative paths."""

    folder: Folder
    names: list[str]
    resources: Resources
    cwd: str | None


def start_training(assignment: Assignment, descriptors: Sequence[int]) -> Training:
    """Trains on this host. descriptors: of the claims, which last as long as the training."""
    return start_process(assignment, {ALONE: "1"}, descriptors=descriptors)


@dataclasses.dataclass
class Worker:
    """resources: one entry per trial that trains at the same time. retries: new attempts at a trial that fails. stop: ends
    the worker once its running trials have saved. stack: trials that may share a program. cwd: base of relative paths.
    start: starts a training, see `start_training`.
    """

    folder: Folder
    queue: TrialQueue
    resources: Sequence[Resources]
    retries: int
    stop: threading.Event
    say: Callable[[str], None]
    stack: int = 1
    cwd: str | None = None
    start: Callable[[Assignment, Sequence[int]], Training] = start_training

    def __post_init__(self):
        self._claiming = threading.Lock()
        self._digest = code_version()["digest"]

    def run(self) -> None:
        """Trains until every trial has ended or `stop` is set. While other workers train the last trials it waits, so that it can
        take over if one of them dies.
        """
        exceptions: list[BaseException] = []

        def target(resources: Resources) -> None:
            try:
                self._train_until_done(resources)
            except BaseException as error:
                exceptions.append(error)
                self.stop.set()

        threads = [threading.Thread(target=target, args=(resources,)) for resources in self.resources]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.5)  # with a timeout, so that signals are handled in between
        if exceptions:
            raise exceptions[0]

    def _train_until_done(self, resources: Resources) -> None:
        waiting = False
        while not self.stop.is_set():
            with self._claiming:
                claims = self._claim_next()
            if claims:
                waiting = False
                try:
                    self._train(claims, resources)
                finally:
                    for claim in claims.values():
                        claim.release()
            elif self.queue.is_final() and not self._open_trials():
                return
            else:
                if not waiting and resources is self.resources[0] and (held := self._held_by_others()):
                    self.say(f"waiting for {len(held)} trials of other workers: {'; '.join(held)}")
                waiting = True
                self.stop.wait(_CLAIM_INTERVAL)

    def _open_trials(self) -> dict[str, str]:
        """The trials that have not ended, with their states."""
        states = {name: self.folder.state(name) for name in self.queue.names()}
        return {name: state for name, state in states.items() if state not in (COMPLETE, FAILED, PRUNED)}

    def _held_by_others(self) -> list[str]:
        this_worker = f"{socket.gethostname()} process {os.getpid()}"
        holders = {name: self.folder.holder(name) for name in self._open_trials()}
        return [f"{name} ({holder})" for name, holder in holders.items() if holder and holder != this_worker]

    def _claim_next(self) -> dict[str, FileLock]:
        """Claims the next trial, and up to `stack` - 1 that can train with it; empty if there is none. Stopped trials go
        first, those that may have crashed a worker last.
        """
        while True:
            claims: dict[str, FileLock] = {}
            trials = self._open_trials()
            for name in sorted(trials, key=lambda n: (self.folder.unresolved_attempts(n) > 0, trials[n] != STOPPED)):
                if claims and not self.folder.can_stack(next(iter(claims)), name):
                    continue
                claim = self.folder.claim(name)
                if claim is None:
                    continue
                if self.folder.unresolved_attempts(name) >= MAX_UNRESOLVED:
                    reason = f"its process died {MAX_UNRESOLVED} times in a row without a new checkpoint"
                    ended = end_unseen_attempt(self.folder, name, self.folder.status(name))
                    self._mark_failed(name, reason, **ended)
                if self.folder.state(name) in (COMPLETE, FAILED, PRUNED):  # possibly just before it was claimed
                    claim.release()
                    continue
                claims[name] = claim
                if len(claims) == self.stack:
                    break
            if claims or not self.queue.propose():
                return claims

    def _train(self, claims: dict[str, FileLock], resources: Resources) -> None:
        names = list(claims)
        for name in names:
            verb = "resumes" if self.folder.state(name) == STOPPED else "starts"
            stacked = f", stacked with {len(names) - 1} others" if len(names) > 1 else ""
            self.say(f"{name}: {verb}, {resources.description}{stacked}")
        outcomes = self.attempt(claims, resources)
        for name, outcome in outcomes.items():
            if outcome != FAILED:
                self.say(f"{name}: {outcome}")
            elif self.folder.state(name) == FAILED:
                log = "\n".join(f"    {line}" for line in log_tail(self.folder, name).splitlines())
                others = "".join(f"\nThe log of another host: {path}" for path in self.folder.logs_of_others(name))
                self.say(f"{name}: failed. The end of {self.folder.log(name)}:\n{log}{others}")
            else:
                self.say(f"{name}: failed, will be retried{' by itself' if len(names) > 1 else ''}")

    def attempt(self, claims: dict[str, FileLock], resources: Resources) -> dict[str, str]:
        """Trains claimed trials in one process until they end; returns COMPLETE, STOPPED, PRUNED or FAILED for each, and
        updates their status. Raises UserError if a config has relative paths and `cwd` does not exist on this host.
        """
        folder, names = self.folder, list(claims)
        assignment = Assignment(folder, names, resources, self.cwd)
        check_paths(assignment)
        for name in names:
            self._begin(name, names[0], len(names), resources)
        training = self.start(assignment, [claim.descriptor for claim in claims.values()])
        terminated = False
        while (exit_code := training.poll()) is None:
            if not terminated:
                if len(names) == 1 and self.queue.should_prune(names[0]):
                    # Stored first: the decision holds even if this worker dies now.
                    folder.set_status(names[0], folder.status(names[0]), outcome=PRUNED)
                    terminated = True
                if terminated or self.stop.is_set():
                    terminated = True
                    training.terminate()
            time.sleep(POLL_INTERVAL)
        terminated = (
            terminated or self.stop.is_set()
        )  # a signal to all processes of a job reaches the training directly
        return {name: self._end(name, names, exit_code, terminated) for name in names}

    def _begin(self, name: str, first: str, stacked: int, resources: Resources) -> None:
        folder, status = self.folder, self.folder.status(name)
        _diverged_marker(folder, name).unlink(missing_ok=True)  # of an earlier attempt
        status = folder.set_status(
            name,
            status,
            attempts=status.attempts + 1,
            start_step=folder.newest_step(name),
            unresolved=folder.unresolved_attempts(name) + 1,
            digests=tuple(dict.fromkeys((*status.digests, self._digest))),
            **begin_attempt(folder, name, status, stacked),
        )
        output = f", output in the log of {first}" if name != first else ""
        append_to_log(folder, name, f"== attempt {status.attempts}, {resources.description}{output}")

    def _end(self, name: str, names: list[str], exit_code: int, terminated: bool) -> str:
        """The outcome of an attempt, stored in the trial's status."""
        folder, status = self.folder, self.folder.status(name)
        status = folder.set_status(name, status, **end_attempt(folder, name, status))
        if folder.state(name) == COMPLETE:
            folder.set_status(name, status, unresolved=0)
            return COMPLETE
        # Killed by SIGTERM before it installed a handler: it had only just started and has nothing to save.
        stopped = exit_code == errors.STOPPED or terminated and exit_code == -signal.SIGTERM
        if marker := read_if_exists(_diverged_marker(folder, name)):
            self._mark_failed(name, parse_json(marker)["reason"], exit_code=errors.DIVERGED, cause=DIVERGED)
        elif stopped:
            if terminated:
                folder.set_status(name, status, unresolved=0, failures=0)
            return status.outcome or STOPPED
        elif len(names) > 1:  # another trial of the stack may be the cause
            folder.set_status(name, status, unresolved=0, failed_in_stack=True)
        elif exit_code == errors.USER_ERROR:
            self._mark_failed(name, "user error", exit_code=exit_code)
        else:  # exit code 0 without complete.json too
            status = folder.set_status(name, status, unresolved=0, failures=status.failures + 1, exit_code=exit_code)
            if status.failures > self.retries:
                last = f"with exit code {exit_code}"
                cause = OUT_OF_MEMORY if _OUT_OF_MEMORY.search(last_attempt(folder, name)) else ""
                reason = f"{status.failures} attempts failed, the last {f'{last}: {cause}' if cause else last}"
                self._mark_failed(name, reason, cause=cause)
        if name != names[0]:
            append_to_log(folder, name, log_tail(folder, names[0]))
        return status.outcome or FAILED  # a pruned trial stays pruned, however its training ended

    def _mark_failed(self, name: str, reason: str, **changes: Any) -> None:
        status = self.folder.status(name)
        if not status.outcome:
            self.folder.set_status(name, status, outcome=FAILED, reason=reason, unresolved=0, **changes)
            append_to_log(self.folder, name, f"== failed: {reason}")


def start_process(
    assignment: Assignment, environment: Mapping[str, str], *, process: int = 0, descriptors: Sequence[int] = ()
) -> subprocess.Popen:
    """The training, or its part on this host. environment: what tells it which of several processes it is. process: its
    number, for the name of its log. descriptors: that it inherits.
    """
    folder, names, cwd, resources = assignment.folder, assignment.names, assignment.cwd, assignment.resources
    path = folder.log(names[0], process)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as log:
        # Without `on_stop_signal`: several threads wait for one child each, which inherits its trials' locks, and may prune it.
        return subprocess.Popen(
            training_command(folder, names, resources),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=child_environment(**{RUNS_FOLDER: str(folder.path.resolve())}, **resources.environment, **environment),
            cwd=cwd if cwd and os.path.isdir(cwd) else None,
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


def check_paths(assignment: Assignment) -> None:
    """Raises UserError if a config has relative paths and their base is missing: they would name other files."""
    folder, cwd = assignment.folder, assignment.cwd
    for name in assignment.names if cwd and not os.path.isdir(cwd) else ():
        if paths := relative_paths(folder.read_config(name)):
            keys = ", ".join(f"config.{key} = {value!r}" for key, value in paths.items())
            raise UserError(
                f"the sweep was created in {cwd}, which does not exist on this host, and {folder.config(name)} has paths "
                f"relative to it: {keys}. Join on a host that has the folder, or create the sweep with absolute paths."
            )


def relative_paths(config: Config) -> dict[str, str]:
    """The config keys that hold relative paths, with their values."""

    def is_relative(path: str) -> bool:
        elsewhere = is_remote(path) or is_name(path) or os.path.isabs(os.path.expanduser(path.strip()))
        return bool(path.strip()) and not elsewhere

    data = config.data
    paths = {name: config.value(name) for name, item in fields().items() if item.metadata["path"]}
    if data.root:  # to which it is relative
        del paths["data.tokenizer_model"]
    relative = {key: path for key, path in paths.items() if is_relative(path)}
    for key in () if data.root else ("train", "valid", "test"):
        value = getattr(data, key)
        parse = {"train": parse_train_sources, "valid": parse_valid_sets, "test": parse_test_sets}[key]
        files = [file for spec in parse(value).values() for file in files_of(spec)]
        if any(map(is_relative, files)):
            relative[f"data.{key}"] = value
    return relative


def count_states(folder: Folder, names: Sequence[str]) -> dict[str, int]:
    """The number of trials in each state."""
    return dict(Counter(map(folder.displayed_state, names)))


def _diverged_marker(folder: Folder, name: str) -> Path:
    return folder.workdir(name) / "diverged.json"
