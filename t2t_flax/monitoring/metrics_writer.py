"""Metrics as JSON lines."""

import json
import logging
from pathlib import Path
from typing import Any

from etils import epath

from t2t_flax.filesystem import atomic_write, by_storage

log = logging.getLogger("t2t_flax")


class MetricsWriter:
    """Appends to WORKDIR/metrics.jsonl.

    Lines after `resume_step` are dropped, so that the file of a resumed run reads as if it had never stopped. A file with
    damaged lines is copied to metrics.jsonl.damaged. It grows where `open_growing_files` says.
    """

    def __init__(self, workdir: epath.Path, *, resume_step: int, evaluation_due: bool = False):
        workdir = epath.Path(workdir)
        lines, whole = _read(workdir / "metrics.jsonl")
        if not whole:
            atomic_write(workdir / "metrics.jsonl.damaged", (workdir / "metrics.jsonl").read_bytes())
        # The resumed run writes again what came after the checkpoint at `resume_step`: a change of the config, and an
        # evaluation of which the checkpoint does not know.
        rewritten = ("config_changed", *(("valid_",) if evaluation_due else ()))
        kept = [
            line
            for line in lines
            if line["step"] < resume_step
            or line["step"] == resume_step
            and not any(key.startswith(rewritten) for key in line)
        ]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        self._files = open_growing_files(workdir)
        path = epath.Path(self._files.local) / "metrics.jsonl"
        if not path.exists() or path.read_bytes() != text.encode():
            atomic_write(path, text)
        self._file = path.open("a")

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Appends `{"step": step, ...}`."""
        self._file.write(json.dumps({"step": step} | values) + "\n")
        self._file.flush()

    def send(self) -> None:
        """Returns when the lines so far are stored."""
        self._files.send()

    def close(self) -> None:
        self._file.close()
        self._files.close()


def read_metrics(workdir: str | epath.Path) -> list[dict[str, Any]]:
    """The lines of WORKDIR/metrics.jsonl. A last line that a kill has cut is left out; so are damaged lines, with a warning."""
    return _read(epath.Path(workdir) / "metrics.jsonl")[0]


def _read(path: epath.Path) -> tuple[list[dict[str, Any]], bool]:
    """The lines of a file, and whether none is damaged."""
    try:
        lines = path.read_bytes().decode(errors="replace").split("\n")
    except FileNotFoundError:
        return [], True
    valid, damaged = [], []
    for number, line in enumerate(lines[:-1], 1):
        try:
            values = json.loads(line) if line else None
        except (ValueError, RecursionError):
            values = {}
        if isinstance(values, dict) and isinstance(values.get("step"), int):
            valid.append(values)
        elif line:
            damaged.append(number)
    if damaged:
        log.warning("%s: %d lines are damaged and left out, the first is line %d", path, len(damaged), damaged[0])
    return valid, not damaged


class GrowingFiles:
    """A workdir on disk: `local` is the workdir itself."""

    def __init__(self, workdir: epath.Path):
        self.local = Path(workdir)

    def send(self) -> None:
        """All is there."""

    def close(self) -> None:
        """All is there."""


@by_storage
def open_growing_files(workdir: epath.Path) -> GrowingFiles:
    """Where files of a workdir can grow: in `local`."""
    return GrowingFiles(workdir)
