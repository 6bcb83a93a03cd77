"""One writer at a time: the right to write into a folder, or to train a trial, held by a file that names its holder.

On a file system the kernel holds the lock (`flock`): it ends with the processes that have it open, however they end. An
object store has no locks: there a lease is renewed every few seconds, and one that is no longer renewed has lapsed.
"""

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable

import psutil
from etils import epath

from t2t_flax.errors import UserError
from t2t_flax.filesystem import atomic_write, is_remote, read_if_exists

log = logging.getLogger("t2t_flax")
NAME = ".lock"
BEAT = 15.0
"""Seconds between two renewals of a lease."""
LAPSE = 75.0
"""A lease that has not been renewed for so many seconds has lapsed: its holder is gone."""
LOST_HOST = 120.0
"""Seconds that a shared file system may need to free the lock of a host that is gone."""
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who holds a lock: a process on a host, what it runs, and since when (UTC)."""

    host: str
    process: int
    command: str
    since: str
    started: float
    """When the process started, by its host's clock: process numbers are used again."""
    token: str = ""

    def __str__(self) -> str:
        return f"{self.command}, process {self.process} on {self.host}, since {self.since}"

    @property
    def gone(self) -> bool:
        """Whether it is known to have ended; of a process on another host nothing is known."""
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
    """A lock of the kernel. A child that inherits `descriptor` holds it too."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor

    def release(self) -> None:
        """Gives up this process's share; does nothing the second time."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def lock_file(path: str | os.PathLike, command: str) -> FileLock | None:
    """The lock on a local file, which is made; None where another process holds it. Raises OSError where the file system
    has no locks.
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
    """Takes an exclusive lock if no process holds one. A process that only looks (`holder_of`) shares the lock for a
    moment, which is waited for: about 50 ms at most.
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
    """Who holds the lock on a local file; None where nobody does."""
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


def lock_folder(
    folder: epath.PathLike, command: str, what: str = "--workdir", say: Callable[[str], None] = log.warning
) -> "FileLock | Lease":
    """The right to write into `folder`, which is made. Raises UserError, naming the holder, where another process has it.

    Where the holder is on another host, which may be gone, waits as long as the file system or the lease needs to free it.
    """
    folder = epath.Path(folder)
    if is_remote(folder):
        return _take_lease(folder / NAME, command, f"{what}={folder}", say)
    folder.mkdir(parents=True, exist_ok=True)
    path, began, told = folder / NAME, time.monotonic(), False
    while True:
        try:
            lock = lock_file(path, command)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return _take_lease(path, command, f"{what}={folder}", say)
        if lock:
            return lock
        found = _read(path)
        elsewhere = found is not None and found.host != socket.gethostname()
        patience = LOST_HOST if elsewhere else 10.0 if found is None or found.gone else 0.0
        if time.monotonic() - began >= patience:
            raise _taken(f"{what}={folder}", found)
        if elsewhere and not told:
            say(f"{what}={folder} is locked by {found}; waiting up to {LOST_HOST:.0f} s in case that host is gone")
            told = True
        time.sleep(0.2)


class Lease:
    """A file that its holder writes again every `BEAT` seconds. Best effort: two that find it lapsed in the same second
    agree by reading it again.
    """

    def __init__(self, path: epath.Path, me: Holder):
        self._path, self._me, self._beats = path, me, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="lease")
        self._write()

    def start(self) -> None:
        """Begins to renew it."""
        self._thread.start()

    @property
    def mine(self) -> bool:
        """Whether the file still names this process."""
        found = _read(self._path)
        return found is not None and found.token == self._me.token

    def release(self) -> None:
        """Gives it up; the file goes."""
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
            except Exception as error:  # noqa: BLE001 - any of dozens of network errors; the next beat tries again
                log.warning("could not renew %s (%s); trying again", self._path, str(error).strip()[:200])


def _take_lease(path: epath.Path, command: str, what: str, say: Callable[[str], None]) -> Lease:
    text = read_if_exists(path)
    found = _parse(text or "")
    if text is not None and not (found and found.gone):
        say(f"{what} has a lock of {found or 'another process'}; looking whether it is alive, at most {LAPSE:.0f} s")
        began = time.monotonic()
        while time.monotonic() - began < LAPSE:
            time.sleep(min(1.0, BEAT / 4))
            now = read_if_exists(path)
            if now is None:
                break
            if now != text:
                raise _taken(what, _parse(now))
    lease = Lease(path, this_process(command))
    if text is not None:
        time.sleep(min(2.0, BEAT / 4))  # another that found it lapsed too has written by now
        if not lease.mine:
            raise _taken(what, _read(path))
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


def _taken(what: str, holder: Holder | None) -> UserError:
    return UserError(
        f"{what} is being written by another process: {holder or 'it has not said which'}. One process at a time may "
        "write there: wait until that one has ended, or stop it."
    )
