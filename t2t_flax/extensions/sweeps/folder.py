"""A sweep's folder, which workers on several hosts may share.

sweep.json            the sweep: config, overrides, rows, seeds, the code that created it
base.json             config of a search before its overrides
configs/TRIAL.json    resolved config of a trial
trials/TRIAL/         workdir of a trial, as `train` writes it; complete when it has complete.json
logs/TRIAL.log        output of all its attempts
ended/TRIAL.json      why it ended without a result: failed, diverged or pruned
starts/TRIAL.json     starts since its last checkpoint, while it trains or after a killed worker
claims/TRIAL          locked by the process that trains it
data/                 tokenized corpora, shared by all trials
optuna.journal        proposals and values of a search (`search`), unless they are in a database
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.errors import UserError
from t2t_flax.extensions.sweeps.space import as_text
from t2t_flax.extensions.sweeps.trials import Trial, is_folder_name
from t2t_flax.files import atomic_write, is_remote, list_names, list_numbers
from t2t_flax.json_file import parse_json
from t2t_flax.version import __version__, source_digest

COMPLETE, FAILED, DIVERGED, PRUNED = "complete", "failed", "diverged", "pruned"
STOPPED, RUNNING, WAITING = "stopped", "running", "waiting"
ENDED = (COMPLETE, FAILED, DIVERGED, PRUNED)
SWEEP_KEYS = {
    "config",
    "fixed",
    "search",
    "study",
    "seeds",
    "score",
    "selection",
    "baseline",
    "trials",
    "code",
    "cwd",
}
_LOCK = "sweep.lock"
_LOG_LINES, _LOG_BYTES = 25, 20_000
"""Maximum lines and bytes of the end of a log that is shown."""


@dataclasses.dataclass(frozen=True)
class Folder:
    """Paths of a sweep, and the state of its trials."""

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

    def log_tail(self, name: str) -> str:
        """Return the last lines of a trial's log; "" without one."""
        path = self.log(name)
        if not path.exists():
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-_LOG_LINES:])

    def read_config(self, name: str) -> Config:
        return config_lib.from_json(self.config(name).read_text())

    def write_config(self, trial: Trial) -> None:
        atomic_write(self.config(trial.name), config_lib.to_json(trial.config))

    def state(self, name: str) -> str:
        """Return one of ENDED, STOPPED (can resume from a checkpoint) or WAITING."""
        # Use listings, which NFS revalidates: it caches that a file did not exist.
        files = list_names(self.workdir(name))
        if "complete.json" in files:
            return COMPLETE
        if f"{name}.json" in list_names(self.path / "ended"):
            return self._ended(name)["state"]
        return STOPPED if "checkpoints" in files else WAITING

    def displayed_state(self, name: str) -> str:
        """Return RUNNING while a worker trains the trial, else its state."""
        state = self.state(name)
        return RUNNING if state not in ENDED and self.holder(name) else state

    def reason(self, name: str) -> str:
        """Return why a trial ended without a result; "" for any other."""
        ended = f"{name}.json" in list_names(self.path / "ended")
        return self._ended(name)["reason"] if ended else ""

    def _ended(self, name: str) -> dict[str, str]:
        path = self.path / "ended" / f"{name}.json"
        ended = _read_json(path)
        if ended.get("state") not in ENDED or not isinstance(ended.get("reason"), str):
            raise UserError(f"{path} is damaged: remove it to train the trial again.")
        return ended

    def end(self, name: str, state: str, reason: str = "") -> None:
        """Store how a trial ended; only for the holder of its claim."""
        text = json.dumps({"state": state, "reason": reason}) + "\n"
        atomic_write(self.path / "ended" / f"{name}.json", text)

    def reopen(self, name: str) -> None:
        """Let workers train a failed or diverged trial again."""
        if self.state(name) in (FAILED, DIVERGED) and (claim := self.claim(name)):
            (self.path / "ended" / f"{name}.json").unlink(missing_ok=True)
            self._starts(name).unlink(missing_ok=True)
            claim.release()

    def _starts(self, name: str) -> Path:
        return self.path / "starts" / f"{name}.json"

    def count_start(self, name: str) -> int:
        """Count a start of a trial until `end_start`; only for the holder of its claim.

        Returns the number of starts, this one included, that were never ended since the trial last
        saved a checkpoint.
        """
        newest = max(list_numbers(self.workdir(name) / "checkpoints"), default=0)
        stored = _read_json(self._starts(name)) if self._starts(name).exists() else {}
        count = stored["count"] + 1 if stored.get("checkpoint") == newest else 1
        atomic_write(self._starts(name), json.dumps({"checkpoint": newest, "count": count}) + "\n")
        return count

    def end_start(self, name: str) -> None:
        """Forget the starts of a trial, whose training has ended before this worker."""
        self._starts(name).unlink(missing_ok=True)

    def claim(self, name: str) -> "Claim | None":
        """Take the exclusive right to train a trial; None if another process has it.

        The training process inherits the lock, so it lasts until both worker and training have
        ended, however they end.
        """
        path = self.path / "claims" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        claim = Claim(os.open(path, os.O_RDWR | os.O_CREAT, 0o666))
        while True:
            try:
                fcntl.flock(claim.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # held, or shared for a moment by `holder`
                if self.holder(name):
                    claim.release()
                    return None
            except OSError as error:
                claim.release()
                raise _no_locks(self.path, error) from None
        os.truncate(claim.descriptor, 0)
        os.pwrite(claim.descriptor, f"{socket.gethostname()} process {os.getpid()}\n".encode(), 0)
        return claim

    def holder(self, name: str) -> str:
        """Return the host and process that train the trial now; "" if it is not training."""
        with contextlib.suppress(FileNotFoundError), (self.path / "claims" / name).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip() or "another process"
        return ""


@dataclasses.dataclass
class Claim:
    """Right to train a trial, held while any process has the descriptor open."""

    descriptor: int

    def release(self) -> None:
        """Give up this process's share."""
        os.close(self.descriptor)


@contextlib.contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Wait until no other process holds this lock file.

    Raises UserError on a file system without locks.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise _no_locks(lock.parent, error) from None
        yield


def _no_locks(path: Path, error: OSError) -> UserError:
    return UserError(
        f"the file system of {path} has no locks ({error.strerror}): put the sweep on a local disk"
        " or a shared file system with locks (NFS 4)."
    )


def open_or_create(
    path: str | os.PathLike,
    sweep: dict[str, Any],
    trials: list[Trial],
    *,
    base: Config | None = None,
    storage: str = "",
    extend: bool = False,
    any_code: bool = False,
    dry_run: bool = False,
) -> tuple[Folder, dict[str, Any]]:
    """Open or create the folder of a sweep; return it with its sweep.json.

    Raises UserError, with nothing written, if the folder holds another sweep (unless `extend` and
    this one only adds trials) or other code created it (unless `any_code`).

    Args:
        sweep: content of sweep.json except study, trials, code and cwd.
        base: config of a search before its overrides.
        storage: URL of a search's database, without credentials; "" = the journal in the folder.
        dry_run: check everything, write nothing.
    """
    if is_remote(path):
        raise UserError(
            f"--workdir={path}: a sweep's folder needs a file system with locks, not an object"
            " store."
        )
    if Path(path).exists() and not Path(path).is_dir():
        raise UserError(f"--workdir={path} is a file: give a folder.")
    folder = Folder(Path(path).absolute())
    if _is_foreign(folder.path):  # check before creating the lock file there
        raise UserError(f"--workdir={path} is not empty and holds no sweep: give a new folder.")
    entries = {t.name: {"row": t.row, "seed": t.seed, "overrides": t.overrides} for t in trials}
    study = (
        {"name": f"{folder.path.name}-{uuid.uuid4().hex[:8]}", "storage": storage}
        if sweep["search"]
        else None
    )
    sweep = sweep | {"study": study, "trials": entries, "code": code_version(), "cwd": os.getcwd()}
    with contextlib.nullcontext() if dry_run else exclusive(folder.path / _LOCK):
        exists = (folder.path / "sweep.json").exists()
        if exists:
            stored = read_sweep(folder.path, proposals=False)
            _check_same_sweep(folder, stored, sweep, base, trials, extend)
            check_host(folder.path, stored, any_code)
            sweep |= {key: stored[key] for key in ("study", "code", "cwd")}
        if dry_run:
            return folder, sweep
        if base:
            atomic_write(folder.base, config_lib.to_json(base))
        for trial in trials:
            if not (exists and folder.config(trial.name).exists()):
                folder.write_config(trial)
        atomic_write(
            folder.path / "sweep.json", json.dumps(sweep, indent=2, ensure_ascii=False) + "\n"
        )
    return folder, read_sweep(folder.path)


def _is_foreign(path: Path) -> bool:
    """Return True if the folder has content other than a sweep.

    A sweep whose creation was interrupted counts as a sweep.
    """
    # List once: another worker may write.
    names = {name for name in list_names(path) if ".partial-" not in name}
    return "sweep.json" not in names and bool(names - {_LOCK, "base.json", "configs"})


def check_host(path: Path, stored: dict[str, Any], any_code: bool) -> None:
    """Raise UserError if other code created the sweep.

    Also if it was created in a folder that this host does not have.
    """
    if stored["code"] != code_version() and not any_code:
        created, current = (
            f"{v['version']} (source {v['digest'][:8]})" for v in (stored["code"], code_version())
        )
        raise UserError(
            f"{path} was created by t2t_flax {created}, and this is {current}: its trials would not"
            " be comparable. Use that version or a new folder, or --any-code if the change does"
            " not matter."
        )
    if not os.path.isdir(cwd := stored["cwd"]):
        raise UserError(
            f"the sweep was created in {cwd}, the base of its relative paths, and this host has no"
            " such folder: join on a host that has it, or create it (empty, if the sweep's paths"
            " are all absolute)."
        )


def code_version() -> dict[str, str]:
    """Return the version of this package, and a digest of its source files."""
    return {"version": __version__, "digest": source_digest()}


def _check_same_sweep(
    folder: Folder,
    stored: dict,
    sweep: dict,
    base: Config | None,
    trials: list[Trial],
    extend: bool,
) -> None:
    differences = []
    a, b = stored["search"], sweep["search"]
    if extend and a and b:
        a, b = a | {"count": 0}, b | {"count": 0}
    if a != b:
        differences.append(f"  search: {a!r} in the folder, {b!r} now")
    if missing := [name for name in stored["trials"] if name not in sweep["trials"]]:
        differences.append(f"  only in the folder: {', '.join(missing)}")
    configs = [
        (folder.config(t.name), t.config, f"trial {t.name}: ")
        for t in trials
        if t.name in stored["trials"]
    ]
    for path, config, label in [*configs, *([(folder.base, base, "")] if base else [])]:
        if path.exists():
            changed = config_lib.differences(config_lib.from_json(path.read_text()), config)
            changed.pop("data.cache", None)
            lines = config_lib.format_differences(
                changed, "in the folder", "now", indent=f"  {label}"
            )
            differences += lines.splitlines()
    new = [name for name in sweep["trials"] if name not in stored["trials"]]
    if differences or new and not extend:
        advice = (
            "or the command of this sweep"
            if differences
            else "or add them to this one with --extend"
        )
        lines = "\n".join(
            dict.fromkeys(differences + ([f"  only now: {', '.join(new)}"] if new else []))
        )
        raise UserError(
            f"{folder.path} holds another sweep:\n{lines}\nUse another --workdir, {advice}."
        )


def read_sweep(path: str | os.PathLike, *, proposals: bool = True) -> dict[str, Any]:
    """Return the content of sweep.json.

    With `proposals` its trials include the ones that a search has proposed. Raises UserError if the
    folder holds no sweep, or a trial's name would lead out of it.
    """
    folder, file = Folder(Path(path)), Path(path) / "sweep.json"
    try:
        stored = _read_json(file)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"{path} has no sweep.json: give the --workdir of a `sweep` command."
        ) from None
    if not SWEEP_KEYS <= stored.keys() or not isinstance(stored["trials"], dict):
        raise UserError(f"{file} is damaged: a sweep has the keys {', '.join(sorted(SWEEP_KEYS))}.")
    trials = dict(stored["trials"])
    if stored["search"] and proposals:
        keys = stored["search"]["space"]
        for name in sorted(
            name.removesuffix(".json") for name in list_names(folder.path / "configs")
        ):
            if ".partial-" not in name:
                values = folder.read_config(name)
                overrides = {key: as_text(values.value(key)) for key in keys}
                trials[name] = {
                    "row": name.removesuffix(",seed=0"),
                    "seed": 0,
                    "overrides": overrides,
                }
    for name, trial in trials.items():
        _check_trial(file, name, trial)
    return stored | {"trials": trials}


def _read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object. Raises UserError for any other file."""
    try:
        content = parse_json(file.read_text())
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise UserError(f"{file} is damaged: it is not a JSON object.")
    return content


def _check_trial(file: Path, name: Any, trial: Any) -> None:
    """Raise UserError for a trial that lacks a part or has an invalid name.

    The names of trials and rows must be valid folder names.
    """
    types = {"row": str, "seed": int, "overrides": dict}
    if not isinstance(trial, dict) or not all(
        isinstance(trial.get(key), kind) for key, kind in types.items()
    ):
        raise UserError(f"{file} is damaged: trial {name} needs a row, a seed and overrides.")
    for text in (name, trial["row"]):
        if not is_folder_name(text):
            raise UserError(
                f"{file} has the name {text!r}: trials and rows need names that a folder can have."
            )
