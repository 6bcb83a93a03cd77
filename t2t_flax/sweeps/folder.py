"""A sweep's folder: what it is made of, and how far each trial has come. Workers on several hosts may share it.

sweep.json            the sweep: config, overrides, rows, seeds, the code that made it
base.json             the config with what all trials override, resolved
configs/TRIAL.json    the resolved config of a trial
trials/TRIAL/         its workdir, as `train` makes it
logs/TRIAL.log        what its attempts printed
attempts/TRIAL.jsonl  when each began and how it ended
claims/TRIAL          locked by whoever trains it now
data/                 tokenised stores, shared by all
asked/                trials of a search, in the order in which it proposed them
"""

import dataclasses
import fcntl
import hashlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.config import Config, scalars
from t2t_flax.errors import UserError
from t2t_flax.files import is_remote, write_whole
from t2t_flax.sweeps.trials import Trial
from t2t_flax.version import __version__

COMPLETE, FAILED, PRUNED, STOPPED = "complete", "failed", "pruned", "stopped"
ENDED = (COMPLETE, FAILED, PRUNED)


class Claim:
    """The right to train a trial, held by a lock that the training process inherits: it ends when both have ended,
    however they end.
    """

    def __init__(self, descriptor: int):
        self.descriptor = descriptor

    def release(self) -> None:
        os.close(self.descriptor)


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
        """The ends of a trial's attempts, and `{"event": "begin"}` for each; the oldest first."""
        path = self._attempts(name)
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def note(self, name: str, **values: Any) -> None:
        """One line more in attempts/TRIAL.jsonl, whole or not at all."""
        path = self._attempts(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"time": round(time.time(), 1), "host": socket.gethostname()} | values) + "\n"
        with path.open("ab") as file:
            file.write(line.encode())

    def _attempts(self, name: str) -> Path:
        return self.path / "attempts" / f"{name}.jsonl"

    def state(self, name: str) -> str:
        """`complete`, `failed` for good, `pruned`, `stopped` (saved, goes on later), or `waiting`."""
        if (self.workdir(name) / "complete.json").exists():
            return COMPLETE
        outcomes = [line["event"] for line in self.attempts(name)]
        last = next((event for event in reversed(outcomes) if event != "begin"), None)
        if last in ("given up", PRUNED):
            return FAILED if last == "given up" else PRUNED
        return STOPPED if outcomes and (self.workdir(name) / "checkpoints").exists() else "waiting"

    def failures(self, name: str) -> int:
        """Attempts that failed since the last that did not, or since somebody asked for new ones."""
        count = 0
        for line in self.attempts(name):
            if line["event"] == FAILED:
                count += 1
            elif line["event"] == "try again":
                count = 0
        return count

    def share_a_program(self, name: str, other: str) -> bool:
        """Whether both can train together: they differ in scalars alone, stand at the same update, and have not failed."""
        if self.failures(name) or self.failures(other) or self._newest(name) != self._newest(other):
            return False
        a, b = (config_lib.from_json(self.config(n).read_text()) for n in (name, other))
        return scalars.share_a_program(a, b) and scalars.fits_one_device(a)

    def _newest(self, name: str) -> int:
        folder = self.workdir(name) / "checkpoints"
        return (
            max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=0)
            if folder.exists()
            else 0
        )

    def claim(self, name: str) -> Claim | None:
        """None where another worker trains the trial, or its orphaned training still runs."""
        path = self.path / "claims" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise UserError(
                f"the file system of {self.path} has no locks ({error.strerror}), which keep two workers from training one "
                "trial: put the sweep on local disk or a shared file system with locks (NFS 4)."
            ) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{socket.gethostname()} process {os.getpid()}\n".encode(), 0)
        return Claim(descriptor)

    def holder(self, name: str) -> str | None:
        """Who trains the trial now, in words; None where nobody does."""
        path = self.path / "claims" / name
        if not path.exists():
            return None
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip() or "another worker"
        return None


def open_folder(
    path: str | os.PathLike,
    described: dict[str, Any],
    base: Config,
    trials: list[Trial],
    *,
    extend: bool,
    any_code: bool,
) -> Folder:
    """The folder of a sweep, made or found again. described: what the sweep is, as JSON values. base: the config with
    what all trials override.

    Raises UserError where another sweep lives there (unless `extend` and it only adds trials), or other code made it
    (unless `any_code`). Nothing is written in that case.
    """
    if is_remote(path):
        raise UserError(
            f"--workdir={path}: a sweep's folder must be on a file system with locks, not in an object store."
        )
    folder = Folder(Path(path))
    stored = _stored(folder.path) if (folder.path / "sweep.json").exists() else None
    if stored is None and folder.path.exists() and any(folder.path.iterdir()):
        raise UserError(f"--workdir={path} is no sweep and not empty: give a new folder.")
    told = described | {
        "trials": {t.name: {"row": t.row, "seed": t.seed, "overrides": t.overrides} for t in trials},
        "code": code(),
    }
    if stored is not None:
        _check_same(folder, stored, told, base, trials, extend)
        check_code(folder.path, stored, any_code)
    write_whole(folder.base, config_lib.to_json(base))
    add_configs(folder, trials)
    if stored is None or told != stored:
        write_whole(folder.path / "sweep.json", json.dumps(told, indent=2, ensure_ascii=False) + "\n")
    return folder


def check_code(path: Path, stored: dict[str, Any], any_code: bool) -> None:
    """Raises UserError where other code than this made the sweep."""
    if stored["code"] != code() and not any_code:
        raise UserError(
            f"{path} was made by t2t_flax {_version(stored['code'])}, this is {_version(code())}: its trials would "
            "not be comparable. Use that code or a new folder, or --any-code where the change does not matter."
        )


def add_configs(folder: Folder, trials: list[Trial]) -> None:
    """Writes the configs of trials, whose stores lie in the sweep's folder unless the config says where."""
    for trial in trials:
        if not folder.config(trial.name).exists():
            data = trial.config.data
            if not data.cache:
                data = dataclasses.replace(data, cache=str(folder.path.absolute() / "data"))
            write_whole(folder.config(trial.name), config_lib.to_json(dataclasses.replace(trial.config, data=data)))


def asked(path: str | os.PathLike) -> dict[str, dict[str, Any]]:
    """The trials that a search has proposed so far, by name, in their order."""
    files = sorted((Path(path) / "asked").glob("*.json"))
    return {told["name"]: told for told in (json.loads(file.read_text()) for file in files)}


def read_sweep(path: str | os.PathLike) -> dict[str, Any]:
    """The content of sweep.json, its trials with those of a search. Raises UserError where the folder holds no sweep."""
    stored = _stored(path)
    return stored | {"trials": stored["trials"] | asked(path)}


def _stored(path: str | os.PathLike) -> dict[str, Any]:
    file = Path(path) / "sweep.json"
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        raise UserError(
            f"{path} holds no sweep: there is no sweep.json. Give the --workdir of a `sweep` command."
        ) from None
    except ValueError:
        raise UserError(f"{file} is damaged: it is not JSON.") from None


def code() -> dict[str, str]:
    """The version of this package, and a digest of its source files."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return {"version": __version__, "digest": digest.hexdigest()[:16]}


def _version(of: dict[str, str]) -> str:
    return f"{of['version']} (source {of['digest'][:8]})"


def _check_same(folder: Folder, stored: dict, told: dict, base: Config, trials: list[Trial], extend: bool) -> None:
    changed = config_lib.differences(config_lib.from_json(folder.base.read_text()), base)
    differ = [f"  config.{key}: {a!r} in the folder, {b!r} now" for key, (a, b) in changed.items()]
    differ += [
        f"  {name}: {stored.get(name)!r} in the folder, {told[name]!r} now"
        for name in told
        if name not in ("trials", "code", "seeds", "score", "baseline") and stored.get(name) != told[name]
    ]
    here, now = stored["trials"], told["trials"]
    lost, new = [n for n in here if n not in now], [n for n in now if n not in here]
    differ += [f"  only in the folder: {', '.join(lost)}"] if lost else []
    for name in here.keys() & now.keys():
        a, b = here[name]["overrides"], now[name]["overrides"]
        differ += [f"  {name}: {a!r} in the folder, {b!r} now"] if a != b else []
    grown = f"  only now: {', '.join(new)}"
    if differ or new and not extend:
        lines = "\n".join(differ + ([grown] if new else []))
        hint = "Use another --workdir, or the sweep of this one."
        hint = hint if differ else "Use another --workdir, or add them to this one with --extend."
        raise UserError(f"{folder.path} holds another sweep:\n{lines}\n{hint}")
