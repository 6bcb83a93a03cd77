"""Hashes of source files: blocks are read side by side, and an index beside the cache spares the reading of unchanged files."""

import contextlib
import functools
import hashlib
import json
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from t2t_flax.data.progress import Report, silent
from t2t_flax.data.workers import num_cores
from t2t_flax.errors import UserError
from t2t_flax.filesystem import atomic_write, file_state, is_remote, read_if_exists
from t2t_flax.json_file import parse_json
from t2t_flax.locks import exclusive_writer

INDEX = "file_hashes.json"
BLOCK = 64 << 20
"""Bytes of a file that a thread hashes at a time."""
_READ = 1 << 20
_SETTLED = 2.0
"""Seconds after its last change from which a file enters the index: a change within one tick of the file system's clock would
not show in its times.
"""


class FileHash(NamedTuple):
    """sha256 (hex), see `file_sha256`. lines: line ends among its bytes."""

    sha256: str
    lines: int


_known: dict[str, tuple[list, FileHash]] = {}
"""The state of each file and its hash then."""


def file_sha256(path: epath.PathLike) -> str:
    """sha256 (hex) of a file's bytes; of a file longer than `BLOCK`, of the digests of its blocks. An unchanged file is read once
    in a process. Raises UserError for a file that changes meanwhile.
    """
    return hash_files([path])[0].sha256


def known_lines(path: epath.Path) -> int | None:
    """Line ends of a file that was hashed in this process."""
    known = _known.get(_name(path))
    return known[1].lines if known else None


_lines_per_byte: dict[str, float] = {}
"""Of compressed files, as far as they were read; the last one was read last."""


def note_lines(path: epath.Path, lines: int, read: int) -> None:
    """Notes that a compressed file has so many lines in its first `read` bytes."""
    name = _name(path)
    _lines_per_byte.pop(name, None)
    _lines_per_byte[name] = lines / read


def expected_lines(path: epath.Path) -> int | None:
    """The lines of a compressed file, estimated by what was read of it, or else of the last such file; None if none was read."""
    rate = _lines_per_byte.get(_name(path)) or next(reversed(_lines_per_byte.values()), None)
    return round(rate * _length(path)) if rate else None


@functools.cache
def _length(path: epath.Path) -> int:
    """Bytes of a file; an object store, which takes long to answer, is asked once."""
    return path.stat().length


def hash_files(
    paths: Iterable[epath.PathLike], index: epath.Path | None = None, report: Report = silent
) -> list[FileHash]:
    """The hash of each file. Those that neither this process nor the file `index` knows are read, by all cores, and enter it."""
    paths = [*map(epath.Path, dict.fromkeys(paths))]
    states = [file_state(path) for path in paths]
    stored = _read(index)
    new = [i for i, path in enumerate(paths) if not _recall(path, states[i], stored)]
    if not new:
        return [_known[_name(path)][1] for path in paths]
    with exclusive_writer(index, "prepare") if index else contextlib.nullcontext():
        stored = _read(index)  # by a process that has held the lock until now
        new = [i for i in new if not _recall(paths[i], states[i], stored)]
        found = dict(zip(new, _hash([paths[i] for i in new], report), strict=True))
        for i in new:
            if file_state(paths[i]) != states[i]:
                raise UserError(f"{paths[i]} changed while it was read: wait until it is complete, and start again")
            _known[_name(paths[i])] = states[i] or [], found[i]
            if (state := states[i]) and _is_settled(paths[i], state):
                stored[_name(paths[i])] = [state, *found[i]]
        if index and new:
            with contextlib.suppress(OSError):  # a folder that another account prepared, without write permission
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
    """Whether the hash of the file in this state is known."""
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
    blocks = [(path, start) for path, size in zip(paths, sizes, strict=True) for start in range(0, max(size, 1), BLOCK)]
    done, total = 0, sum(sizes)
    say = report if total > BLOCK else silent  # less takes no time
    say("hash the files", 0, total >> 20, "MiB")
    with ThreadPoolExecutor(num_cores()) as threads:  # hashlib and NumPy let threads run side by side
        results, hashes = threads.map(lambda block: _hash_block(*block), blocks), []
        for size in sizes:
            digests, lines = [], 0
            for _ in range(0, max(size, 1), BLOCK):
                read, digest, ends = next(results)
                digests.append(digest)
                done, lines = done + read, lines + ends
                say("hash the files", done >> 20, total >> 20, "MiB")
            whole = digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digests)).digest()
            hashes.append(FileHash(whole.hex(), lines))
    return hashes


def _hash_block(path: epath.Path, start: int) -> tuple[int, bytes, int]:
    """(bytes, sha256, line ends) of a block."""
    digest, left, lines = hashlib.sha256(), BLOCK, 0
    with path.open("rb") as file:
        file.seek(start)
        while left and (data := file.read(min(left, _READ))):
            digest.update(data)
            lines += int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n")))
            left -= len(data)
    return BLOCK - left, digest.digest(), lines
