"""A sweep's folder, which workers on several hosts may share.

sweep.json            the sweep: config, overrides, rows, seeds, the code that created it
base.json             of an adaptive search: the config before the search's overrides
configs/TRIAL.json    the resolved config of a trial
trials/TRIAL/         its workdir, as `train` writes it; complete.json there marks it as complete
logs/TRIAL.log        the output of all its attempts; TRIAL.process1.log ... of the other hosts of a pod
status/TRIAL.json     the number of its attempts, and why it failed or was pruned
claims/TRIAL          locked by the process that trains it
data/                 tokenized corpora, shared by all trials
proposals/            trials of an adaptive search, in the order of proposal
"""

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax import locks
from t2t_flax.config import Config
from t2t_flax.errors import USER_ERROR, UserError
from t2t_flax.extensions.sweeps.trials import Trial, can_be_vectorized, is_folder_name
from t2t_flax.filesystem import atomic_write, is_remote, list_numbers, read_if_exists
from t2t_flax.json_file import parse_json
from t2t_flax.version import __version__, source_digest

COMPLETE, FAILED, PRUNED, STOPPED, WAITING = "complete", "failed", "pruned", "stopped", "waiting"
ENDED = (COMPLETE, FAILED, PRUNED)
DIVERGED, OUT_OF_MEMORY = "diverged", "out of memory"
"""Causes of a failure that lie in the trial's config: they are results, from which a search learns."""
SWEEP_KEYS = {"config", "fixed", "search", "seeds", "score", "selection", "baseline", "trials", "code", "cwd"}
_LOCK = "sweep.lock"
_LOG_LINES, _LOG_BYTES = 25, 20_000
"""Of the end of a log that are shown."""


@dataclasses.dataclass(frozen=True)
class Status:
    """The outcome of a trial's attempts so far; written by the worker that holds its claim.

    start_step: newest checkpoint when the last attempt began. unresolved: consecutive attempts up to the last one that
    began at that step and whose end no worker saw. failures: attempts that failed since the last that did not.
    outcome: FAILED or PRUNED, or empty. cause: DIVERGED or OUT_OF_MEMORY if that was the failure, else empty.
    exit_code: of the last failure.
    began: Unix time of the start of an attempt whose end no worker has seen yet, else 0. stacked: trials that share its
    devices. device_seconds: of the other attempts, by the kind of devices.
    """

    attempts: int = 0
    start_step: int = 0
    unresolved: int = 0
    failures: int = 0
    failed_in_stack: bool = False
    outcome: str = ""
    reason: str = ""
    cause: str = ""
    exit_code: int = 0
    began: float = 0.0
    stacked: int = 1
    device_seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Folder:
    """The paths of a sweep, and the state of its trials."""

    path: Path

    @property
    def base(self) -> Path:
        return self.path / "base.json"

    @property
    def proposals(self) -> Path:
        return self.path / "proposals"

    def workdir(self, name: str) -> Path:
        return self.path / "trials" / name

    def config(self, name: str) -> Path:
        return self.path / "configs" / f"{name}.json"

    def log(self, name: str, process: int = 0) -> Path:
        return self.path / "logs" / (f"{name}.process{process}.log" if process else f"{name}.log")

    def log_tail(self, name: str) -> str:
        """The last lines of a trial's log; "" without one."""
        path = self.log(name)
        return "\n".join(_end_of(path).splitlines()[-_LOG_LINES:]) if path.exists() else ""

    def last_attempt(self, name: str) -> str:
        """The end of what the last attempt at a trial printed."""
        return _end_of(self.log(name)).rpartition("== attempt ")[2] if self.log(name).exists() else ""

    def append_to_log(self, name: str, text: str) -> None:
        """Adds a line to a trial's log."""
        self.log(name).parent.mkdir(parents=True, exist_ok=True)
        with self.log(name).open("ab") as log:
            log.write(f"{text}\n".encode())

    def read_config(self, name: str) -> Config:
        return config_lib.from_json(self.config(name).read_text())

    def write_config(self, trial: Trial) -> None:
        atomic_write(self.config(trial.name), config_lib.to_json(trial.config))

    def status(self, name: str) -> Status:
        text = read_if_exists(self.path / "status" / f"{name}.json")
        if text is None:
            return Status()
        try:
            return Status(**parse_json(text))
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{self.path}/status/{name}.json is damaged ({error}): remove it to retry the trial."
            ) from None

    def update_status(self, name: str, **changes: Any) -> Status:
        """Stores and returns the trial's status with the changes; only for the holder of its claim."""
        status = dataclasses.replace(self.status(name), **changes)
        atomic_write(self.path / "status" / f"{name}.json", json.dumps(dataclasses.asdict(status), indent=2) + "\n")
        return status

    def state(self, name: str) -> str:
        """COMPLETE, FAILED, PRUNED, STOPPED (can resume from a checkpoint) or WAITING."""
        with contextlib.suppress(FileNotFoundError):
            # A listing, which NFS revalidates: it caches that a file did not exist.
            if "complete.json" in os.listdir(self.workdir(name)):
                return COMPLETE
        status = self.status(name)
        if status.outcome:
            return status.outcome
        return STOPPED if status.attempts and (self.workdir(name) / "checkpoints").exists() else WAITING

    def displayed_state(self, name: str) -> str:
        """`running` while a worker trains it, else its state, or the cause of its failure."""
        state = self.state(name)
        return "running" if state not in ENDED and self.holder(name) else self.cause(name) or state

    def cause(self, name: str) -> str:
        """DIVERGED or OUT_OF_MEMORY if the trial failed for that reason, else empty."""
        return self.status(name).cause if self.state(name) == FAILED else ""

    def newest_step(self, name: str) -> int:
        """The update of the newest checkpoint; 0 without one."""
        return max(list_numbers(self.workdir(name) / "checkpoints"), default=0)

    def unresolved_attempts(self, name: str) -> int:
        """Consecutive attempts whose end no worker saw and that wrote no checkpoint: they may have crashed their worker."""
        status = self.status(name)
        return status.unresolved if self.newest_step(name) == status.start_step else 0

    def retry(self, name: str, *, all_failures: bool) -> None:
        """Reopens a trial that failed with a user error (a missing file, a full disk); with `all_failures`, any failed one."""
        claim = self.claim(name) if self.state(name) == FAILED else None
        if claim:
            if all_failures or self.status(name).exit_code == USER_ERROR:
                again = dict(failures=0, unresolved=0, failed_in_stack=False)
                self.update_status(name, outcome="", reason="", cause="", exit_code=0, **again)
            claim.release()

    def can_stack(self, first: str, second: str) -> bool:
        """Whether both can train in one program: they differ in scalars only, are at the same update, and neither has failed."""
        if any(s.failures or s.failed_in_stack for s in map(self.status, (first, second))):
            return False
        a, b = map(self.read_config, (first, second))
        return self.newest_step(first) == self.newest_step(second) and can_be_vectorized(a, b)

    def claim(self, name: str) -> locks.FileLock | None:
        """The exclusive right to train a trial; None if another process has it.

        The training process inherits the lock, so it lasts until both worker and training have ended, however they end.
        """
        path = self.path / "claims" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return locks.lock_file(path, "sweep")
        except OSError as error:
            if error.errno not in locks.NO_LOCKS:
                raise
            raise _no_locks(self.path, error) from None

    def holder(self, name: str) -> str | None:
        """The host and process that train the trial now; None if it is not training."""
        holder = locks.holder_of(self.path / "claims" / name)
        return holder and f"{holder.host} process {holder.process}"


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        return file.read().decode(errors="replace")


@contextlib.contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Waits until no other process holds this lock file. Raises UserError on a file system without locks."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise _no_locks(lock.parent, error) from None
        yield


def _no_locks(path: Path, error: OSError) -> UserError:
    return UserError(
        f"the file system of {path} has no locks ({error.strerror}), without which two workers could train the same trial: "
        "put the sweep on a local disk or a shared file system with locks (NFS 4)."
    )


def open_or_create(
    path: str | os.PathLike,
    sweep: dict[str, Any],
    trials: list[Trial],
    *,
    base: Config | None = None,
    extend: bool = False,
    any_code: bool = False,
    dry_run: bool = False,
) -> tuple[Folder, dict[str, Any]]:
    """Opens or creates the folder of a sweep; returns it with the content of its sweep.json.

    sweep: the content of sweep.json except trials, code and cwd. base: of an adaptive search, the config before its
    overrides. dry_run: checks everything, writes nothing. Raises UserError, with nothing written, if the folder holds
    another sweep (unless `extend` and this one only adds trials) or other code created it (unless `any_code`).
    """
    if is_remote(path):
        raise UserError(f"--workdir={path}: a sweep's folder needs a file system with locks, not an object store.")
    if Path(path).exists() and not Path(path).is_dir():
        raise UserError(f"--workdir={path} is a file: give a folder.")
    folder = Folder(Path(path).absolute())
    if _is_foreign(folder.path):  # before the lock file is created there
        raise UserError(f"--workdir={path} is not empty and holds no sweep: give a new folder.")
    entries = {t.name: {"row": t.row, "seed": t.seed, "overrides": t.overrides} for t in trials}
    sweep = sweep | {"trials": entries, "code": code_version(), "cwd": os.getcwd()}
    with contextlib.nullcontext() if dry_run else exclusive(folder.path / _LOCK):
        exists = (folder.path / "sweep.json").exists()
        if exists:
            stored = read_sweep(folder.path, proposals=False)
            _check_same_sweep(folder, stored, sweep, base, trials, extend)
            check_host(folder.path, stored, any_code)
            sweep |= {"code": stored["code"], "cwd": stored["cwd"]}
        if dry_run:
            return folder, sweep
        if base:
            atomic_write(folder.base, config_lib.to_json(base))
        for trial in trials:
            if not (exists and folder.config(trial.name).exists()):
                folder.write_config(trial)
        atomic_write(folder.path / "sweep.json", json.dumps(sweep, indent=2, ensure_ascii=False) + "\n")
    return folder, read_sweep(folder.path)


def _is_foreign(path: Path) -> bool:
    """Whether the folder has content that is neither a sweep nor one whose creation was interrupted."""
    if not path.exists():
        return False
    names = {item.name for item in path.iterdir() if ".partial-" not in item.name}  # once: another worker may write
    return "sweep.json" not in names and bool(names - {_LOCK, "base.json", "configs"})


def check_host(path: Path, stored: dict[str, Any], any_code: bool) -> None:
    """Raises UserError if other code than this created the sweep, or in a folder that this host does not have."""
    if stored["code"] != code_version() and not any_code:
        created, current = (f"{v['version']} (source {v['digest'][:8]})" for v in (stored["code"], code_version()))
        raise UserError(
            f"{path} was created by t2t_flax {created}, and this is {current}: its trials would not be comparable. Use that "
            "version or a new folder, or --any-code if the change does not matter."
        )
    if not os.path.isdir(cwd := stored["cwd"]):
        raise UserError(
            f"the sweep was created in {cwd}, the base of its relative paths, and this host has no such folder: join on a "
            "host that has it, or create it (empty, if the sweep's paths are all absolute)."
        )


def code_version() -> dict[str, str]:
    """The version of this package, and a digest of its source files."""
    return {"version": __version__, "digest": source_digest()}


def _check_same_sweep(
    folder: Folder, stored: dict, sweep: dict, base: Config | None, trials: list[Trial], extend: bool
) -> None:
    differences = []
    a, b = stored["search"], sweep["search"]
    if extend and a and b:
        a, b = a | {"count": 0}, b | {"count": 0}
    if a != b:
        differences.append(f"  search: {a!r} in the folder, {b!r} now")
    if missing := [name for name in stored["trials"] if name not in sweep["trials"]]:
        differences.append(f"  only in the folder: {', '.join(missing)}")
    configs = [(folder.config(t.name), t.config, f"trial {t.name}: ") for t in trials if t.name in stored["trials"]]
    for path, config, label in [*configs, *([(folder.base, base, "")] if base else [])]:
        if path.exists():
            changed = config_lib.differences(config_lib.from_json(path.read_text()), config)
            changed.pop("data.cache", None)
            lines = config_lib.format_differences(changed, "in the folder", "now", indent=f"  {label}")
            differences += lines.splitlines()
    new = [name for name in sweep["trials"] if name not in stored["trials"]]
    if differences or new and not extend:
        advice = "or the command of this sweep" if differences else "or add them to this one with --extend"
        lines = "\n".join(dict.fromkeys(differences + ([f"  only now: {', '.join(new)}"] if new else [])))
        raise UserError(f"{folder.path} holds another sweep:\n{lines}\nUse another --workdir, {advice}.")


def read_sweep(path: str | os.PathLike, *, proposals: bool = True) -> dict[str, Any]:
    """The content of sweep.json; its trials include those proposed by a search. Raises UserError if the folder holds no
    sweep, or a trial's name would lead out of it.
    """
    file = Path(path) / "sweep.json"
    try:
        stored = _read_json(file)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path} has no sweep.json: give the --workdir of a `sweep` command.") from None
    if not SWEEP_KEYS <= stored.keys() or not isinstance(stored["trials"], dict):
        raise UserError(f"{file} is damaged: a sweep has the keys {', '.join(sorted(SWEEP_KEYS))}.")
    for name, trial in stored["trials"].items():
        _check_trial(file, name, trial)
    return stored | {"trials": stored["trials"] | (read_proposals(path) if proposals else {})}


def read_proposals(path: str | os.PathLike) -> dict[str, dict[str, Any]]:
    """The trials that a search has proposed so far by name, in their order. Raises UserError for a damaged file."""
    proposals = {}
    for file in sorted(Folder(Path(path)).proposals.glob("*.json")):
        proposal = _read_json(file)
        name = proposal.get("name")
        _check_trial(file, name, proposal)
        proposals[name] = proposal
    return proposals


def _read_json(file: Path) -> dict[str, Any]:
    """Raises UserError for a file that is not a JSON object."""
    try:
        content = parse_json(file.read_text())
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise UserError(f"{file} is damaged: it is not a JSON object.")
    return content


def _check_trial(file: Path, name: Any, trial: Any) -> None:
    """Raises UserError if a trial lacks a part, or if its name or row cannot be the name of a folder."""
    types = {"row": str, "seed": int, "overrides": dict}
    if not isinstance(trial, dict) or not all(isinstance(trial.get(key), kind) for key, kind in types.items()):
        raise UserError(f"{file} is damaged: trial {name} needs a row, a seed and overrides.")
    for text in (name, trial["row"]):
        if not is_folder_name(text):
            raise UserError(f"{file} has the name {text!r}: trials and rows need names that a folder can have.")
