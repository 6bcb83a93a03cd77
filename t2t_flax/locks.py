"""Locks, so that only one process writes at a time. The lock file names its holder.

It is a kernel lock (`flock`), which ends with the process that holds it, however it ends.
"""

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import itertools
import json
import logging
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from etils import epath

from t2t_flax.errors import UserError
from t2t_flax.filesystem import PARTIAL, by_storage, delete, read_if_exists
from t2t_flax.json_file import parse_json

log = logging.getLogger("t2t_flax")
NAME = ".lock"
"""The file in a folder that is locked."""
LOST_HOST = 120.0
"""Seconds that a shared file system may need to free the lock of a dead host."""
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)
"""Of the OSError on a file system without locks."""


class Lock(Protocol):
    """The right to write in a folder."""

    def release(self) -> None:
        """Lets the next process in; does nothing the second time."""


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who holds a lock: host, process, command, and the time since when (UTC)."""

    host: str
    process: int
    command: str
    since: str

    def __str__(self) -> str:
        return f"{self.command}, process {self.process} on {self.host}, since {self.since}"


def this_process(command: str) -> Holder:
    """This process as a holder."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Holder(socket.gethostname(), os.getpid(), command, now)


def parse_holder(text: str | None, kind: type[Holder] = Holder) -> Any:
    """The holder, an object of `kind`, that a lock file names; None for any other text."""
    try:
        values = parse_json(text or "")
        if type(values["process"]) is not int:
            return None
        return kind(**{field.name: values[field.name] for field in dataclasses.fields(kind)})
    except (ValueError, KeyError, TypeError):
        return None


def in_use(folder: epath.PathLike, holder: Holder | None) -> UserError:
    """The error of a folder that another process has locked."""
    return UserError(
        f"--workdir={folder} is in use by another process: {holder or 'unknown'}. Only one process at a time may write there: "
        "wait until it has ended, or stop it."
    )


class FileLock:
    """A kernel lock. A child process that inherits `descriptor` holds it too."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor

    def release(self) -> None:
        """Releases this process's share of the lock; does nothing the second time."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def lock_file(path: str | os.PathLike, command: str) -> FileLock | None:
    """Locks a local file, which is created if missing; None if another process holds the lock. Raises an OSError, see `NO_LOCKS`,
    where the file system has no locks.
    """
    try:
        lock = FileLock(os.open(path, os.O_RDWR | os.O_CREAT, 0o666))
    except PermissionError as error:  # another user's file: locking it needs no right to write
        if not os.path.exists(path):
            raise error from None
        lock = FileLock(os.open(path, os.O_RDONLY))
    try:
        if not _try_exclusive(lock.descriptor):
            lock.release()
            return None
        if not _is_at(path, lock.descriptor):  # its previous holder has removed it
            lock.release()
            return lock_file(path, command)
    except OSError:
        lock.release()
        raise
    with contextlib.suppress(OSError):  # the lock counts without a name too
        os.truncate(lock.descriptor, 0)
        os.pwrite(lock.descriptor, (json.dumps(dataclasses.asdict(this_process(command))) + "\n").encode(), 0)
    return lock


def _is_at(path: str | os.PathLike, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _try_exclusive(descriptor: int) -> bool:
    """Takes an exclusive lock unless a process holds one. Waits about 50 ms at most for processes that share the lock for a
    moment to read its holder (`holder_of`).
    """
    for _ in range(25):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(0.002)
    return False


def holder_of(path: str | os.PathLike) -> Holder | None:
    """The holder of the lock on a local file; None if it is free."""
    try:
        file = open(path)  # noqa: SIM115
    except FileNotFoundError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return parse_holder(file.read()) or Holder("an unknown host", 0, "another process", "an unknown time")
    return None


@by_storage
def lock_folder(folder: epath.PathLike, command: str) -> Lock:
    """Lock `folder`, which is created if missing, for writing.

    Raises UserError, naming the holder, if another process holds the lock, and where the file system has no locks. The server of
    a shared file system frees the lock of a dead host within `LOST_HOST` seconds.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    start, warned, holder = time.monotonic(), False, None
    try:
        while True:
            if lock := lock_file(folder / NAME, command):
                return lock
            holder = parse_holder(read_if_exists(folder / NAME))
            elsewhere = holder is not None and holder.host != socket.gethostname()
            # Without a holder: the process that has just taken the lock is writing who it is.
            if time.monotonic() - start >= (LOST_HOST if elsewhere else 0.0 if holder else 2.0):
                break
            if elsewhere and not warned:
                warned = True
                text = "--workdir=%s is locked by %s; waiting up to %.0f s in case that host is dead"
                log.warning(text, folder, holder, LOST_HOST)
            time.sleep(0.05)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise UserError(
            f"{folder} is on a file system without locks ({error.strerror}). Use another file system."
        ) from None
    raise in_use(folder, holder)


@by_storage
@contextlib.contextmanager
def exclusive_writer(path: epath.PathLike, command: str, *, wait: bool = True) -> Iterator[bool]:
    """Waits until no other thread or process is in such a block for the same file or folder; without `wait`, raises UserError,
    naming the holder. Then removes what killed ones left beside it (`filesystem.atomic_directory`). On a file system without
    locks, and in a folder that may only be read, nobody waits and nothing is removed. Yields whether all others are kept out, on
    other hosts too.
    """
    path = Path(path)
    name, lock = path.with_name(f"{path.name}.t2t-lock"), None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for attempt in itertools.count():
            if lock := lock_file(name, command):
                break
            if not wait:
                raise UserError(
                    f"{path} is being written by {holder_of(name) or 'another process'}: wait until it has ended."
                )
            if attempt == 10:
                log.warning("waiting for another process that writes %s (%s)", path, holder_of(name))
            time.sleep(0.2)
    except OSError as error:
        if error.errno not in (*NO_LOCKS, errno.EACCES, errno.EROFS):
            raise
    try:
        alone = bool(lock)
        if alone:
            with contextlib.suppress(OSError):
                delete(path.parent, re.escape(path.name) + PARTIAL)
        yield alone
    finally:
        # Before the release, so that a waiting process sees that the file was removed. One of another user may have to stay.
        with contextlib.suppress(OSError):
            name.unlink()
        if lock:
            lock.release()
