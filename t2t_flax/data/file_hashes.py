"""Hashes of source files, with an index that spares reading unchanged files.

The index lies beside the cache.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from t2t_flax.data.compression import HEAD, form_of
from t2t_flax.data.progress import Report, silent
from t2t_flax.data.workers import num_cores
from t2t_flax.errors import UserError
from t2t_flax.files import atomic_write, file_state, is_remote, read_if_exists
from t2t_flax.json_file import parse_json
from t2t_flax.locks import exclusive_writer

INDEX = "file_hashes-2.json"
_BLOCK = 1 << 20
_LARGE = 64 << 20
"""Total bytes of the files above which progress is shown."""
_SETTLED = 2.0
"""Seconds that a file must stay unchanged before it enters the index.

A change within one tick of the file system's clock would not show in the file's times.
"""


class FileHash(NamedTuple):
    """Hash of a file.

    Attributes:
        sha256: sha256 of the file's bytes, in hex.
        lines: number of line ends in the file; 0 for a compressed one.
    """

    sha256: str
    lines: int


_known: dict[str, tuple[list, FileHash]] = {}
"""State of each file when it was hashed, and its hash."""


def file_sha256(path: epath.PathLike) -> str:
    """Return the sha256 (hex) of a file's bytes.

    An unchanged file is read once in a process. Raises UserError for a file that changes meanwhile.
    """
    return hash_files([path])[0].sha256


def known_lines(path: epath.Path) -> int | None:
    """Return the line ends of a file that this process has hashed; None if unknown."""
    known = _known.get(_name(path))
    return known[1].lines or None if known else None


def hash_files(
    paths: Iterable[epath.PathLike], index: epath.Path | None = None, report: Report = silent
) -> list[FileHash]:
    """Return the hash of each file.

    Files that neither this process nor the file `index` knows are read in parallel and enter the
    index.
    """
    paths = [*map(epath.Path, dict.fromkeys(paths))]
    states = [file_state(path) for path in paths]
    stored = _read(index)
    new = [i for i, path in enumerate(paths) if not _recall(path, states[i], stored)]
    if not new:
        return [_known[_name(path)][1] for path in paths]
    with exclusive_writer(index, "prepare") if index else contextlib.nullcontext():
        stored = _read(index)  # another process may have held the lock until now
        new = [i for i in new if not _recall(paths[i], states[i], stored)]
        found = dict(zip(new, _hash([paths[i] for i in new], report), strict=True))
        for i in new:
            if file_state(paths[i]) != states[i]:
                raise UserError(
                    f"{paths[i]} changed while it was read: wait until it is complete, and start"
                    " again"
                )
            _known[_name(paths[i])] = states[i] or [], found[i]
            if (state := states[i]) and _is_settled(paths[i], state):
                stored[_name(paths[i])] = [state, *found[i]]
        if index and new:
            with contextlib.suppress(OSError):  # not writable: another account prepared it
                atomic_write(index, json.dumps(stored, indent=0) + "\n")
    return [found[i] if i in found else _known[_name(path)][1] for i, path in enumerate(paths)]


def _name(path: epath.Path) -> str:
    return os.fspath(path) if is_remote(path) else os.path.abspath(path)


def _read(index: epath.Path | None) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        stored = parse_json(index and read_if_exists(index) or "{}")
        return stored if isinstance(stored, dict) else {}
    return {}


def _recall(path: epath.Path, state: list | None, stored: dict[str, Any]) -> bool:
    """Return whether the hash of the file in this state is known."""
    name = _name(path)
    if not state:
        return False
    if name in _known and _known[name][0] == state:
        return True
    with contextlib.suppress(ValueError, TypeError):
        of, sha256, lines = stored.get(name, ())
        if of == state:
            _known[name] = state, FileHash(str(sha256), int(lines))
            return True
    return False


def _is_settled(path: epath.Path, state: list) -> bool:
    return is_remote(path) or time.time_ns() - max(state[1:3]) > _SETTLED * 1e9


def _hash(paths: list[epath.Path], report: Report) -> list[FileHash]:
    sizes = [path.stat().length for path in paths]
    say = report if sum(sizes) > _LARGE else silent
    say("hash the files", 0, len(paths), "files")
    hashes = []
    with ThreadPoolExecutor(num_cores()) as threads:  # hashlib and NumPy release the GIL
        for done, one in enumerate(threads.map(_hash_file, paths), 1):
            hashes.append(one)
            say("hash the files", done, len(paths), "files")
    return hashes


def _hash_file(path: epath.Path) -> FileHash:
    digest, lines = hashlib.sha256(), 0
    with path.open("rb") as file:
        form = form_of(file.read(HEAD))
        file.seek(0)
        while data := file.read(_BLOCK):
            digest.update(data)
            lines += int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n")))
    return FileHash(digest.hexdigest(), 0 if form else lines)
