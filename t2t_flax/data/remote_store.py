"""Token stores in an object store: written on local disk and sent there, copied to local disk once per host.

An object store has no atomic rename: meta.json is sent last, and makes the files beside it a store.
"""

import contextlib
import fcntl
import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from t2t_flax.data.store import SIDES, TokenStore, read_meta
from t2t_flax.errors import UserError
from t2t_flax.files import copy_file, is_remote, write_whole

LOCAL = "~/.cache/t2t_flax/stores"
"""Folder of this host's copies, each in a folder named by its digest."""


def place_of(folder: epath.PathLike, digest: str) -> Path:
    """Where the store `folder` is written and memory-mapped: itself, or this host's copy of what is in an object store."""
    return Path(LOCAL).expanduser() / digest[:24] if is_remote(folder) else Path(folder)


def find(folder: epath.PathLike, digest: str) -> TokenStore | None:
    """The finished store at `folder` if it was made from the same (`digest`), copied to local disk where needed.

    Raises UserError for a folder of something else, and for damage; a damaged copy is made anew.
    """
    folder, place = epath.Path(folder), place_of(folder, digest)
    meta = read_meta(folder)
    there = meta is not None and meta.get("digest") == digest
    if not is_remote(folder):
        return TokenStore.open(place, folder) if there else None
    if there:
        _fetch(folder, place, meta)
    elif _is_whole(place, digest):  # an earlier run was stopped while it sent the store
        send(place, folder)
    else:
        shutil.rmtree(place, ignore_errors=True)
        return None
    return TokenStore.open(place, folder)


def send(place: Path, folder: epath.PathLike) -> None:
    """Copies a finished local store to where all hosts see it; nothing to do where that is itself."""
    folder = epath.Path(folder)
    if not is_remote(folder):
        return
    (folder / "meta.json").unlink(missing_ok=True)
    for name in _files():
        copy_file(place / name, folder / name)
    write_whole(folder / "meta.json", (place / "meta.json").read_text())


def _fetch(folder: epath.Path, place: Path, meta: dict) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with _locked(place.with_name(f"{place.name}.lock")):
        if _is_whole(place, meta["digest"]):
            return
        partial = place.with_name(f"{place.name}.partial-{uuid.uuid4().hex}")
        partial.mkdir()
        try:
            for name in _files():
                copy_file(folder / name, partial / name)
            (partial / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
            TokenStore.open(partial)  # raises where a file is not of the size that meta.json says
            shutil.rmtree(place, ignore_errors=True)
            partial.rename(place)
        except OSError as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            raise UserError(
                f"could not copy the token store {folder} to {place} ({first}); give the command again"
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _is_whole(place: Path, digest: str) -> bool:
    try:
        return TokenStore.open(place).digest == digest
    except UserError:
        return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Of several processes on this host one copies and the others wait for it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _files() -> list[str]:
    return [f"{side}.{part}" for side in SIDES for part in ("ids", "lengths", "offsets")]
