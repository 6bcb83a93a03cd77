"""Files that are whole or not there, on local disk and in object stores (`gs://...`, through fsspec)."""

import errno
import os
import sys
import uuid

from etils import epath

from t2t_flax.errors import UserError

# Listings that fsspec remembers would hide what another host has written since. It reads this when it is imported.
os.environ.setdefault("FSSPEC_GCS", '{"use_listings_cache": false}')
if "fsspec.config" in sys.modules:
    sys.modules["fsspec.config"].conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)

_PASSING = (
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "RESOURCE_EXHAUSTED",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "ABORTED:",
)
_PASSING_NUMBERS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE)
_FULL = (
    "No space left",
    "quota",
    "Quota",
    "File too large",
    "Permission denied",
    "PERMISSION_DENIED",
    "Read-only file",
)
_FULL_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)


def is_remote(path: epath.PathLike) -> bool:
    """Whether the path lies in an object store, where a file cannot be renamed, appended to or memory-mapped."""
    return "://" in os.fspath(path)


def check_reachable(path: epath.PathLike) -> None:
    """Raises UserError where `path` is in an object store for which a package or the permission is missing."""
    if not is_remote(path):
        return
    try:
        epath.Path(path).exists()
    except ImportError as error:
        raise UserError(
            f"{path} needs a package that is not installed ({error}): pip install 't2t-flax[gcs]'."
        ) from None
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise UserError(
            f"{path} cannot be reached ({first}). Is the bucket there, and may this account use it (gcloud auth "
            "application-default login, or the service account of the machine)?"
        ) from error


def is_passing(error: BaseException) -> bool:
    """Whether an error of reading or writing comes from the storage or the memory of the moment, and says nothing about
    the file: a store that does not answer or refuses the account, too little memory.
    """
    if isinstance(error, PermissionError | ConnectionError | TimeoutError | MemoryError):
        return True
    if getattr(error, "code", None) in (401, 403, 408, 429, 500, 502, 503, 504):  # gcsfs' HttpError
        return True
    return any(word in str(error) for word in _PASSING) or getattr(error, "errno", None) in _PASSING_NUMBERS


def is_full(error: BaseException) -> bool:
    """Whether an error of writing is one that its user can mend: no room left, a quota, a limit, no permission."""
    return any(word in str(error) for word in _FULL) or getattr(error, "errno", None) in _FULL_NUMBERS


def write_whole(path: epath.PathLike, data: str | bytes) -> None:
    """Writes text (UTF-8) or bytes so that no reader sees half a file; a failure (a full disk) leaves what was there
    before. Folders on the way are made. On local disk by a temporary name; an object appears whole by itself.
    """
    path = epath.Path(path)
    data = data.encode() if isinstance(data, str) else data
    if is_remote(path):
        store, name = _store_of(path)
        store.pipe_file(name, data)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial-{uuid.uuid4().hex}")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def numbered(folder: epath.PathLike) -> list[int]:
    """The numbers that are names in a folder, such as checkpoints, ascending; none where there is no folder."""
    folder = epath.Path(folder)
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit()) if folder.exists() else []


def copy_file(source: epath.PathLike, target: epath.PathLike) -> None:
    """Copies a file from local disk to an object store or back, in constant memory; an object appears whole."""
    if is_remote(target):
        store, name = _store_of(target)
        store.put_file(os.fspath(source), name)
    else:
        store, name = _store_of(source)
        store.get_file(name, os.fspath(target))


def move_folder(source: epath.PathLike, target: epath.PathLike) -> None:
    """Gives a folder another name, which must be free. In an object store its objects are copied one by one and removed."""
    source, target = epath.Path(source), epath.Path(target)
    if is_remote(source):
        (store, name), (_, other) = _store_of(source), _store_of(target)
        names = store.find(name)
        for path in names:
            store.cp_file(path, other + path.removeprefix(name))
        store.rm(names)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)


def _store_of(path: epath.PathLike):
    import fsspec

    return fsspec.core.url_to_fs(os.fspath(path))
