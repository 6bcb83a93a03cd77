"""Locks on folders and trials, so that only one process writes at a time. The lock file names its holder.

On a file system it is a kernel lock (`flock`), which ends with the processes that hold it, however they end. Object stores,
and file systems whose locks do not reach other hosts, get a lease, which is renewed every few seconds and expires when the
renewals stop.
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
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from etils import epath

from t2t_flax.errors import FAILURE, UserError, first_line
from t2t_flax.filesystem import atomic_write, create_file, is_remote, list_names, read_if_exists

log = logging.getLogger("t2t_flax")
NAME = ".lock"
"""Of the locked file; leases are numbered: .lock-1, .lock-2, ..."""
BEAT = 15.0
"""Seconds between two renewals of a lease."""
EXPIRY = 120.0
"""Seconds without a renewal after which another process may take a lease over. Its holder ends one `BEAT` earlier."""
LOST_HOST = 120.0
"""Seconds that a shared file system may need to free the lock of a dead host."""
_DAY = 24 * 3600
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_NO_FILE_LOCKS = (*NO_LOCKS, errno.EINVAL, errno.EBADF)
_LOCAL_LOCKS = frozenset(("nolock", "local_lock=all", "local_lock=flock", "localflock", "nobrl"))
"""Mount options of NFS, Lustre and SMB with which locks do not reach other hosts."""


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who holds a lock: host, process, command, and the time since when (UTC)."""

    host: str
    process: int
    command: str
    since: str
    started: float
    """When the process started, in seconds since the host did: process numbers are reused."""
    processes: str = ""
    """Where `process` is a number: this boot of this machine, and the container."""
    token: str = ""

    def __str__(self) -> str:
        return f"{self.command}, process {self.process} on {self.host}, since {self.since}"

    @property
    def gone(self) -> bool:
        """Whether the process is known to have ended; unknown, so False, for another host or container."""
        if self.processes != _process_space():
            return False
        try:
            return abs(_start_time(self.process) - self.started) > 2.0
        except psutil.Error:
            return True


def this_process(command: str) -> Holder:
    """This process as a holder."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    number, started = os.getpid(), round(_start_time(os.getpid()), 2)
    return Holder(socket.gethostname(), number, command, now, started, _process_space(), uuid.uuid4().hex)


def _start_time(process: int) -> float:
    """Seconds from the start of the machine to that of a process: a clock that is set does not change them."""
    return psutil.Process(process).create_time() - psutil.boot_time()


def _process_space() -> str:
    """Two processes for which this is equal see each other under the same numbers. Names of hosts are not enough: many
    machines are called `localhost`, and containers may share a name.
    """
    try:
        return f"{machine_tag()}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return machine_tag()


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
    """Locks a local file, which is created if missing; None if another process holds the lock. Raises OSError where the
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
    except OSError:
        os.close(descriptor)
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
            return _parse(file.read()) or Holder("an unknown host", 0, "another process", "an unknown time", 0.0)
    return None


def lock_folder(folder: epath.PathLike, command: str, say: Callable[[str], None] = log.warning) -> "FileLock | Lease":
    """Locks `folder`, which is created if missing, for writing. Raises UserError, naming the holder, if another process
    holds the lock. If that process is on another host, which may be dead, waits until its lock should have expired.
    """
    folder = epath.Path(folder)
    if is_remote(folder):
        return _take_lease(folder, command, say)
    folder.mkdir(parents=True, exist_ok=True)
    if _locks_stay_on_this_host(folder):
        return _take_lease(folder, command, say)
    path, start, reported = folder / NAME, time.monotonic(), False
    while True:
        try:
            lock = lock_file(path, command)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return _take_lease(folder, command, say)
        if lock:
            return lock
        holder = _read(path)
        elsewhere = holder is not None and holder.host != socket.gethostname()
        patience = LOST_HOST if elsewhere else 10.0 if holder is None or holder.gone else 0.0
        if time.monotonic() - start >= patience:
            raise _in_use(folder, holder)
        if elsewhere and not reported:
            say(f"--workdir={folder} is locked by {holder}; waiting up to {LOST_HOST:.0f} s in case that host is dead")
            reported = True
        time.sleep(0.2)


def _locks_stay_on_this_host(folder: epath.PathLike) -> bool:
    """Whether other hosts may share the file system but not its kernel locks: buckets mounted by FUSE, and network file
    systems mounted with an option that keeps locks local (nfs(5), mount.cifs(8), mount.lustre(8)).
    """
    path = Path(folder).resolve()
    inside = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    if not inside:
        return False
    mount = max(reversed(inside), key=lambda mount: len(mount.mountpoint))  # of several at one point the last one
    if mount.fstype.startswith("fuse"):
        return mount.fstype not in ("fuseblk", "fuse.fuse-overlayfs")  # local disks
    return not _LOCAL_LOCKS.isdisjoint(mount.opts.split(","))


class Lease:
    """The right to write in a folder, on storage without locks: the file `.lock-N` with the largest number there, renewed
    every `BEAT` seconds by its holder.

    A lease that was released or has expired is never removed or overwritten by others. Whoever follows creates the next
    number, at which one of any number of processes succeeds (`filesystem.create_file`), and only then removes the smaller
    ones. So the largest number never falls, and a holder that finds a larger one has lost its lease: it ends at once. It
    also ends when it could not renew its lease for so long that it may be lost.
    """

    def __init__(self, folder: epath.Path, number: int, me: Holder, renewed: float):
        self._folder, self._number, self._me, self._renewed = folder, number, me, renewed
        self._path, self._beats = _lease_path(folder, number), 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._renew, self._watch)]
        for thread in self._threads:
            thread.start()

    @classmethod
    def create(cls, folder: epath.Path, number: int, me: Holder) -> "Lease | None":
        """The lease of this number; None if another process has created it or a larger one."""
        renewed, path = _now(), _lease_path(folder, number)
        if not create_file(path, _record(me)) and _read(path) != me:
            return None
        numbers = _numbers(folder)
        # Where there is a larger one, its holder has removed `number`, which only therefore was free.
        lost = any(other > number for other in numbers)
        with contextlib.suppress(Exception):  # what stays has no effect
            for unused in [number] if lost else [other for other in numbers if other < number]:
                _lease_path(folder, unused).unlink(missing_ok=True)
        return None if lost else cls(folder, number, me, renewed)

    def release(self) -> None:
        """Stops the renewals and lets the next process in."""
        if self._stop.is_set():
            return
        self._stop.set()
        for thread in self._threads:
            thread.join()
        with contextlib.suppress(Exception):  # then it expires
            atomic_write(self._path, _record(self._me, released=True))

    def _renew(self) -> None:
        while not self._stop.wait(BEAT):
            try:
                now, largest = _now(), max(_numbers(self._folder), default=0)
                if largest > self._number:
                    self._lose(f"was taken over by {_read(_lease_path(self._folder, largest))}")
                self._beats += 1
                atomic_write(self._path, _record(self._me, beat=self._beats))
                self._renewed = now
            except Exception as error:  # noqa: BLE001 - any network error; the next beat tries again
                log.warning("could not renew %s (%s); trying again", self._path, first_line(error, limit=200))

    def _watch(self) -> None:
        """Beside `_renew`, which a store that does not answer may block."""
        while not self._stop.wait(min(1.0, BEAT / 4)):
            if (silent := _now() - self._renewed) > EXPIRY - BEAT:
                self._lose(f"was not renewed for {silent:.0f} s, so that another process may take it over")

    def _lose(self, what: str) -> None:
        log.error("%s %s; this process ends at once", self._path, what)
        os._exit(FAILURE)


def _take_lease(folder: epath.Path, command: str, say: Callable[[str], None]) -> Lease:
    """Raises UserError if another process holds the lease, after at most `EXPIRY` seconds in which its holder, which may be
    dead, shows no sign of life.
    """
    me, seen, since = this_process(command), None, 0.0
    while True:
        number = max(_numbers(folder), default=0)
        text = number and read_if_exists(_lease_path(folder, number)) or ""
        holder = _parse(text)
        expired = (number, text) == seen and time.monotonic() - since > EXPIRY
        if not number or _is_released(text) or expired or (holder and holder.gone):
            if lease := Lease.create(folder, number + 1, me):
                return lease
            winner = read_if_exists(_lease_path(folder, number + 1)) or ""
            if not _is_released(winner):
                raise _in_use(folder, _parse(winner))
            continue
        if seen is None:
            say(
                f"--workdir={folder} is locked by {holder or 'another process'}; waiting up to {EXPIRY:.0f} s for a sign of life"
            )
            seen, since = (number, text), time.monotonic()
        elif (number, text) != seen:
            raise _in_use(folder, holder)
        time.sleep(min(1.0, BEAT / 4))


def _numbers(folder: epath.Path) -> list[int]:
    """Of the leases in a folder, ascending."""
    matches = (re.fullmatch(rf"{re.escape(NAME)}-(\d+)", name) for name in list_names(folder))
    return sorted(int(match[1]) for match in matches if match)


def _lease_path(folder: epath.Path, number: int) -> epath.Path:
    return folder / f"{NAME}-{number}"


def _record(me: Holder, beat: int = 0, released: bool = False) -> bytes:
    return (json.dumps(dataclasses.asdict(me) | {"beat": beat, "released": released}) + "\n").encode()


def _is_released(text: str) -> bool:
    return _parse(text) is not None and json.loads(text).get("released") is True


def _read(path: epath.PathLike) -> Holder | None:
    return _parse(read_if_exists(path) or "")


def _parse(text: str) -> Holder | None:
    try:
        values = json.loads(text)
        return Holder(**{field.name: values[field.name] for field in dataclasses.fields(Holder)})
    except (ValueError, KeyError, TypeError):
        return None


def _now() -> float:
    """Seconds, counted also while the machine sleeps where it has such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _in_use(folder: epath.PathLike, holder: Holder | None) -> UserError:
    return UserError(
        f"--workdir={folder} is in use by another process: {holder or 'unknown'}. Only one process at a time may write there: "
        "wait until it has ended, or stop it."
    )


_inside = threading.local()


@contextlib.contextmanager
def exclusive_writer(folder: Path, command: str) -> Iterator[None]:
    """Waits until no other thread or process is in such a block for the same local `folder`, then removes the partial
    folders that killed ones left beside it (`filesystem.atomic_directory` with `machine_tag` as the tag). Blocks nest
    within a thread. On a file system without locks nobody waits and nothing is removed.
    """
    inside = _inside.__dict__.setdefault("folders", set())
    if folder in inside:
        yield
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f"{folder.name}.lock")
    lock = _wait_for_lock(path, command)
    try:
        if lock:
            _remove_abandoned(folder)
        inside.add(folder)
        yield
    finally:
        inside.discard(folder)
        _remove_lock(path, lock)


@contextlib.contextmanager
def single_writer(file: Path, command: str) -> Iterator[None]:
    """Raises UserError, naming the holder, if another thread or process is in such a block for the same local `file`. On a
    file system without locks all are let in.
    """
    path = file.with_name(f"{file.name}.lock")
    try:
        lock = _lock_removable(path, command)
    except OSError as error:
        if error.errno not in _NO_FILE_LOCKS:
            raise
        lock = None
    else:
        if lock is None:
            raise UserError(
                f"{file} is being written by {holder_of(path) or 'another process'}: wait until it has ended."
            )
    try:
        yield
    finally:
        _remove_lock(path, lock)


def _wait_for_lock(path: Path, command: str) -> FileLock | None:
    """The lock on `path`; None if the file system has no locks."""
    for attempt in itertools.count():
        try:
            lock = _lock_removable(path, command)
        except OSError as error:
            if error.errno in _NO_FILE_LOCKS:
                return None
            raise
        if lock:
            return lock
        if attempt == 10:
            log.warning("waiting for another process that writes %s (%s)", path.with_suffix(""), holder_of(path))
        time.sleep(0.2)
    raise AssertionError("unreachable")


def _lock_removable(path: Path, command: str) -> FileLock | None:
    """`lock_file` for a file that its holder removes at the end (`_remove_lock`)."""
    while lock := lock_file(path, command):
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.descriptor), path.stat()):
                return lock
        lock.release()  # the lock of a file that its previous holder has removed
    return None


def _remove_lock(path: Path, lock: FileLock | None) -> None:
    # Before the release, so that a waiting process sees that the file was removed. One of another user may have to stay.
    with contextlib.suppress(FileNotFoundError, PermissionError):
        path.unlink()
    if lock:
        lock.release()


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


def machine_tag() -> str:
    """Identifies this boot of this machine; containers that share a kernel, and so its locks, share it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]
    except OSError:
        return socket.gethostname()
