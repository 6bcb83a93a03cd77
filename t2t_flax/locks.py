"""Locks on folders and trials, so that only one process writes at a time. The lock file names its holder.

On a file system it is a kernel lock (`flock`), which ends with the processes that hold it, however they end. Object stores
have no locks: there a lease is renewed every few seconds, and expires when the renewals stop.
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
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from etils import epath

from t2t_flax.errors import UserError, first_line
from t2t_flax.filesystem import atomic_write, is_remote, read_if_exists

log = logging.getLogger("t2t_flax")
NAME = ".lock"
BEAT = 15.0
"""Seconds between two renewals of a lease."""
EXPIRY = 75.0
"""Seconds without a renewal after which a lease has expired: its holder is gone."""
LOST_HOST = 120.0
"""Seconds that a shared file system may need to free the lock of a dead host."""
_DAY = 24 * 3600
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_NO_FILE_LOCKS = (*NO_LOCKS, errno.EINVAL, errno.EBADF)


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who holds a lock: host, process, command, and the time since when (UTC)."""

    host: str
    process: int
    command: str
    since: str
    started: float
    """When the process started, by its host's clock: process numbers are reused."""
    token: str = ""

    def __str__(self) -> str:
        return f"{self.command}, process {self.process} on {self.host}, since {self.since}"

    @property
    def gone(self) -> bool:
        """Whether the process is known to have ended; unknown, so False, for another host."""
        if self.host != socket.gethostname():
            return False
        try:
            return abs(psutil.Process(self.process).create_time() - self.started) > 2.0
        except psutil.Error:
            return True


def this_process(command: str) -> Holder:
    """This process as a holder."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    started = round(psutil.Process().create_time(), 2)
    return Holder(socket.gethostname(), os.getpid(), command, now, started, uuid.uuid4().hex)


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
        return _take_lease(folder / NAME, command, f"--workdir={folder}", say)
    folder.mkdir(parents=True, exist_ok=True)
    path, start, reported = folder / NAME, time.monotonic(), False
    while True:
        try:
            lock = lock_file(path, command)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return _take_lease(path, command, f"--workdir={folder}", say)
        if lock:
            return lock
        holder = _read(path)
        elsewhere = holder is not None and holder.host != socket.gethostname()
        patience = LOST_HOST if elsewhere else 10.0 if holder is None or holder.gone else 0.0
        if time.monotonic() - start >= patience:
            raise _in_use(f"--workdir={folder}", holder)
        if elsewhere and not reported:
            say(f"--workdir={folder} is locked by {holder}; waiting up to {LOST_HOST:.0f} s in case that host is dead")
            reported = True
        time.sleep(0.2)


class Lease:
    """A file that its holder rewrites every `BEAT` seconds. Best effort: of two processes that find it expired in the same
    second, the one that reads its own name again wins.
    """

    def __init__(self, path: epath.Path, me: Holder):
        self._path, self._me, self._beats = path, me, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="lease")
        self._write()

    def start(self) -> None:
        """Starts the renewals."""
        self._thread.start()

    @property
    def mine(self) -> bool:
        """Whether the file still names this process."""
        holder = _read(self._path)
        return holder is not None and holder.token == self._me.token

    def release(self) -> None:
        """Stops the renewals and deletes the file."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(Exception):
            if self.mine:
                self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        atomic_write(self._path, json.dumps(dataclasses.asdict(self._me) | {"beat": self._beats}) + "\n")
        self._beats += 1

    def _renew(self) -> None:
        while not self._stop.wait(BEAT):
            try:
                if not self.mine and _read(self._path) is not None:
                    log.error("%s was taken over by %s; this process ends at once", self._path, _read(self._path))
                    os._exit(1)
                self._write()
            except Exception as error:  # noqa: BLE001 - any network error; the next beat tries again
                log.warning("could not renew %s (%s); trying again", self._path, first_line(error, limit=200))


def _take_lease(path: epath.Path, command: str, label: str, say: Callable[[str], None]) -> Lease:
    text = read_if_exists(path)
    holder = _parse(text or "")
    if text is not None and not (holder and holder.gone):
        say(f"{label} is locked by {holder or 'another process'}; waiting up to {EXPIRY:.0f} s for a sign of life")
        start = time.monotonic()
        while time.monotonic() - start < EXPIRY:
            time.sleep(min(1.0, BEAT / 4))
            now = read_if_exists(path)
            if now is None:
                break
            if now != text:
                raise _in_use(label, _parse(now))
    lease = Lease(path, this_process(command))
    if text is not None:
        time.sleep(min(2.0, BEAT / 4))  # another process that found it expired has written by now
        if not lease.mine:
            raise _in_use(label, _read(path))
    lease.start()
    return lease


def _read(path: epath.PathLike) -> Holder | None:
    return _parse(read_if_exists(path) or "")


def _parse(text: str) -> Holder | None:
    try:
        values = json.loads(text)
        return Holder(**{field.name: values[field.name] for field in dataclasses.fields(Holder)})
    except (ValueError, KeyError, TypeError):
        return None


def _in_use(label: str, holder: Holder | None) -> UserError:
    return UserError(
        f"{label} is in use by another process: {holder or 'unknown'}. Only one process at a time may write there: wait "
        "until it has ended, or stop it."
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
