"""Token stores in an object store: written on local disk and sent there, copied to local disk once per host.

An object store has no atomic rename: meta.json is sent last, and makes the files beside it a store.
"""

import json
import shutil
import uuid
from pathlib import Path

from etils import epath

from t2t_flax.data.store.integrity import FILES
from t2t_flax.data.store.token_store import FORMAT_VERSION, TokenStore, read_meta
from t2t_flax.data.store.writer import is_whole, put_in_place, turn
from t2t_flax.errors import UserError, first_line
from t2t_flax.filesystem import atomic_write, copy_file, is_remote

LOCAL = "~/.cache/t2t_flax/stores"
"""Folder of this host's copies, each in a folder named by its digest."""


def place_of(folder: epath.PathLike, digest: str) -> Path:
    """Where the store `folder` is written and memory-mapped: itself, or this host's copy of what is in an object store."""
    return Path(LOCAL).expanduser() / digest[:24] if is_remote(folder) else Path(folder)


def find(folder: epath.PathLike, digest: str) -> TokenStore | None:
    """The finished store at `folder` if it was made from the same (`digest`), copied to local disk where needed; None also
    where an older version wrote it. Raises UserError for a folder of something else, and for damage; a damaged copy is
    made anew.
    """
    folder, place = epath.Path(folder), place_of(folder, digest)
    meta = read_meta(folder)
    there = _same(meta, digest)
    if not is_remote(folder):
        return TokenStore.open(place, folder) if there else None
    with turn(place):
        if there:
            _fetch(folder, place, meta)
        elif is_whole(place, digest):  # an earlier run was stopped while it sent the store
            send(place, folder)
        else:
            shutil.rmtree(place, ignore_errors=True)
            return None
    return TokenStore.open(place, folder)


def _same(meta: dict | None, digest: str) -> bool:
    return meta is not None and (meta.get("digest"), meta["format_version"]) == (digest, FORMAT_VERSION)


def send(place: Path, folder: epath.PathLike) -> None:
    """Copies a finished local store to where all hosts see it; nothing to do where that is itself."""
    folder = epath.Path(folder)
    if not is_remote(folder):
        return
    meta = (place / "meta.json").read_text()
    if read_meta(folder) == read_meta(place):  # another host was faster
        return
    (folder / "meta.json").unlink(missing_ok=True)
    for name in FILES:
        copy_file(place / name, folder / name)
    atomic_write(folder / "meta.json", meta)


def _fetch(folder: epath.Path, place: Path, meta: dict) -> None:
    if is_whole(place, meta["digest"]):
        return
    partial = place.with_name(f"{place.name}.partial-{uuid.uuid4().hex}")
    partial.mkdir()
    try:
        for name in FILES:
            copy_file(folder / name, partial / name)
        (partial / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
        TokenStore.open(partial)
        shutil.rmtree(place, ignore_errors=True)
        put_in_place(partial, place, meta["digest"])
    except UserError as error:  # damaged there, or on the way
        raise UserError(str(error).replace(str(partial), str(folder))) from None
    except OSError as error:
        raise UserError(
            f"could not copy the token store {folder} to {place} ({first_line(error)}); rerun the same command"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
