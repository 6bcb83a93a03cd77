"""A worker claims free trials and trains them, several at a time, until all have ended. Any number of workers, on any
hosts, may share a folder. A worker may also be a pod of hosts (`pod`).
"""

import dataclasses
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

from t2t_flax.extensions.sweeps.attempts import begin_attempt, end_attempt, give_up, start_training
from t2t_flax.extensions.sweeps.folder import ENDED, FAILED, PRUNED, STOPPED, Folder
from t2t_flax.extensions.sweeps.resources import Resources
from t2t_flax.locks import FileLock

MAX_UNRESOLVED = 10
"""A trial whose process dies this often without a new checkpoint (possibly crashing its worker) is marked failed."""
_CLAIM_INTERVAL = 1.0
"""Seconds between attempts to claim a trial while other workers hold all of them."""
POLL_INTERVAL = 0.2
"""Seconds between checks of a training process."""


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


@dataclasses.dataclass
class Worker:
    """resources: one entry per trial that trains at the same time. retries: new attempts at a trial that fails. stop: ends
    the worker once its running trials have saved. stack: trials that may share a program. cwd: base of relative paths.
    start: starts a training, see `start_training`; the result can `poll` and `terminate`.
    """

    folder: Folder
    queue: TrialQueue
    resources: Sequence[Resources]
    retries: int
    stop: threading.Event
    say: Callable[[str], None]
    stack: int = 1
    cwd: str | None = None
    start: Callable[..., Any] = start_training

    def __post_init__(self):
        self._claiming = threading.Lock()

    def run(self) -> None:
        """Trains until every trial has ended or `stop` is set. While other workers train the last trials it waits, so that it can
        take over if one of them dies.
        """
        with ThreadPoolExecutor(len(self.resources)) as pool:
            threads = [pool.submit(self._train_until_done, resources) for resources in self.resources]
            ended, _ = wait(threads, return_when=FIRST_EXCEPTION)
            if any(thread.exception() for thread in ended):
                self.stop.set()
        for thread in threads:
            thread.result()

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
                    self.say(f"waiting for trials of other workers: {', '.join(held)}")
                waiting = True
                self.stop.wait(_CLAIM_INTERVAL)

    def _open_trials(self) -> dict[str, str]:
        """The trials that have not ended, with their states."""
        states = {name: self.folder.state(name) for name in self.queue.names()}
        return {name: state for name, state in states.items() if state not in ENDED}

    def _held_by_others(self) -> list[str]:
        this_worker = f"{socket.gethostname()} process {os.getpid()}"
        holders = {name: self.folder.holder(name) for name in self._open_trials()}
        return [f"{name} ({holder})" for name, holder in holders.items() if holder and holder != this_worker]

    def _claim_next(self) -> dict[str, FileLock]:
        """Claims the next trial, and up to `stack` - 1 that can train with it; returns their claims by name, empty if no
        trial is free. Stopped trials go first, those that may have crashed a worker last.
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
                    give_up(
                        self.folder, name, f"its process died {MAX_UNRESOLVED} times in a row without a new checkpoint"
                    )
                if self.folder.state(name) in ENDED:  # possibly just before it was claimed
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
                log = "\n".join(f"    {line}" for line in self.folder.log_tail(name).splitlines())
                others = sorted(self.folder.path.glob(f"logs/{name}.process*.log"))
                of_others = "".join(f"\nThe log of another host: {path}" for path in others)
                self.say(f"{name}: failed. The end of {self.folder.log(name)}:\n{log}{of_others}")
            else:
                self.say(f"{name}: failed, will be retried{' by itself' if len(names) > 1 else ''}")

    def attempt(self, claims: dict[str, FileLock], resources: Resources) -> dict[str, str]:
        """Trains claimed trials in one process until they end; returns COMPLETE, STOPPED, PRUNED or FAILED for each, and
        updates their status.
        """
        folder, names = self.folder, list(claims)
        for name in names:
            begin_attempt(folder, name, names, resources)
        descriptors = [claim.descriptor for claim in claims.values()]
        training = self.start(folder, names, resources, self.cwd, descriptors)
        terminated = False
        while (exit_code := training.poll()) is None:
            if not terminated:
                if len(names) == 1 and self.queue.should_prune(names[0]):
                    # Stored first: the decision holds even if this worker dies now.
                    folder.update_status(names[0], outcome=PRUNED)
                    terminated = True
                if terminated or self.stop.is_set():
                    terminated = True
                    training.terminate()
            time.sleep(POLL_INTERVAL)
        terminated = (
            terminated or self.stop.is_set()
        )  # a signal to all processes of a job reaches the training directly
        options = dict(terminated=terminated, retries=self.retries)
        return {name: end_attempt(folder, name, names, exit_code, **options) for name in names}


def count_states(folder: Folder, names: Sequence[str]) -> dict[str, int]:
    """The number of trials in each state."""
    return dict(Counter(map(folder.displayed_state, names)))
