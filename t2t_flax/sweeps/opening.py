"""A sweep's folder made, or found again and compared with what is asked for."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.errors import UserError
from t2t_flax.filesystem import atomic_write, is_remote
from t2t_flax.sweeps.folder import Folder, one_at_a_time, read_sweep
from t2t_flax.sweeps.trials import Trial
from t2t_flax.version import __version__, source_digest

_LOCK = "sweep.lock"


def open_folder(
    path: str | os.PathLike,
    described: dict[str, Any],
    trials: list[Trial],
    *,
    base: Config | None = None,
    extend: bool = False,
    any_code: bool = False,
    dry_run: bool = False,
) -> tuple[Folder, dict[str, Any]]:
    """The folder of a sweep, made or found again, and all that its sweep.json says. described: what the sweep is, as JSON
    values. base: of a search, the config with what all trials override. dry_run: everything is checked, nothing written.

    Raises UserError where another sweep lives there (unless `extend` and it only adds trials), or other code made it
    (unless `any_code`). Nothing is written in that case.
    """
    if is_remote(path):
        raise UserError(
            f"--workdir={path}: a sweep's folder must be on a file system with locks, not in an object store."
        )
    if Path(path).exists() and not Path(path).is_dir():
        raise UserError(f"--workdir={path} is a file: give a folder.")
    folder = Folder(Path(path).absolute())
    listed = {t.name: {"row": t.row, "seed": t.seed, "overrides": t.overrides} for t in trials}
    told = described | {"trials": listed, "code": code(), "cwd": os.getcwd()}
    if _is_foreign(folder.path):  # before the lock, which would be a file in a folder of something else
        raise UserError(f"--workdir={path} is no sweep and not empty: give a new folder.")
    with contextlib.nullcontext() if dry_run else one_at_a_time(folder.path / _LOCK):
        found = (folder.path / "sweep.json").exists()
        if found:
            stored = read_sweep(folder.path, asked_too=False)
            _check_same(folder, stored, told, base, trials, extend)
            check_code(folder.path, stored, any_code)
            told |= {"code": stored["code"], "cwd": stored["cwd"]}
        if not dry_run:
            if base:
                atomic_write(folder.base, config_lib.to_json(base))
            add_configs(folder, trials, anew=not found)
            atomic_write(folder.path / "sweep.json", json.dumps(told, indent=2, ensure_ascii=False) + "\n")
    return folder, told if dry_run else read_sweep(folder.path)


def check_code(path: Path, stored: dict[str, Any], any_code: bool) -> None:
    """Raises UserError where other code than this made the sweep."""
    if stored["code"] != code() and not any_code:
        raise UserError(
            f"{path} was made by t2t_flax {_version(stored['code'])}, this is {_version(code())}: its trials would "
            "not be comparable. Use that code or a new folder, or --any-code where the change does not matter."
        )


def _is_foreign(path: Path) -> bool:
    """Whether the folder holds something else than a sweep, or one whose making was cut short or goes on."""
    if not path.exists() or (path / "sweep.json").exists():
        return False
    names = {item.name for item in path.iterdir() if ".partial-" not in item.name}
    return bool(names - {_LOCK, "sweep.json", "base.json", "configs"})


def add_configs(folder: Folder, trials: list[Trial], *, anew: bool = False) -> None:
    """Writes the configs of trials that have none yet (`anew`: of all)."""
    for trial in trials:
        if anew or not folder.config(trial.name).exists():
            atomic_write(folder.config(trial.name), config_lib.to_json(trial.config))


def code() -> dict[str, str]:
    """The version of this package, and a digest of its source files."""
    return {"version": __version__, "digest": source_digest()}


def _version(of: dict[str, str]) -> str:
    return f"{of['version']} (source {of['digest'][:8]})"


def _check_same(
    folder: Folder, stored: dict, told: dict, base: Config | None, trials: list[Trial], extend: bool
) -> None:
    differ = []
    for key in ("version", "config", "fixed", "search"):
        a, b = stored.get(key), told[key]
        if key == "search" and extend and a and b:
            a, b = a | {"count": 0}, b | {"count": 0}
        differ += [f"  {key}: {a!r} in the folder, {b!r} now"] if a != b else []
    here, now = stored["trials"], told["trials"]
    lost, new = [n for n in here if n not in now], [n for n in now if n not in here]
    differ += [f"  only in the folder: {', '.join(lost)}"] if lost else []
    pairs = [(folder.config(t.name), t.config, f"trial {t.name}: ") for t in trials if t.name in here]
    for path, config, label in [*pairs, *([(folder.base, base, "")] if base else [])]:
        if path.exists():
            changed = config_lib.differences(config_lib.from_json(path.read_text()), config)
            changed.pop("data.cache", None)
            differ += [f"  {label}{key}: {a!r} in the folder, {b!r} now" for key, (a, b) in changed.items()]
    grown = [f"  only now: {', '.join(new)}"] if new else []
    if differ or new and not extend:
        hint = "or the sweep of this one" if differ else "or add them to this one with --extend"
        lines = "\n".join(dict.fromkeys(differ + grown))
        raise UserError(f"{folder.path} holds another sweep:\n{lines}\nUse another --workdir, {hint}.")
