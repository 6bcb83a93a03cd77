"""Exported models that are kept on disk, by a digest of what they were made from."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from t2t_flax.extensions.interop.safetensors_file import flatten
from t2t_flax.filesystem import atomic_directory
from t2t_flax.json_file import parse_json
from t2t_flax.locks import exclusive_writer

KEPT = 8
"""Exported models that stay in a folder: those used last."""
_CONTENT = "content.json"
_UNREADABLE = (OSError, ValueError, RuntimeError)
"""A missing or damaged model: files are missing, digests differ, or another process removes it just now."""
Loaded = TypeVar("Loaded")


def digest_of(params: Any, *others: Any) -> str:
    """Of parameters (a tree of arrays) and of other values by their JSON text."""
    digest = hashlib.sha256(json.dumps(others, sort_keys=True).encode())
    for path, x in sorted(flatten(params).items()):
        digest.update(f"{path} {x.dtype} {x.shape}".encode())
        digest.update(np.ascontiguousarray(x).data)
    return digest.hexdigest()[:16]


def open_exported(folder: Path, name: str, write: Callable[[Path], None], load: Callable[[Path], Loaded]) -> Loaded:
    """`load(folder / name)`, the exported model of that name.

    write(path) fills a new one; a damaged one is written again. The digests beside a model find damage, not a model that
    somebody else put there: `folder` must be one that only its user writes to. Only one process writes at a time, the others
    wait for it; each that uses a model keeps it from being removed. Raises OSError if the folder cannot be written to.
    """
    with contextlib.suppress(*_UNREADABLE):
        return _load(folder / name, load)
    with exclusive_writer(folder / name, "the export for CTranslate2"):
        with contextlib.suppress(*_UNREADABLE):  # written by the process that was waited for
            return _load(folder / name, load)
        with atomic_directory(folder / name) as new:
            write(Path(new))
            (Path(new) / _CONTENT).write_text(json.dumps(_digests(Path(new))))
        loaded = _load(folder / name, load)
        _remove_oldest(folder, keep=name)
        return loaded


def _load(folder: Path, load: Callable[[Path], Loaded]) -> Loaded:
    """Raises OSError or ValueError for a missing or damaged model."""
    if parse_json((folder / _CONTENT).read_bytes()) != _digests(folder):
        raise ValueError(f"{folder} is damaged")
    with contextlib.suppress(OSError):  # another user's
        os.utime(folder)
    return load(folder)


def _digests(folder: Path) -> dict[str, str]:
    names = sorted(path.name for path in folder.iterdir() if path.name != _CONTENT)
    digests = {}
    for name in names:
        with open(folder / name, "rb") as file:
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _remove_oldest(folder: Path, keep: str) -> None:
    """Removes all but the `KEPT` models used last, and `keep`."""
    used = {}
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if (path / _CONTENT).exists() and path.name != keep:
                used[path] = path.stat().st_mtime
    for path in sorted(used, key=used.__getitem__, reverse=True)[KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
