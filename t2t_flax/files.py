"""Files and folders that appear whole or not at all.

Functions marked `dispatch_by_storage` have a twin for object stores.
"""

import contextlib
import errno
import fcntl
import functools
import importlib
import os
import re
import tempfile
import typing
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from etils import epath

from t2t_flax.errors import UserError
from t2t_flax.registry import load_extensions

PARTIAL = r"\.partial-[0-9a-f]{32}"
"""Pattern of the suffix of incomplete files and folders.

`atomic_file` and `atomic_directory` append it until they are complete.
"""
_TRANSIENT_NUMBERS = (
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT,
    errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH,
    errno.ENXIO, errno.ENODEV, errno.EBUSY, errno.EINTR,
)  # fmt: skip
_OS_ERROR = re.compile(r"\[OS error (\d+)")  # in the messages of TensorStore
_REFUSED = (
    "No space left",
    "quota",
    "Quota",
    "File too large",
    "Permission denied",
    "Read-only file",
)
_REFUSED_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def expand_home(path: epath.PathLike, name: str) -> str:
    """Return the path with the home folder in place of a leading `~`.

    Raises UserError, beginning with `name`, if this process has no home folder, as in some
    containers.
    """
    expanded = os.path.expanduser(os.fspath(path))
    if expanded.startswith("~"):
        raise UserError(
            f"{name}: there is no home folder for {path}: set HOME, or name another folder."
        )
    return expanded


def is_remote(path: epath.PathLike) -> bool:
    """Return whether the path is in an object store.

    Renaming, appending and memory-mapping are impossible there.
    """
    return "://" in os.fspath(path)


object_storage = ""
"""Name of the module with the twins for object stores; an extension sets it."""


def _twin(name: str, path: epath.PathLike) -> Any:
    """Return the extension's function of this name. Raises UserError if there is none."""
    load_extensions()
    if not object_storage:
        raise UserError(f"{path} is in an object store, which no extension opens.")
    return getattr(importlib.import_module(object_storage), name)


def _storage_says(name: str, error: BaseException) -> bool:
    """Return what the extension says about an error; False if there is none."""
    load_extensions()
    return bool(object_storage) and _twin(name, "")(error)


def dispatch_by_storage(function: _Function) -> _Function:
    """Call the extension's twin of a function for paths in an object store.

    The twin has the same name, and the first argument is the path.
    """

    @functools.wraps(function)
    def chosen(path: epath.PathLike, *arguments, **named):
        twin = _twin(function.__name__, path) if is_remote(path) else function
        return twin(path, *arguments, **named)

    return typing.cast(_Function, chosen)


@dispatch_by_storage
def check_reachable(path: epath.PathLike) -> None:
    """Raise UserError if an object store is not reachable.

    It needs its package and the permission.
    """


@dispatch_by_storage
def check_workdir(path: epath.PathLike) -> None:
    """Raise UserError if `path` is in an object store that cannot hold a workdir.

    It is not reachable, or Orbax cannot write to it.
    """


@dispatch_by_storage
def real_path(path: epath.PathLike) -> epath.Path:
    """Return the absolute path without symbolic links."""
    return epath.Path(os.path.realpath(path))


def is_transient(error: BaseException) -> bool:
    """Return whether an error gives no information about the file.

    Such are errors of a failing disk or network, of a store that does not answer or refuses the
    account, and of too little memory.
    """
    numbers = {int(number) for number in _OS_ERROR.findall(str(error))} | {
        getattr(error, "errno", None)
    }
    return (
        isinstance(error, PermissionError | ConnectionError | TimeoutError | MemoryError)
        or not numbers.isdisjoint(_TRANSIENT_NUMBERS)
        or _storage_says("is_transient", error)
    )


def is_write_refused(error: BaseException) -> bool:
    """Return whether the user must fix a failed write.

    Causes are no space, a quota, a size limit, no permission.
    """
    return (
        any(word in str(error) for word in _REFUSED)
        or getattr(error, "errno", None) in _REFUSED_NUMBERS
        or _storage_says("is_write_refused", error)
    )


def check_can_write(folder: epath.PathLike, remedy: str) -> None:
    """Raise UserError, ending with the remedy, if a folder cannot be written to.

    A missing folder is tried at its nearest parent. Object stores are not tried.
    """
    path = Path(os.path.abspath(folder))
    if is_remote(folder):
        return
    try:
        with tempfile.TemporaryFile(
            dir=next(parent for parent in (path, *path.parents) if parent.exists())
        ):
            pass
    except OSError as error:
        raise UserError(f"{folder} cannot be written to ({error.strerror}): {remedy}.") from None


def fsync_file(path: epath.PathLike) -> None:
    """Return when the content of a local file is on the disk."""
    descriptor = os.open(os.fspath(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(path: epath.PathLike) -> None:
    """Return when the names in a local folder are on the disk."""
    try:
        fsync_file(path)
    except OSError as error:
        # Some file systems cannot sync a folder.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise


@dispatch_by_storage
def fsync_tree(folder: epath.PathLike) -> None:
    """Return when everything in a folder is on the disk.

    Files that another process removes are skipped.
    """
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                fsync_file(os.path.join(parent, name))
        with contextlib.suppress(FileNotFoundError):
            fsync_folder(parent)


@dispatch_by_storage
def file_state(path: epath.PathLike) -> list | None:
    """Return JSON values that change when the file does; None if there are none.

    They are size, times and inode. The change time exposes a file restored with its old
    modification time.
    """
    stat = os.stat(path)
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


@dispatch_by_storage
def read_if_exists(path: epath.PathLike) -> str | None:
    """Return the text of a file; None if there is none.

    Raises OSError for a failing disk or network, where `exists` would return False.
    """
    try:
        return epath.Path(path).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None


@dispatch_by_storage
def atomic_write(path: epath.PathLike, data: str | bytes) -> None:
    """Write text (UTF-8) or bytes under a temporary name, sync and rename the file.

    Creates parent folders. No reader sees half a file; a full disk or a power cut leaves the old
    content.
    """
    with atomic_file(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@dispatch_by_storage
@contextlib.contextmanager
def atomic_file(path: epath.PathLike) -> Iterator[BinaryIO]:
    """Open a file to write, as `atomic_write`.

    After an error in the block, the old file stays.
    """
    path = epath.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial-{uuid.uuid4().hex}")
    try:
        with _locked(partial) as file:
            yield file
            file.flush()
            fsync_file(partial)
            partial.replace(path)
        fsync_folder(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _locked(path: epath.Path) -> BinaryIO:
    """Open a new file to write, locked while its writer is alive (see `delete`)."""
    while True:
        file = open(path, "wb")
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists():
            return file
        file.close()  # removed before it was locked


def refuse_existing(path: epath.PathLike, flag: str) -> None:
    """Raise UserError if there is such a folder or file."""
    if epath.Path(path).exists():
        raise UserError(f"{flag}={path} already exists: name a new folder.")


@contextlib.contextmanager
def atomic_directory(path: epath.PathLike, *, replace: bool = True) -> Iterator[epath.Path]:
    """Make a folder to fill, and name it `path` at the end.

    It is synced and gets the name when the block ends without an error. Until then it is
    `NAME.partial-HEX`, so an error or a kill leaves `path` unchanged. A folder at `path` is
    replaced; without `replace`, UserError is raised.
    """
    path = epath.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial-{uuid.uuid4().hex}")
    partial.mkdir()
    try:
        yield partial
        fsync_tree(partial)
        replace_folder(partial, path, replace)
    finally:
        with contextlib.suppress(OSError):
            delete(partial.parent, re.escape(partial.name))


@dispatch_by_storage
def replace_folder(new: epath.Path, path: epath.Path, replace: bool) -> None:
    """Rename `new` to `path`.

    A folder there is replaced; without `replace`, UserError is raised.
    """
    while True:
        try:
            os.rename(new, path)  # epath would refuse an empty folder and hide the errno
            return fsync_folder(path.parent)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if not replace:
            raise UserError(f"{path} already exists: name a new folder.")
        old = new.with_name(f"{new.name}-old-{uuid.uuid4().hex[:8]}")
        with contextlib.suppress(FileNotFoundError):  # another process may have moved it away first
            os.rename(path, old)
        with contextlib.suppress(OSError):
            delete(old.parent, re.escape(old.name))


def delete(folder: epath.PathLike, names: str) -> None:
    """Delete the files and folders in `folder` whose whole names match a pattern.

    Every clean-up calls this. Files whose living writer has locked them (`atomic_file`), and
    unwritable files, stay. Raises OSError.

    Args:
        names: pattern of names that only this project gives, because others can keep files there.
    """
    for name in filter(re.compile(names).fullmatch, list_names(folder)):
        path = epath.Path(folder) / name
        if path.is_dir():
            path.rmtree(missing_ok=True)
        elif is_remote(path):
            path.unlink(missing_ok=True)
        else:  # open for writing, as NFS asks of such a lock
            with (
                contextlib.suppress(FileNotFoundError, BlockingIOError, PermissionError),
                open(path, "r+b") as file,
            ):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def list_numbers(folder: epath.PathLike) -> list[int]:
    """Return the numbers among the names in a folder, ascending; none without it."""
    return sorted(int(name) for name in list_names(folder) if name.isdigit())


@dispatch_by_storage
def list_names(folder: epath.PathLike) -> list[str]:
    """Return the names in a folder, sorted; none without a folder.

    Raises OSError for a failing disk or network.
    """
    try:
        return sorted(path.name for path in epath.Path(folder).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def copy_file(source: epath.PathLike, target: epath.PathLike) -> None:
    """Copy a file from local disk to an object store or back.

    This takes constant memory, and an object appears whole.
    """
    _twin("copy_file", target if is_remote(target) else source)(source, target)


@dispatch_by_storage
def move_folder(source: epath.PathLike, target: epath.PathLike) -> None:
    """Rename a folder within its folder; the new name must be free."""
    epath.Path(source).rename(target)
    fsync_folder(epath.Path(target).parent)
