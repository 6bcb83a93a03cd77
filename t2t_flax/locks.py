"""Locks on folders and trials, so that only one process writes at a time. The lock file names its holder.

It is a kernel lock (`flock`), which ends with the processes that hold it, however they end. File systems whose locks do not
reach other hosts need a lease, see `filesystem.object_storage`.
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
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import psutil
from etils import epath

from t2t_flax.errors import UserError
from t2t_flax.filesystem import by_storage, object_storage, read_if_exists
from t2t_flax.json_file import parse_json

log = logging.getLogger("t2t_flax")
NAME = ".lock"
"""The file in a folder that is locked."""
LOST_HOST = 120.0
"""Seconds that a shared file system may need to free the lock of a dead host."""
_DAY = 24 * 3600
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)
_LOCAL_LOCKS = frozenset(("nolock", "local_lock=all", "local_lock=flock", "localflock", "nobrl"))
"""Mount options of NFS, Lustre and SMB with which locks do not reach other hosts."""


class _NoLocks(OSError):
    """The file system has no locks."""


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
    return UserError(
        f"--workdir={folder} is in use by another process: {holder or 'unknown'}. Only one process at a time may write there: "
        "wait until it has ended, or stop it."
    )


def machine_tag() -> str:
    """Identifies this boot of this machine; containers that share a kernel, and so its locks, share it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]
    except OSError:
        return socket.gethostname()


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
    """Locks a local file, which is created if missing; None if another process holds the lock. Raises an OSError where the
    file system has no locks.
    """
    try:
        descriptor, writable = os.open(path, os.O_RDWR | os.O_CREAT, 0o666), True
    except PermissionError:  # another user's file: locking it needs no right to write
        descriptor, writable = os.open(path, os.O_RDONLY), False
    try:
        if not _try_exclusive(descriptor):
            os.close(descriptor)
            return None
        if not writable:
            return FileLock(descriptor)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, (json.dumps(dataclasses.asdict(this_process(command))) + "\n").encode(), 0)
    except OSError as error:
        os.close(descriptor)
        if error.errno in NO_LOCKS:
            raise _NoLocks(*error.args) from error
        raise
    return FileLock(descriptor)


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
def lock_folder(folder: epath.PathLike, command: str, say: Callable[[str], None] = log.warning) -> Lock:
    """Locks `folder`, which is created if missing, for writing. Raises UserError, naming the holder, if another process
    holds the lock. If that process is on another host, which may be dead, waits until its lock should have expired.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not _locks_stay_on_this_host(folder):
        with contextlib.suppress(_NoLocks):
            return _wait_for_folder(folder, command, say)
    return object_storage(folder).lock_folder(folder, command, say)


def _wait_for_folder(folder: Path, command: str, say: Callable[[str], None]) -> FileLock:
    path, start, reported = folder / NAME, time.monotonic(), False
    while not (lock := lock_file(path, command)):
        holder = parse_holder(read_if_exists(path))
        elsewhere = holder is not None and holder.host != socket.gethostname()
        # Children of a killed holder may keep the lock for a moment.
        patience = LOST_HOST if elsewhere else 0.0 if holder and psutil.pid_exists(holder.process) else 10.0
        if time.monotonic() - start >= patience:
            raise in_use(folder, holder)
        if elsewhere and not reported:
            say(f"--workdir={folder} is locked by {holder}; waiting up to {LOST_HOST:.0f} s in case that host is dead")
            reported = True
        time.sleep(0.2)
    return lock


def _locks_stay_on_this_host(folder: epath.PathLike) -> bool:
    """Whether other hosts may share the file system but not its kernel locks: buckets mounted by FUSE, and network file
    systems mounted with an option that keeps locks local (nfs(5), mount.cifs(8), mount.lustre(8)).
    """
    path = folder.resolve()
    inside = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    if not inside:
        return False
    mount = max(reversed(inside), key=lambda mount: len(mount.mountpoint))  # of several at one point the last one
    if mount.fstype.startswith("fuse"):
        return mount.fstype not in ("fuseblk", "fuse.fuse-overlayfs")  # local disks
    return not _LOCAL_LOCKS.isdisjoint(mount.opts.split(","))


_inside = threading.local()


@by_storage
@contextlib.contextmanager
def exclusive_writer(folder: epath.PathLike, command: str) -> Iterator[None]:
    """Waits until no other thread or process is in such a block for the same `folder`, then removes the partial folders that
    killed ones left beside it (`filesystem.atomic_directory` with `machine_tag` as the tag). Blocks nest within a thread. On a
    file system without locks nobody waits and nothing is removed.
    """
    folder, inside = Path(folder), _inside.__dict__.setdefault("folders", set())
    if folder in inside:
        yield
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with single_writer(folder, command, wait=True) as lock:
        if lock:
            _remove_abandoned(folder)
        inside.add(folder)
        try:
            yield
        finally:
            inside.discard(folder)


@contextlib.contextmanager
def single_writer(file: Path, command: str, *, wait: bool = False) -> Iterator[FileLock | None]:
    """Raises UserError, naming the holder, if another thread or process is in such a block for the same local `file`; with
    `wait`, waits for its end. On a file system without locks all are let in, and get None.
    """
    path, lock = file.with_name(f"{file.name}.lock"), None
    with contextlib.suppress(_NoLocks):
        for attempt in itertools.count():
            if lock := _lock_removable(path, command):
                break
            if not wait:
                by = holder_of(path) or "another process"
                raise UserError(f"{file} is being written by {by}: wait until it has ended.")
            if attempt == 10:
                log.warning("waiting for another process that writes %s (%s)", file, holder_of(path))
            time.sleep(0.2)
    try:
        yield lock
    finally:
        # Before the release, so that a waiting process sees that the file was removed. One of another user may have to stay.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            path.unlink()
        if lock:
            lock.release()


def _lock_removable(path: Path, command: str) -> FileLock | None:
    """`lock_file` for a file that its holder removes at the end (`single_writer`)."""
    while lock := lock_file(path, command):
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.descriptor), path.stat()):
                return lock
        lock.release()  # the lock of a file that its previous holder has removed
    return None


def _remove_abandoned(folder: Path) -> None:
    """Deletes what killed writers of `folder` left behind. The caller holds the lock, so no writer of this machine is
    active; of other machines, which the lock may not reach, only what has not been modified for a day is deleted.
    """
    prefix = f"{folder.name}.partial-"
    for path in folder.parent.iterdir():
        if not path.name.startswith(prefix):
            continue
        try:
            written = max(item.stat().st_mtime for item in (path, *path.iterdir()))
        except OSError:
            continue
        if path.name.startswith(f"{prefix}{machine_tag()}-") or time.time() - written > _DAY:
            shutil.rmtree(path, ignore_errors=True)
