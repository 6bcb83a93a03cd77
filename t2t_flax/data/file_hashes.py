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
from typing import Any

from etils import epath

from t2t_flax.data.progress import Report, silent
from t2t_flax.data.workers import num_cores
from t2t_flax.errors import UserError
from t2t_flax.files import atomic_write, file_state, is_remote, read_if_exists
from t2t_flax.json_file import parse_json
from t2t_flax.locks import exclusive_writer

INDEX = "file_hashes-3.json"
_LARGE = 64 << 20
"""Total bytes of the files above which progress is shown."""
_SETTLED = 2.0
"""Seconds that a file must stay unchanged before it enters the index.

A change within one tick of the file system's clock would not show in the file's times.
"""


_known: dict[str, tuple[list, str]] = {}
"""State of each file when it was hashed, and its sha256."""


def file_sha256(path: epath.PathLike) -> str:
    """Return the sha256 (hex) of a file's bytes.

    An unchanged file is read once in a process. Raises UserError for a file that changes meanwhile.
    """
    return hash_files([path])[0]


def hash_files(
    paths: Iterable[epath.PathLike], index: epath.Path | None = None, report: Report = silent
) -> list[str]:
    """Return the sha256 (hex) of each file.

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
        for i, sha256 in zip(new, _hash([paths[i] for i in new], report), strict=True):
            path, state = paths[i], states[i]
            if file_state(path) != state:
                raise UserError(
                    f"{path} changed while it was read: wait until it is complete, and start again"
                )
            _known[_name(path)] = state or [], sha256
            if state and _is_settled(path, state):
                stored[_name(path)] = [state, sha256]
        if index and new:
            with contextlib.suppress(OSError):  # not writable: another account prepared it
                atomic_write(index, json.dumps(stored, indent=0) + "\n")
    return [_known[_name(path)][1] for path in paths]


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
        of, sha256 = stored.get(name, ())
        if of == state:
            _known[name] = state, str(sha256)
            return True
    return False


def _is_settled(path: epath.Path, state: list) -> bool:
    return is_remote(path) or time.time_ns() - max(state[1:3]) > _SETTLED * 1e9


def _hash(paths: list[epath.Path], report: Report) -> list[str]:
    sizes = [path.stat().length for path in paths]
    say = report if sum(sizes) > _LARGE else silent
    say("hash the files", 0, len(paths), "files")
    hashes = []
    with ThreadPoolExecutor(num_cores()) as threads:  # hashlib releases the GIL
        for done, one in enumerate(threads.map(_hash_file, paths), 1):
            hashes.append(one)
            say("hash the files", done, len(paths), "files")
    return hashes


def _hash_file(path: epath.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
