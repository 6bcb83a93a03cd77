"""Token stores in an object store.

They are written on local disk, uploaded, and copied to local disk once per host. meta.json is
uploaded last, and the store is complete with it. This host's copies are in the folder of the
environment variable T2T_STORES, each in a folder named by its digest.
"""

import json
import os
import re
from pathlib import Path

from etils import epath

from t2t_flax.data.token_store import TokenStore, files_of, matches, read_meta
from t2t_flax.errors import UserError, first_line
from t2t_flax.files import atomic_directory, atomic_write, copy_file, delete, expand_home
from t2t_flax.json_file import parse_json
from t2t_flax.locks import exclusive_writer

FOLDER = "T2T_STORES"
"""Environment variable; see above."""
_DEFAULT = "~/.cache/t2t_flax/stores"


def local_path(folder: epath.PathLike, digest: str) -> Path:
    """Return where the store `folder` is written and memory-mapped: this host's copy."""
    return Path(expand_home(os.environ.get(FOLDER) or _DEFAULT, FOLDER), digest[:24])


def find_store(folder: epath.PathLike, digest: str) -> TokenStore | None:
    """Return the finished store at `folder` if it has this digest, else None.

    It is copied to local disk if needed. A damaged copy is copied again. Raises UserError for a
    damaged store and for a folder of something else.
    """
    folder, local = epath.Path(folder), local_path(folder, digest)
    meta = read_meta(folder)
    with exclusive_writer(local, "prepare"):
        if meta and matches(meta, digest):
            _fetch(folder, local, meta)
        elif _is_intact(local, digest):  # an earlier run was stopped during the upload
            upload(folder, local)
        else:
            delete(local.parent, re.escape(local.name))
            return None
        return TokenStore.open(local, folder)


def upload(folder: epath.PathLike, local: Path) -> None:
    """Copy a finished local store into its object store."""
    folder = epath.Path(folder)
    text = (local / "meta.json").read_text()
    meta = parse_json(text)
    if read_meta(folder) == meta:  # uploaded by another host
        return
    (folder / "meta.json").unlink(missing_ok=True)
    for name in files_of(meta):
        copy_file(local / name, folder / name)
    atomic_write(folder / "meta.json", text)


def _is_intact(folder: Path, digest: str) -> bool:
    try:
        return TokenStore.open(folder).digest == digest != ""
    except UserError:
        return False


def _fetch(folder: epath.Path, local: Path, meta: dict) -> None:
    if _is_intact(local, meta["digest"]):
        return
    delete(local.parent, re.escape(local.name))
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
            f"could not copy the token store {folder} to {local} ({first_line(error)}); rerun the"
            " same command"
        ) from error
