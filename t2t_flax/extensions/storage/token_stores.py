"""Token stores in an object store: written on local disk and uploaded, copied to local disk once per host.

An object store has no atomic rename: meta.json is uploaded last, and the store is complete with it. This host's copies are in
the folder of the environment variable T2T_STORES, each in a folder named by its digest; those that no process has open are
removed, the least recently used first, while all have more than T2T_STORES_GB.
"""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import weakref
from pathlib import Path

import numpy as np
from etils import epath

from t2t_flax.data.token_store import TokenStore, files_of, matches, read_meta, stored_sides
from t2t_flax.errors import UserError, first_line
from t2t_flax.filesystem import atomic_directory, atomic_write, copy_file
from t2t_flax.json_file import parse_json
from t2t_flax.locks import exclusive_writer

FOLDER, LIMIT = "T2T_STORES", "T2T_STORES_GB"
"""Environment variables; see above."""
DEFAULTS = {FOLDER: "~/.cache/t2t_flax/stores", LIMIT: "200"}
log = logging.getLogger("t2t_flax")


def local_path(folder: epath.PathLike, digest: str) -> Path:
    """Where the store `folder` is written and memory-mapped: this host's copy."""
    return Path(_setting(FOLDER)).expanduser() / digest[:24]


def _setting(name: str) -> str:
    return os.environ.get(name) or DEFAULTS[name]


def find_store(folder: epath.PathLike, digest: str) -> TokenStore | None:
    """The finished store at `folder` if it has this digest, copied to local disk if needed; None if there is none. A damaged
    copy is copied again. Raises UserError for a damaged store and for a folder of something else.
    """
    folder, local = epath.Path(folder), local_path(folder, digest)
    meta = read_meta(folder)
    with exclusive_writer(local, "prepare"):
        if meta and matches(meta, digest):
            _fetch(folder, local, meta)
        elif is_intact(local, digest):  # an earlier run was stopped during the upload
            upload(folder, local)
        else:
            shutil.rmtree(local, ignore_errors=True)
            return None
        return open_local(folder, local)


def open_local(folder: epath.PathLike, local: Path) -> TokenStore:
    """Opens this host's copy of the store `folder`, which is not removed while the store is in use. The caller holds its lock."""
    store = TokenStore.open(local, epath.Path(folder))
    descriptor = os.open(local / "meta.json", os.O_RDONLY)
    weakref.finalize(store, os.close, descriptor)
    with contextlib.suppress(OSError):  # a file system without locks, on which nothing is removed
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    with contextlib.suppress(OSError):  # another account's
        os.utime(local)
    return store


def _make_room(needed: int, but: Path) -> None:
    """Removes copies, and what killed preparations left of others, until a copy `but` of `needed` bytes fits too."""
    try:
        limit = float(_setting(LIMIT)) * 1e9
    except ValueError:
        raise UserError(f"{LIMIT}={_setting(LIMIT)} is not a number of gigabytes.") from None
    found: list[tuple[float, int, Path]] = []
    for path in but.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # renamed or removed by another process
            if path.is_dir() and path != but:
                found.append((path.stat().st_mtime, _size(path), path))
    used = needed + sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if used > limit and _remove_unused(path):
            used -= size
    if used > limit:
        log.warning("%s has %.1f GB that are in use, more than %s=%s", but.parent, used / 1e9, LIMIT, _setting(LIMIT))


def _size(folder: Path) -> int:
    """Bytes of the files that are in a folder, as far as another process does not remove them meanwhile."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += os.stat(os.path.join(parent, name)).st_size
    return size


def _remove_unused(path: Path) -> bool:
    """Removes a folder unless a process writes it or has it open; whether it did."""
    copy = path.with_name(path.name.partition(".")[0])  # of DIGEST.shards-KEY and DIGEST.partial-HEX too
    with contextlib.suppress(OSError, UserError), exclusive_writer(copy, "prepare", wait=False):
        if path == copy:
            with open(path / "meta.json") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
        return True
    return False


def is_intact(folder: Path, digest: str) -> bool:
    """Whether `folder` is an intact store of this digest."""
    try:
        return TokenStore.open(folder).digest == digest != ""
    except UserError:
        return False


def upload(folder: epath.PathLike, local: Path) -> None:
    """Copies a finished local store into its object store."""
    folder = epath.Path(folder)
    _make_room(_size(local), local)
    text = (local / "meta.json").read_text()
    meta = parse_json(text)
    if read_meta(folder) == meta:  # uploaded by another host
        return
    (folder / "meta.json").unlink(missing_ok=True)
    for name in files_of(meta):
        copy_file(local / name, folder / name)
    atomic_write(folder / "meta.json", text)


def _fetch(folder: epath.Path, local: Path, meta: dict) -> None:
    if is_intact(local, meta["digest"]):
        return
    shutil.rmtree(local, ignore_errors=True)
    sides = (meta[side] for side in stored_sides(meta))
    _make_room(sum(side["tokens"] * np.dtype(side["dtype"]).itemsize + 12 * meta["pairs"] for side in sides), local)
    partial = local
    try:
        with atomic_directory(local) as partial:
            for name in files_of(meta):
                copy_file(folder / name, partial / name)
            (partial / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
            TokenStore.open(partial)
    except UserError as error:  # damaged in the object store or in transit
        raise UserError(str(error).replace(str(partial), str(folder))) from None
    except OSError as error:
        raise UserError(
            f"could not copy the token store {folder} to {local} ({first_line(error)}); rerun the same command"
        ) from error
