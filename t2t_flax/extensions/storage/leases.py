"""Leases on workdirs in an object store, which has no locks.

Two runs in one workdir would lose each other's files.
"""

import contextlib
import dataclasses
import json
import logging
import os
import re
import threading
import time
import uuid
from pathlib import Path

import fsspec
import psutil
from etils import epath

from t2t_flax import locks
from t2t_flax.errors import FAILURE, first_line
from t2t_flax.files import atomic_write, list_names, read_if_exists
from t2t_flax.json_file import parse_json
from t2t_flax.locks import NAME, in_use

log = logging.getLogger("t2t_flax")
BEAT = 15.0
"""Seconds between two renewals of a lease."""
EXPIRY = 120.0
"""Seconds without a renewal after which another process may take a lease over.

Its holder ends one `BEAT` earlier.
"""


@dataclasses.dataclass(frozen=True)
class LeaseHolder:
    """Process that holds a lease.

    Args:
        about: line for messages.
        space: this boot of the machine and the container; host names are not unique.
    """

    about: str
    process: int
    space: str
    token: str

    def __str__(self) -> str:
        return self.about

    @property
    def gone(self) -> bool:
        """Return True if the process is known to have ended.

        False for another host or container.
        """
        return self.space == _process_space() and not psutil.pid_exists(self.process)


def this_process(command: str) -> LeaseHolder:
    """Return this process as a holder."""
    return LeaseHolder(locks.this_process(command), os.getpid(), _process_space(), uuid.uuid4().hex)


def _process_space() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return uuid.uuid4().hex  # then leases of killed processes can only expire


class Lease:
    """Object `.lock-N` with the largest number in a folder.

    Its holder renews it every `BEAT` seconds. Others never overwrite a lease that was released or
    has expired. The next holder creates the next number, at which one of any number of processes
    succeeds (`create_object`), and only then removes the smaller ones. So the largest number never
    falls, and a holder that finds a larger one has lost its lease: it ends at once. It also ends
    when it could not renew its lease for so long that it may be lost.
    """

    def __init__(self, folder: epath.Path, number: int, me: LeaseHolder, renewed: float):
        self._folder = folder
        self._number = number
        self._me = me
        self._renewed = renewed
        self._path = _lease_path(folder, number)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._renew, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    @classmethod
    def create(cls, folder: epath.Path, number: int, me: LeaseHolder) -> "Lease | None":
        """Return the lease of this number, or None.

        None if another process has created it or a larger one.
        """
        renewed, path = _now(), _lease_path(folder, number)
        # The answer of a store to a request that succeeded may be lost.
        if not create_object(path, _record(me)) and _holder_in(read_if_exists(path)) != me:
            return None
        numbers = _numbers(folder)
        # The holder of a larger number has removed `number`; that is the only reason why it was
        # free.
        lost = max(numbers, default=0) > number
        with contextlib.suppress(Exception):  # leftovers have no effect
            for unused in [number] if lost else [other for other in numbers if other < number]:
                _lease_path(folder, unused).unlink(missing_ok=True)
        return None if lost else cls(folder, number, me, renewed)

    def release(self) -> None:
        """Stop the renewals and let the next process in."""
        if self._stop.is_set():
            return
        self._stop.set()
        for thread in self._threads:
            thread.join()
        with contextlib.suppress(Exception):  # otherwise it expires
            atomic_write(self._path, _record(self._me, released=True))

    def _renew(self) -> None:
        beat = 0
        while not self._stop.wait(BEAT):
            try:
                now, largest = _now(), max(_numbers(self._folder), default=0)
                if largest > self._number:
                    self._lose(
                        "was taken over by"
                        f" {_holder_in(read_if_exists(_lease_path(self._folder, largest)))}"
                    )
                beat += 1
                atomic_write(self._path, _record(self._me, beat=beat))
                self._renewed = now
            except Exception as error:  # noqa: BLE001 - any network error; the next beat tries again
                log.warning(
                    "could not renew %s (%s); trying again",
                    self._path,
                    first_line(error, limit=200),
                )

    def _watch(self) -> None:
        """End the process in time.

        It ends also if a store that does not answer blocks `_renew`.
        """
        while not self._stop.wait(min(1.0, BEAT / 4)):
            if (silent := _now() - self._renewed) > EXPIRY - BEAT:
                self._lose(
                    f"was not renewed for {silent:.0f} s, so that another process may take it over"
                )

    def _lose(self, what: str) -> None:
        log.error("%s %s; this process ends at once", self._path, what)
        os._exit(FAILURE)


def lock_folder(folder: epath.PathLike, command: str) -> Lease:
    """Return the lease on a folder.

    Raises UserError if another process holds it, after at most `EXPIRY` seconds in which its
    holder, which may be dead, does not renew it.
    """
    folder, me = epath.Path(folder), this_process(command)
    seen: tuple[int, str] | None = None
    since = 0.0
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
                raise in_use(folder, str(_holder_in(winner) or ""))
            continue
        if (number, text) != seen:
            if seen:
                raise in_use(folder, str(holder or ""))
            log.warning(
                "--workdir=%s is locked by %s; waiting up to %.0f s for its renewal",
                folder,
                holder,
                EXPIRY,
            )
            seen, since = (number, text), time.monotonic()
        time.sleep(min(1.0, BEAT / 4))


def create_object(path: epath.PathLike, data: bytes) -> bool:
    """Create an object; return False if it exists.

    Of several processes that try at once, one succeeds.
    """
    store, name = fsspec.core.url_to_fs(os.fspath(path))
    try:
        store.pipe_file(name, data, mode="create")
    except FileExistsError:
        return False
    return True


def _numbers(folder: epath.Path) -> list[int]:
    matches = (re.fullmatch(rf"{re.escape(NAME)}-(\d+)", name) for name in list_names(folder))
    return sorted(int(match[1]) for match in matches if match)


def _lease_path(folder: epath.Path, number: int) -> epath.Path:
    return folder / f"{NAME}-{number}"


def _holder_in(text: str | None) -> LeaseHolder | None:
    """Return the holder that a lease names; None for any other text."""
    try:
        values = parse_json(text or "")
        about, process, space, token = (
            values[name] for name in ("about", "process", "space", "token")
        )
        return LeaseHolder(str(about), int(process), str(space), str(token))
    except (ValueError, KeyError, TypeError):
        return None


def _record(me: LeaseHolder, beat: int = 0, released: bool = False) -> bytes:
    return (
        json.dumps(dataclasses.asdict(me) | {"beat": beat, "released": released}) + "\n"
    ).encode()


def _is_released(text: str) -> bool:
    return _holder_in(text) is not None and parse_json(text).get("released") is True


def _now() -> float:
    """Return seconds that count also while the machine sleeps.

    Meanwhile another process may take a lease over.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
