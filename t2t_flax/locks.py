"""Locks: one process at a time writes in a folder.

The lock file has a line about its holder. These kernel locks (`flock`) end with the process that
holds them, however it ends.
"""

import contextlib
import datetime
import errno
import logging
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from etils import epath
from filelock import FileLock, Timeout

from t2t_flax.errors import UserError
from t2t_flax.files import PARTIAL, delete, dispatch_by_storage

log = logging.getLogger("t2t_flax")
NAME = ".lock"
"""Name of the locked file in a workdir."""
LOST_HOST = 120.0
"""Seconds that a shared file system may need to free the lock of a dead host."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)
"""Numbers of the OSError on a file system without locks."""


class Lock(Protocol):
    """Right to write in a folder."""

    def release(self) -> None:
        """Let the next process in; do nothing the second time."""


def this_process(command: str) -> str:
    """Return the line about this process as a holder."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{command}, process {os.getpid()} on {socket.gethostname()}, since {now}"


def in_use(folder: epath.PathLike, holder: str) -> UserError:
    """Return the error for a folder that another process has locked."""
    return UserError(
        f"--workdir={folder} is in use by another process: {holder or 'unknown'}. Only one process"
        " at a time may write there: wait until it has ended, or stop it."
    )


def _file_lock(path: Path, command: str) -> FileLock:
    """Return a lock that is not taken yet. Child processes do not inherit it."""

    def write_holder(descriptor: int) -> None:
        with contextlib.suppress(OSError):  # the lock counts without a name too
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"{this_process(command)}\n".encode(), 0)

    # The mode lets other users of a shared cache wait for this process.
    return FileLock(
        path, mode=0o666, thread_local=False, fallback_to_soft=False, on_acquired=write_holder
    )


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()[:200]
    return ""


@dispatch_by_storage
def lock_folder(folder: epath.PathLike, command: str) -> Lock:
    """Lock `folder`, which is created if missing, for writing.

    Raises UserError, naming the holder, if another process holds the lock, and on a file system
    without locks. The server of a shared file system frees the lock of a dead host within
    `LOST_HOST` seconds.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lock = _file_lock(folder / NAME, command)
    try:
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0)
            return lock
        holder = _holder(folder / NAME)
        if holder and f" on {socket.gethostname()}," not in holder:
            text = "--workdir=%s is locked by %s; waiting up to %.0f s in case that host is dead"
            log.warning(text, folder, holder, LOST_HOST)
            with contextlib.suppress(Timeout):
                lock.acquire(timeout=LOST_HOST)
                return lock
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        text = (
            f"{folder} is on a file system without locks ({error.strerror}). Use another file"
            " system."
        )
        raise UserError(text) from None
    raise in_use(folder, holder)


@dispatch_by_storage
@contextlib.contextmanager
def exclusive_writer(path: epath.PathLike, command: str, *, wait: bool = True) -> Iterator[None]:
    """Wait until no other thread or process is in such a block for the same path.

    Removes files that killed processes left beside it (`files.atomic_directory`). On a file
    system without locks, and in a read-only folder, nobody waits and nothing is removed.

    Args:
        wait: if False, raise UserError, naming the holder, instead of waiting.
    """
    path = Path(path)
    name = path.with_name(f"{path.name}.t2t-lock")
    lock = _file_lock(name, command)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=2.0 if wait else 0.1)
        except Timeout:
            if not wait:
                raise UserError(
                    f"{path} is being written by {_holder(name)}: wait until it has ended."
                ) from None
            log.warning("waiting for another process that writes %s (%s)", path, _holder(name))
            lock.acquire(poll_interval=0.2)
    except OSError as error:
        if error.errno not in (*_NO_LOCKS, errno.EACCES, errno.EROFS):
            raise
    try:
        if lock.is_locked:
            with contextlib.suppress(OSError):
                delete(path.parent, re.escape(path.name) + PARTIAL)
        yield
    finally:
        # Before the release, so that a waiting process sees that the file was removed. The file of
        # another user can be undeletable.
        with contextlib.suppress(OSError):
            name.unlink()
        lock.release()
