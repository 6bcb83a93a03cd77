"""Objects in stores as files, through fsspec.

`files.dispatch_by_storage` finds these functions by their names.
"""

import contextlib
import os
import re
import tempfile
import typing
from collections.abc import Iterator
from typing import BinaryIO

from etils import epath

from t2t_flax.errors import UserError, first_line, install_hint
from t2t_flax.extensions.storage.leases import lock_folder as lock_folder
from t2t_flax.extensions.storage.mirror import open_growing_files as open_growing_files
from t2t_flax.extensions.storage.token_stores import find_store as find_store
from t2t_flax.extensions.storage.token_stores import local_path as local_path
from t2t_flax.extensions.storage.token_stores import upload as upload
from t2t_flax.files import delete

_REFUSED = ("PERMISSION_DENIED", "Forbidden")
_TRANSIENT = (
    *_REFUSED,
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "RESOURCE_EXHAUSTED",
    "UNAUTHENTICATED",
    "ABORTED:",
)
_EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3"}


def check_reachable(path: epath.PathLike) -> None:
    """Raise UserError if a package for the store or the permission is missing."""
    try:
        epath.Path(path).exists()
    except ImportError as error:
        scheme = os.fspath(path).partition("://")[0]
        extra = _EXTRAS.get(scheme)
        remedy = (
            install_hint(extra)
            if extra
            else f"install the fsspec package for {scheme}:// (not tested)"
        )
        raise UserError(
            f"{path} needs a package that is not installed ({error}): {remedy}."
        ) from None
    except Exception as error:
        raise UserError(
            f"{path} cannot be reached ({first_line(error)}). Does the bucket exist, and may this"
            " account use it (gcloud auth application-default login, or the service account of the"
            " machine)?"
        ) from error


def check_workdir(path: epath.PathLike) -> None:
    """Raise UserError for stores other than gs://.

    Orbax cannot write checkpoints to them. Also raises UserError as `check_reachable`.
    """
    scheme = os.fspath(path).partition("://")[0]
    if scheme not in ("gs", "gcs"):
        raise UserError(
            f"--workdir={path}: checkpoints can be written to a file system or to gs://, not to"
            f" {scheme}://. Mount the bucket (Mountpoint for S3, rclone mount), or copy the"
            " finished folder there; only the text (data.train ...) and data.cache may be there."
        )
    check_reachable(path)


def real_path(path: epath.PathLike) -> epath.Path:
    """Return the path itself: there are no links."""
    return epath.Path(path)


def is_transient(error: BaseException) -> bool:
    """Return True if a store does not answer, or refuses the account."""
    return (
        getattr(error, "code", None) in (401, 403, 408, 429, 500, 502, 503, 504)  # gcsfs' HttpError
        or type(error).__module__.partition(".")[0] in ("requests", "aiohttp", "urllib3")
        or any(word in str(error) for word in _TRANSIENT)
    )


def is_write_refused(error: BaseException) -> bool:
    """Return True if a store refuses the account."""
    return any(word in str(error) for word in _REFUSED)


def fsync_tree(folder: epath.PathLike) -> None:
    """Do nothing: an object is safe once it is written."""


def file_state(path: epath.PathLike) -> list | None:
    """Return the size, and the generation of Google's store or the ETag of others.

    See `files`.
    """
    store, name = _store_of(path)
    about = store.info(name)
    version = next((about[key] for key in ("generation", "ETag", "etag") if about.get(key)), None)
    return version and [about["size"], str(version)]


def read_if_exists(path: epath.PathLike) -> str | None:
    """See `files`; it takes one request.

    So the text is whole while another host rewrites the object.
    """
    store, name = _store_of(path)
    try:
        return store.cat_file(name).decode()
    except FileNotFoundError:
        return None


def atomic_write(path: epath.PathLike, data: str | bytes) -> None:
    """Write an object, which appears whole."""
    store, name = _store_of(path)
    store.pipe_file(name, data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def atomic_file(path: epath.PathLike) -> Iterator[BinaryIO]:
    """Yield a local file, which is uploaded when the block ends without an error."""
    with tempfile.NamedTemporaryFile() as file:
        yield typing.cast(BinaryIO, file)
        file.flush()
        copy_file(file.name, path)


def copy_file(source: epath.PathLike, target: epath.PathLike) -> None:
    """Copy a file from local disk to a store or back, in constant memory."""
    if "://" in os.fspath(target):
        store, name = _store_of(target)
        store.put_file(os.fspath(source), name)
    else:
        store, name = _store_of(source)
        store.get_file(name, os.fspath(target))


def list_names(folder: epath.PathLike) -> list[str]:
    """See `files`."""
    folder = epath.Path(folder)
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def replace_folder(new: epath.Path, path: epath.Path, replace: bool) -> None:
    """See `files`, but not atomic."""
    if path.exists() and not replace:
        raise UserError(f"{path} already exists: name a new folder.")
    delete(path.parent, re.escape(path.name))
    move_folder(new, path)


def move_folder(source: epath.PathLike, target: epath.PathLike) -> None:
    """Copy the objects of a folder one by one, then remove them."""
    (store, name), (_, other) = _store_of(source), _store_of(target)
    names = store.find(name)
    for path in names:
        store.cp_file(path, other + path.removeprefix(name))
    store.rm(names)


def exclusive_writer(
    path: epath.PathLike, command: str, *, wait: bool = True
) -> contextlib.AbstractContextManager[None]:
    """Return a context without waiting: objects appear whole."""
    return contextlib.nullcontext()


def is_finished(checkpoint: epath.PathLike) -> bool:
    """Return True if a checkpoint is whole: Orbax writes a last file into it."""
    return (epath.Path(checkpoint) / "commit_success.txt").exists()


def mark_unfinished(checkpoint: epath.PathLike) -> None:
    """Delete the last file of a checkpoint: without it the others are unfinished."""
    (epath.Path(checkpoint) / "commit_success.txt").unlink(missing_ok=True)


def _store_of(path: epath.PathLike):
    import fsspec

    return fsspec.core.url_to_fs(os.fspath(path))
