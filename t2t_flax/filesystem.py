"""Files that are whole or not there, on local disk and in object stores (`gs://...`, through fsspec)."""

import contextlib
import errno
import os
import re
import sys
import uuid

from etils import epath

from t2t_flax.errors import UserError, install_hint

# Listings that fsspec remembers would hide what another host has written since. It reads this when it is imported.
os.environ.setdefault("FSSPEC_GCS", '{"use_listings_cache": false}')
if "fsspec.config" in sys.modules:
    sys.modules["fsspec.config"].conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)

_PASSING = (
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "RESOURCE_EXHAUSTED",
    "PERMISSION_DENIED",
    "Forbidden",  # as gcsfs words a 403
    "UNAUTHENTICATED",
    "ABORTED:",
)
_PASSING_NUMBERS = (
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENXIO, errno.ENODEV, errno.EBUSY, errno.EINTR,
)  # fmt: skip
_OS_ERROR = re.compile(r"\[OS error (\d+)")  # as TensorStore words it
_FULL = (
    "No space left",
    "quota",
    "Quota",
    "File too large",
    "Permission denied",
    "PERMISSION_DENIED",
    "Forbidden",
    "Read-only file",
)
_FULL_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)


_INSTALL = {
    "gs": install_hint("gcs"),
    "gcs": install_hint("gcs"),
    "s3": install_hint("s3"),
    "az": "pip install adlfs (not tested)",
    "abfs": "pip install adlfs (not tested)",
}


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
        scheme = os.fspath(path).partition("://")[0]
        remedy = _INSTALL.get(scheme) or f"install what fsspec needs for {scheme}://, which is not tested"
        raise UserError(f"{path} needs a package that is not installed ({error}): {remedy}.") from None
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise UserError(
            f"{path} cannot be reached ({first}). Is the bucket there, and may this account use it (gcloud auth "
            "application-default login, or the service account of the machine)?"
        ) from error


def check_workdir(path: epath.PathLike) -> None:
    """Raises UserError where no run can live: in object stores other than gs://, to which Orbax writes no checkpoints, and
    as `check_reachable`.
    """
    scheme, remote, _ = os.fspath(path).partition("://")
    if remote and scheme not in ("gs", "gcs"):
        raise UserError(
            f"--workdir={path}: checkpoints can be written to a file system or to gs://, not to {scheme}://. Mount the "
            "bucket (Mountpoint for S3, rclone mount), or copy the finished folder there; only data.train and the like, "
            "and data.cache, may name files there."
        )
    check_reachable(path)


def is_passing(error: BaseException) -> bool:
    """Whether an error of reading or writing comes from the storage or the memory of the moment, and says nothing about
    the file: a disk or network that fails, a store that does not answer or refuses the account, too little memory.
    """
    if isinstance(error, PermissionError | ConnectionError | TimeoutError | MemoryError):
        return True
    if getattr(error, "code", None) in (401, 403, 408, 429, 500, 502, 503, 504):  # gcsfs' HttpError
        return True
    if type(error).__module__.partition(".")[0] in ("requests", "aiohttp", "urllib3"):
        return True
    told = {int(number) for number in _OS_ERROR.findall(str(error))} | {getattr(error, "errno", None)}
    return any(word in str(error) for word in _PASSING) or not told.isdisjoint(_PASSING_NUMBERS)


def is_full(error: BaseException) -> bool:
    """Whether an error of writing is one that its user can mend: no room left, a quota, a limit, no permission."""
    return any(word in str(error) for word in _FULL) or getattr(error, "errno", None) in _FULL_NUMBERS


def fsync_file(path: epath.PathLike) -> None:
    """Returns when the content of a local file is on the disk itself; an object in a store is safe once it is written."""
    if not is_remote(path):
        _fsync(path)


def fsync_folder(path: epath.PathLike) -> None:
    """Returns when the names in a local folder (files made, renamed, removed) are on the disk itself."""
    if is_remote(path) or os.name != "posix":
        return
    try:
        _fsync(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):  # file systems that cannot sync a folder
            raise


def fsync_tree(folder: epath.PathLike) -> None:
    """`fsync_file` and `fsync_folder` for all that lies in a local folder; what another process removes is left out."""
    if is_remote(folder):
        return
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                fsync_file(os.path.join(parent, name))
        with contextlib.suppress(FileNotFoundError):
            fsync_folder(parent)


def _fsync(path: epath.PathLike) -> None:
    descriptor = os.open(os.fspath(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_if_there(path: epath.PathLike) -> str | None:
    """The text of a file; None where there is none. Unlike `exists`, which is False for any error, raises OSError for a
    disk or a network that fails.
    """
    try:
        return epath.Path(path).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None


def write_whole(path: epath.PathLike, data: str | bytes) -> None:
    """Writes text (UTF-8) or bytes so that no reader sees half a file; a failure (a full disk, a power cut) leaves what
    was there before. Folders on the way are made. On local disk by a temporary name, synced before it gets its own; an
    object appears whole by itself.
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
        fsync_file(partial)
        partial.replace(path)
        fsync_folder(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def numbered(folder: epath.PathLike) -> list[int]:
    """The numbers that are names in a folder, such as checkpoints, ascending; none where there is no folder."""
    return sorted(int(name) for name in names_in(folder) if name.isdigit())


def names_in(folder: epath.PathLike) -> list[str]:
    """What a folder holds, sorted; nothing where there is no folder. Raises OSError for a disk or a network that fails."""
    folder = epath.Path(folder)
    if is_remote(folder) and not folder.exists():
        return []
    try:
        return sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


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
    fsync_folder(target.parent)
    fsync_folder(source.parent)


def _store_of(path: epath.PathLike):
    import fsspec

    return fsspec.core.url_to_fs(os.fspath(path))
