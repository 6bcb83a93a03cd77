"""The logs of trials: what their trainings printed, one after the other."""

from pathlib import Path

from t2t_flax.extensions.sweeps.folder import Folder

_LINES, _BYTES = 25, 20_000
"""Of the end of a log that are shown."""


def log_tail(folder: Folder, name: str) -> str:
    """The last lines of a trial's log; "" without one."""
    path: Path = folder.log(name)
    return "\n".join(_end(path).splitlines()[-_LINES:]) if path.exists() else ""


def last_attempt(folder: Folder, name: str) -> str:
    """The end of what the last attempt at a trial printed, on all hosts."""
    paths = [path for path in (folder.log(name), *folder.logs_of_others(name)) if path.exists()]
    return "\n".join(_end(path).rpartition("== attempt ")[2] for path in paths)


def append_to_log(folder: Folder, name: str, text: str) -> None:
    """Adds a line to a trial's log."""
    folder.log(name).parent.mkdir(parents=True, exist_ok=True)
    with folder.log(name).open("ab") as log:
        log.write(f"{text}\n".encode())


def _end(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _BYTES))
        return file.read().decode(errors="replace")
