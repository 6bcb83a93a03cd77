"""Files and folders that appear whole or not at all, on local disk and in object stores (`gs://...`)."""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from etils import epath

from t2t_flax.errors import UserError
from t2t_flax.registry import OBJECT_STORAGE, absent_extension

_TRANSIENT = (
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "RESOURCE_EXHAUSTED",
    "PERMISSION_DENIED",
    "Forbidden",  # gcsfs for 403
    "UNAUTHENTICATED",
    "ABORTED:",
)
_TRANSIENT_NUMBERS = (
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENXIO, errno.ENODEV, errno.EBUSY, errno.EINTR,
)  # fmt: skip
_OS_ERROR = re.compile(r"\[OS error (\d+)")  # in the messages of TensorStore
_REFUSED = (
    "No space left",
    "quota",
    "Quota",
    "File too large",
    "Permission denied",
    "PERMISSION_DENIED",
    "Forbidden",
    "Read-only file",
)
_REFUSED_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)


def is_remote(path: epath.PathLike) -> bool:
    """Whether the path is in an object store, where a file cannot be renamed, appended to or memory-mapped."""
    return "://" in os.fspath(path)


def object_storage(path: epath.PathLike) -> Any:
    """The module that reads, writes and locks `path`, which is in an object store, or needs a lease because locks of its file
    system do not reach other hosts; see `registry.OBJECT_STORAGE`. Raises UserError where no extension has one.
    """
    for module in OBJECT_STORAGE.load_all():
        return module
    why = "is in an object store" if is_remote(path) else "is on a file system whose locks do not reach other hosts"
    raise UserError(f"{path} {why}.{absent_extension('paths', 'scheme://')}")


def check_reachable(path: epath.PathLike) -> None:
    """Raises UserError if `path` is in an object store for which a package or the permission is missing."""
    if is_remote(path):
        object_storage(path).check_reachable(path)


def check_workdir(path: epath.PathLike) -> None:
    """Raises UserError if a run cannot be stored in `path`: an object store that Orbax cannot write to, and as
    `check_reachable`.
    """
    if is_remote(path):
        object_storage(path).check_workdir(path)


def is_transient(error: BaseException) -> bool:
    """Whether an error comes from the state of the storage or the memory, not from the file: a failing disk or network,
    a store that does not answer or refuses the account, too little memory.
    """
    if isinstance(error, PermissionError | ConnectionError | TimeoutError | MemoryError):
        return True
    if getattr(error, "code", None) in (401, 403, 408, 429, 500, 502, 503, 504):  # gcsfs' HttpError
        return True
    if type(error).__module__.partition(".")[0] in ("requests", "aiohttp", "urllib3"):
        return True
    numbers = {int(number) for number in _OS_ERROR.findall(str(error))} | {getattr(error, "errno", None)}
    return any(word in str(error) for word in _TRANSIENT) or not numbers.isdisjoint(_TRANSIENT_NUMBERS)


def is_write_refused(error: BaseException) -> bool:
    """Whether a failed write is for the user to fix: no space left, a quota, a size limit, no permission."""
    return any(word in str(error) for word in _REFUSED) or getattr(error, "errno", None) in _REFUSED_NUMBERS


def fsync_file(path: epath.PathLike) -> None:
    """Returns when the content of a local file is on the disk; an object in a store is safe once it is written."""
    if not is_remote(path):
        _fsync(path)


def fsync_folder(path: epath.PathLike) -> None:
    """Returns when the names in a local folder (files created, renamed, removed) are on the disk."""
    if is_remote(path) or os.name != "posix":
        return
    try:
        _fsync(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):  # file systems that cannot sync a folder
            raise


def fsync_tree(folder: epath.PathLike) -> None:
    """`fsync_file` and `fsync_folder` for everything in a local folder; files that another process removes are skipped."""
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


def read_if_exists(path: epath.PathLike) -> str | None:
    """The text of a file; None if there is none. Raises OSError for a failing disk or network, for which `exists` would
    return False. One request to an object store, so that the text is whole while another host rewrites the object.
    """
    try:
        if is_remote(path):
            return object_storage(path).read(path).decode()
        return epath.Path(path).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None


def atomic_write(path: epath.PathLike, data: str | bytes, *, parents: bool = True) -> None:
    """Writes text (UTF-8) or bytes so that no reader sees half a file; a failure (a full disk, a power cut) leaves the old
    content. Creates parent folders unless not `parents`. On local disk the file is written under a temporary name, synced and
    renamed; an object in a store appears whole by itself.
    """
    path = epath.Path(path)
    data = data.encode() if isinstance(data, str) else data
    if is_remote(path):
        object_storage(path).write(path, data)
        return
    if parents:
        path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial-{uuid.uuid4().hex}")
    try:
        with open(partial, "wb") as file:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)  # says that its writer is alive
            file.write(data)
            file.flush()
            fsync_file(partial)
            partial.replace(path)
        fsync_folder(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def create_file(path: epath.PathLike, data: bytes) -> bool:
    """Writes a file if there is none of that name, else returns False. Of any number of processes on any hosts that try at
    once, one succeeds: O_EXCL on file systems, a conditional request to object stores. Parent folders must exist.

    False may also mean that this process has succeeded and the answer of a store was lost: read the file to know.
    """
    if is_remote(path):
        return object_storage(path).create_file(path, data)
    try:
        file = open(path, "xb")  # noqa: SIM115
    except FileExistsError:
        return False
    with file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return True


def refuse_existing(path: epath.PathLike, flag: str) -> bool:
    """False if there is no such folder or file. Raises UserError if there is. Also as `keep` of `atomic_directory`."""
    if epath.Path(path).exists():
        raise UserError(f"{flag}={path} already exists: name a new folder.")
    return False


@contextlib.contextmanager
def atomic_directory(
    path: epath.PathLike, *, tag: str = "", keep: Callable[[], bool] = lambda: False
) -> Iterator[epath.Path]:
    """A new folder to fill; gets the name `path` when the block ends without an error, after a sync to disk.

    Until then it is `NAME.partial-[TAG-]HEX` beside it; after an error, or if the process is killed before the end,
    `path` is what it was. A folder that is at `path` by then is replaced, unless `keep()` is true: then it stays, and the
    new one is removed. In an object store the last step is not atomic: its objects are copied one by one.
    """
    path = epath.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial-{tag + '-' if tag else ''}{uuid.uuid4().hex}")
    partial.mkdir()
    try:
        yield partial
        fsync_tree(partial)
        if is_remote(path):
            if not (path.exists() and keep()):
                path.rmtree(missing_ok=True)
                move_folder(partial, path)
        else:
            _replace_folder(partial, path, keep)
            fsync_folder(path.parent)
    finally:
        if is_remote(partial):
            partial.rmtree(missing_ok=True)
        else:
            shutil.rmtree(partial, ignore_errors=True)


def _replace_folder(new: epath.Path, path: epath.Path, keep: Callable[[], bool]) -> None:
    while True:
        try:
            os.rename(new, path)  # epath would refuse an empty folder and hide the errno
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if keep():
            return
        old = new.with_name(f"{new.name}-old-{uuid.uuid4().hex[:8]}")
        with contextlib.suppress(FileNotFoundError):  # another process may have moved it away first
            os.rename(path, old)
        _remove_folder(old)


def _remove_folder(folder: epath.Path) -> None:
    """A process that was about to create a file in it when it was moved does so in its new place: hence several attempts."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.005)


def list_numbers(folder: epath.PathLike) -> list[int]:
    """Names in a folder that are numbers, such as those of checkpoints, ascending; none if there is no folder."""
    return sorted(int(name) for name in list_names(folder) if name.isdigit())


def list_names(folder: epath.PathLike) -> list[str]:
    """Names in a folder, sorted; none if there is no folder. Raises OSError for a failing disk or network."""
    folder = epath.Path(folder)
    if is_remote(folder) and not folder.exists():
        return []
    try:
        return sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def copy_file(source: epath.PathLike, target: epath.PathLike) -> None:
    """Copies a file from local disk to an object store or back, in constant memory; an object appears whole."""
    object_storage(target if is_remote(target) else source).copy_file(source, target)


def move_folder(source: epath.PathLike, target: epath.PathLike) -> None:
    """Renames a folder; the new name must be free. In an object store its objects are copied one by one, then removed."""
    source, target = epath.Path(source), epath.Path(target)
    if is_remote(source):
        object_storage(source).move_folder(source, target)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)
    fsync_folder(target.parent)
    fsync_folder(source.parent)
