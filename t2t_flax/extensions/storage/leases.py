"""Leases on folders, for storage without locks that all hosts respect: object stores, some network file systems."""

import contextlib
import dataclasses
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from pathlib import Path

import psutil
from etils import epath

from t2t_flax.errors import FAILURE, first_line
from t2t_flax.filesystem import atomic_write, is_remote, list_names, read_if_exists
from t2t_flax.json_file import parse_json
from t2t_flax.locks import NAME, Holder, in_use, parse_holder
from t2t_flax.locks import this_process as _this_process

log = logging.getLogger("t2t_flax")
BEAT = 15.0
"""Seconds between two renewals of a lease."""
EXPIRY = 120.0
"""Seconds without a renewal after which another process may take a lease over. Its holder ends one `BEAT` earlier."""


@dataclasses.dataclass(frozen=True)
class LeaseHolder(Holder):
    """Who holds a lease."""

    started: float
    """When the process started, in seconds since the host did: process numbers are reused."""
    processes: str
    """Where `process` is a number: this boot of this machine, and the container."""
    token: str

    @property
    def gone(self) -> bool:
        """Whether the process is known to have ended; unknown, so False, for another host or container."""
        if self.processes != _process_space():
            return False
        try:
            return abs(_start_time(self.process) - self.started) > 2.0
        except psutil.Error:
            return True


def this_process(command: str) -> LeaseHolder:
    """This process as a holder."""
    started = round(_start_time(os.getpid()), 2)
    me = vars(_this_process(command))
    return LeaseHolder(**me, started=started, processes=_process_space(), token=uuid.uuid4().hex)


def _start_time(process: int) -> float:
    """Seconds from the start of the machine to that of a process: a clock that is set does not change them."""
    return psutil.Process(process).create_time() - psutil.boot_time()


def _process_space() -> str:
    """Two processes for which this is equal see each other under the same numbers. Names of hosts are not enough: many
    machines are called `localhost`, and containers may share a name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()


def _holder_in(text: str | None) -> LeaseHolder | None:
    return parse_holder(text, LeaseHolder)


class Lease:
    """The right to write in a folder, on storage without locks: the file `.lock-N` with the largest number there, renewed
    every `BEAT` seconds by its holder.

    A lease that was released or has expired is never removed or overwritten by others. Whoever follows creates the next
    number, at which one of any number of processes succeeds (`create_file`), and only then removes the smaller
    ones. So the largest number never falls, and a holder that finds a larger one has lost its lease: it ends at once. It
    also ends when it could not renew its lease for so long that it may be lost.
    """

    def __init__(self, folder: epath.Path, number: int, me: LeaseHolder, renewed: float):
        self._folder, self._number, self._me, self._renewed = folder, number, me, renewed
        self._path, self._beats = _lease_path(folder, number), 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._renew, self._watch)]
        for thread in self._threads:
            thread.start()

    @classmethod
    def create(cls, folder: epath.Path, number: int, me: LeaseHolder) -> "Lease | None":
        """The lease of this number; None if another process has created it or a larger one."""
        renewed, path = _now(), _lease_path(folder, number)
        if not create_file(path, _record(me)) and _holder_in(read_if_exists(path)) != me:
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
                    self._lose(f"was taken over by {_holder_in(read_if_exists(_lease_path(self._folder, largest)))}")
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


def lock_folder(folder: epath.PathLike, command: str) -> Lease:
    """The lease on a folder. Raises UserError if another process holds it, after at most `EXPIRY` seconds in which its holder,
    which may be dead, shows no sign of life.
    """
    folder, me, seen, since = epath.Path(folder), this_process(command), None, 0.0
    while True:
        number = max(_numbers(folder), default=0)
        text = number and read_if_exists(_lease_path(folder, number)) or ""
        holder = _holder_in(text)
        expired = (number, text) == seen and time.monotonic() - since > EXPIRY
        if not number or _is_released(text) or expired or (holder and holder.gone):
            if lease := Lease.create(folder, number + 1, me):
                return lease
            winner = read_if_exists(_lease_path(folder, number + 1)) or ""
            if winner and not _is_released(winner):
                raise in_use(folder, _holder_in(winner))
            continue
        if (number, text) != seen:
            if seen and holder:  # a record that is just being written has no holder yet
                raise in_use(folder, holder)
            if not seen:
                by = holder or "another process"
                log.warning("--workdir=%s is locked by %s; waiting up to %.0f s for a sign of life", folder, by, EXPIRY)
            seen, since = (number, text), time.monotonic()
        time.sleep(min(1.0, BEAT / 4))


def create_file(path: epath.PathLike, data: bytes) -> bool:
    """Writes a file if there is none of that name, else returns False. Of any number of processes on any hosts that try at
    once, one succeeds: O_EXCL on file systems, a conditional request to object stores. Parent folders must exist.

    False may also mean that this process has succeeded and the answer of a store was lost: read the file to know.
    """
    try:
        if is_remote(path):
            import fsspec

            store, name = fsspec.core.url_to_fs(os.fspath(path))
            store.pipe_file(name, data, mode="create")
            return True
        with open(path, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return False
    return True


def _numbers(folder: epath.Path) -> list[int]:
    """Of the leases in a folder, ascending."""
    matches = (re.fullmatch(rf"{re.escape(NAME)}-(\d+)", name) for name in list_names(folder))
    return sorted(int(match[1]) for match in matches if match)


def _lease_path(folder: epath.Path, number: int) -> epath.Path:
    return folder / f"{NAME}-{number}"


def _record(me: LeaseHolder, beat: int = 0, released: bool = False) -> bytes:
    return (json.dumps(dataclasses.asdict(me) | {"beat": beat, "released": released}) + "\n").encode()


def _is_released(text: str) -> bool:
    return _holder_in(text) is not None and parse_json(text).get("released") is True


def _now() -> float:
    """Seconds, counted also while the machine sleeps where it has such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
