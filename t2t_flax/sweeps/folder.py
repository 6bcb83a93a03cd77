"""A sweep's folder: what it is made of, and how far each trial has come. Workers on several hosts may share it.

sweep.json            the sweep: config, overrides, rows, seeds, the code that made it
base.json             of a search: the config with what all trials override
configs/TRIAL.json    the resolved config of a trial
trials/TRIAL/         its workdir, as `train` makes it
logs/TRIAL.log        what its attempts printed
attempts/TRIAL.jsonl  when each began and how it ended
claims/TRIAL          locked by whoever trains it now
data/                 tokenised stores, shared by all
asked/                trials of a search, in the order in which it proposed them
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax import locks
from t2t_flax.config import scalars
from t2t_flax.config.renamed import current_overrides
from t2t_flax.errors import UserError
from t2t_flax.filesystem import is_full, numbered
from t2t_flax.sweeps.trials import is_folder_name

COMPLETE, FAILED, PRUNED, STOPPED = "complete", "failed", "pruned", "stopped"
MISTAKE = "mistake"
"""How an attempt ended that a user must see to; it counts as failed until a worker is started anew."""
DIVERGED = "diverged"
"""How an attempt ended at an update that was not finite: the trial has failed for good, for it would diverge again."""
ELSEWHERE = "elsewhere"
"""One more attempt, on another host, at what a mistake ended."""
HOSTS = 3
"""So many hosts may find the same mistake before it is believed."""
ENDED = (COMPLETE, FAILED, PRUNED)
KEYS = {"version", "config", "fixed", "search", "seeds", "score", "baseline", "trials", "code", "cwd"}
"""Of sweep.json."""


Claim = locks.FileLock
"""The right to train a trial. The training process inherits the lock: it ends when both have ended, however they end."""


@dataclasses.dataclass(frozen=True)
class Folder:
    """The paths of a sweep, and what lies there."""

    path: Path

    @property
    def base(self) -> Path:
        return self.path / "base.json"

    def workdir(self, name: str) -> Path:
        return self.path / "trials" / name

    def config(self, name: str) -> Path:
        return self.path / "configs" / f"{name}.json"

    def log(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.log"

    def attempts(self, name: str) -> list[dict[str, Any]]:
        """The ends of a trial's attempts, and `{"event": "begin"}` for each; the oldest first. A line that a full disk or a
        crash of its host cut short is left out.
        """
        path, found = self._attempts(name), []
        for line in path.read_text(errors="replace").split("\n") if path.exists() else []:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def note(self, name: str, **values: Any) -> None:
        """One line more in attempts/TRIAL.jsonl. Raises UserError where the disk is full."""
        path = self._attempts(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"time": round(time.time(), 1), "host": socket.gethostname()} | values) + "\n"
        try:
            with path.open("ab+") as file:
                if file.tell() and file.seek(-1, os.SEEK_END) and file.read(1) != b"\n":
                    line = "\n" + line  # the last line was cut short
                file.write(line.encode())
        except OSError as error:
            if not is_full(error):
                raise
            raise UserError(
                f"{path} cannot be written ({error.strerror}): make room, then give the same command."
            ) from None

    def _attempts(self, name: str) -> Path:
        return self.path / "attempts" / f"{name}.jsonl"

    def state(self, name: str) -> str:
        """`complete`, `failed` for good, `pruned`, `stopped` (saved, goes on later), or `waiting`."""
        if self._has_marker(name):
            return COMPLETE
        lines = self.attempts(name)
        outcomes = [line["event"] for line in lines]
        if {PRUNED, "pruning"} & {line["event"] for line in _since_asked(lines)}:
            return PRUNED
        last = next((event for event in reversed(outcomes) if event != "begin"), None)
        if last in ("given up", MISTAKE, DIVERGED):
            return FAILED
        return STOPPED if outcomes and (self.workdir(name) / "checkpoints").exists() else "waiting"

    def ended(self, name: str) -> bool:
        """Whether this host has nothing more to do for the trial."""
        return self.state(name) in ENDED and not self.mistaken_elsewhere(name)

    def mistaken_elsewhere(self, name: str) -> bool:
        """Whether a mistake ended it on a few other hosts, which may lack a mount, and this one may try."""
        lines = _since_asked(self.attempts(name))
        if self._has_marker(name) or not lines or lines[-1]["event"] != MISTAKE:
            return False
        hosts = {line["host"] for line in lines if line["event"] == MISTAKE}
        return socket.gethostname() not in hosts and len(hosts) < HOSTS

    def _has_marker(self, name: str) -> bool:
        """By the folder's list, which NFS asks its server for anew; that a file was not there it would remember."""
        try:
            return "complete.json" in os.listdir(self.workdir(name))
        except FileNotFoundError:
            return False

    def failures(self, name: str) -> int:
        """Attempts by itself that failed since the last that did not, or since somebody asked for new ones."""
        count = 0
        for line in self.attempts(name):
            if line["event"] == FAILED and not line.get("together"):
                count += 1
            elif line["event"] == STOPPED and line.get("asked", True) or line["event"] == "try again":
                count = 0
        return count

    def lost(self, name: str) -> int:
        """Attempts in a row that ended without being asked to and with no checkpoint more than they began with: their
        worker died with them, or somebody else stopped them.
        """
        count, at = 0, self.newest(name)
        for line in reversed(self.attempts(name)):
            if line["event"] == "begin" and line.get("at") == at:
                count += 1
            elif line["event"] != STOPPED or line.get("asked", True):
                break
        return count

    def try_again(self, name: str, *, given_up: bool) -> None:
        """Opens a failed trial: one that a mistake ended (a missing file, a full disk), or one that was given up, too."""
        events = [line["event"] for line in self.attempts(name)]
        if self.state(name) == FAILED and (given_up or events[-1] == MISTAKE):
            self.note(name, event="try again")

    def share_a_program(self, name: str, other: str) -> bool:
        """Whether both can train together: they differ in scalars alone, stand at the same update, and have not failed."""
        failed = any(line["event"] == FAILED for n in (name, other) for line in self.attempts(n))
        if failed or self.newest(name) != self.newest(other):
            return False
        a, b = (config_lib.from_json(self.config(n).read_text()) for n in (name, other))
        return scalars.share_a_program(a, b) and scalars.can_train_together(a)

    def newest(self, name: str) -> int:
        """The update of the newest checkpoint; 0 where there is none."""
        return max(numbered(self.workdir(name) / "checkpoints"), default=0)

    def claim(self, name: str) -> Claim | None:
        """None where another worker trains the trial, or its orphaned training still runs."""
        path = self.path / "claims" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return locks.lock_file(path, "sweep")
        except OSError as error:
            if error.errno not in locks.NO_LOCKS:
                raise
            raise no_locks(self.path, error) from None

    def holder(self, name: str) -> str | None:
        """Who trains the trial now, in words; None where nobody does."""
        found = locks.holder_of(self.path / "claims" / name)
        return found and f"{found.host} process {found.process}"


def _since_asked(attempts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those since somebody last asked for new ones."""
    asked_at = [i for i, line in enumerate(attempts) if line["event"] == "try again"]
    return attempts[asked_at[-1] + 1 :] if asked_at else attempts


def this_worker() -> str:
    """What a claim says of its holder."""
    return f"{socket.gethostname()} process {os.getpid()}"


@contextlib.contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    """Waits until no other worker is within a block of this lock file. Raises UserError where nothing can be locked."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise no_locks(lock.parent, error) from None
        yield


def no_locks(path: Path, error: OSError) -> UserError:
    """What to do where a file could not be locked."""
    return UserError(
        f"the file system of {path} has no locks ({error.strerror}), which keep two workers from training one trial: "
        "put the sweep on local disk or a shared file system with locks (NFS 4)."
    )


def asked(path: str | os.PathLike) -> dict[str, dict[str, Any]]:
    """The trials that a search has proposed so far, by name, in their order. Raises UserError for a damaged one."""
    proposals = {}
    for file in sorted((Path(path) / "asked").glob("*.json")):
        try:
            told = json.loads(file.read_text())
        except ValueError:
            raise UserError(f"{file} is damaged: it is not JSON.") from None
        if not isinstance(told, dict) or not isinstance(told.get("number"), int):
            raise UserError(f"{file} is damaged: a proposal has a number.")
        _check_trial(file, told.get("name"), told)
        proposals[told["name"]] = told
    return proposals


def read_sweep(path: str | os.PathLike, *, asked_too: bool = True) -> dict[str, Any]:
    """The content of sweep.json, its trials with those that a search has proposed. Raises UserError where the folder holds
    no sweep, or names in it are no names of folders: they would lead out of it.
    """
    file = Path(path) / "sweep.json"
    try:
        stored = json.loads(file.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"{path} holds no sweep: there is no sweep.json. Give the --workdir of a `sweep` command."
        ) from None
    except ValueError:
        raise UserError(f"{file} is damaged: it is not JSON.") from None
    if not isinstance(stored, dict) or not KEYS <= stored.keys() or not isinstance(stored["trials"], dict):
        raise UserError(f"{file} is damaged: a sweep has the keys {', '.join(sorted(KEYS))}.")
    for name, trial in stored["trials"].items():
        _check_trial(file, name, trial)
    fixed = current_overrides(stored["fixed"]) if isinstance(stored["fixed"], dict) else stored["fixed"]
    return stored | {"fixed": fixed, "trials": stored["trials"] | (asked(path) if asked_too else {})}


def _check_trial(file: Path, name: Any, trial: Any) -> None:
    """Raises UserError for a trial whose name or row is no folder's name, or that lacks its parts."""
    for of in (name, trial.get("row") if isinstance(trial, dict) else name):
        if not is_folder_name(of):
            raise UserError(f"{file} names {of!r}: a trial or row is named as its folder, so without / and such.")
    if not (
        isinstance(trial, dict) and isinstance(trial.get("seed"), int) and isinstance(trial.get("overrides"), dict)
    ):
        raise UserError(f"{file} is damaged: trial {name} needs a row, a seed and overrides.")
