"""Writes token stores atomically, also where several processes write the same store at the same time.

A store is written into a folder of a unique name, synced to disk, and renamed. Writers of one store take turns by a
file lock; on file systems without locks the first to finish wins, and the others use its store.
"""

import contextlib
import errno
import itertools
import json
import logging
import os
import shutil
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from t2t_flax.data.store.integrity import FILES, LENGTH, OFFSET, SIDES
from t2t_flax.data.store.token_store import FORMAT_VERSION, TokenStore, read_meta
from t2t_flax.errors import UserError
from t2t_flax.filesystem import atomic_directory
from t2t_flax.locks import NO_LOCKS, FileLock, holder_of, lock_file

_DAY = 24 * 3600
_entered = threading.local()
log = logging.getLogger("t2t_flax")


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest of uint16 and int32 that holds every id."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<i4")


class StoreWriter:
    """Context that writes a store into a sibling of `folder` and renames it when the block ends without an error.

    An older store at `folder` stays readable until then. After an error nothing of the new one is left. Where an intact
    store of the same digest has appeared meanwhile, that one stays. Raises ValueError for ids outside of the vocabulary.
    """

    def __init__(self, folder: os.PathLike | str, *, vocab_sizes: tuple[int, int]):
        self.folder = Path(folder)
        self._vocab_sizes = vocab_sizes
        self._dtypes = [token_dtype(size) for size in vocab_sizes]
        self._pairs = 0
        self._tokens, self._longest = [0, 0], [0, 0]
        self._checksums = dict.fromkeys(FILES, 0)
        self.meta: dict = {}
        """Entries for meta.json, to be added by the caller before the block ends."""

    def __enter__(self) -> "StoreWriter":
        with contextlib.ExitStack() as stack:
            stack.enter_context(exclusive(self.folder))
            read_meta(self.folder)  # raises instead of replacing a foreign folder
            self._partial = stack.enter_context(
                atomic_directory(
                    self.folder, tag=_machine(), keep=lambda: _keep(self.folder, self.meta.get("digest", ""))
                )
            )
            stack.push(self._finish)
            self._open_files = contextlib.ExitStack()
            self._files = {name: self._open_files.enter_context(open(self._partial / name, "wb")) for name in FILES}
            self._stack = stack.pop_all()
        return self

    def write(self, source: tuple[np.ndarray, np.ndarray], target: tuple[np.ndarray, np.ndarray]) -> None:
        """Appends pairs; each side is (ids [total], lengths [pairs]), the sentences one after another, EOS included."""
        for n, (side, (ids, lengths)) in enumerate(zip(SIDES, (source, target), strict=True)):
            ids = np.asarray(ids)
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self._vocab_sizes[n]:
                raise ValueError(f"{side}: ids {ids.min()} to {ids.max()}, a vocabulary of {self._vocab_sizes[n]}")
            ends = self._tokens[n] + np.cumsum(lengths, dtype=np.int64)
            self._put(side, "ids", ids.astype(self._dtypes[n]).tobytes())
            self._put(side, "lengths", np.asarray(lengths).astype(LENGTH).tobytes())
            self._put(side, "offsets", (ends - lengths).astype(OFFSET).tobytes())
            self._tokens[n] += len(ids)
            self._longest[n] = max(self._longest[n], int(np.max(lengths, initial=0)))
        self._pairs += len(lengths)

    def _put(self, side: str, part: str, data: bytes) -> None:
        name = f"{side}.{part}"
        self._files[name].write(data)
        self._checksums[name] = zlib.crc32(data, self._checksums[name])

    def __exit__(self, kind, error, trace) -> None:
        self._stack.__exit__(kind, error, trace)

    def _finish(self, kind, error, trace) -> None:
        self._open_files.close()  # flushes buffers, and may fail on a full disk
        if kind is not None:
            return
        sides = {
            side: {
                "tokens": self._tokens[n],
                "longest": self._longest[n],
                "dtype": self._dtypes[n].name,
                "vocab_size": self._vocab_sizes[n],
            }
            for n, side in enumerate(SIDES)
        }
        meta = {"format_version": FORMAT_VERSION, "pairs": self._pairs, **sides, "crc32": self._checksums, **self.meta}
        (self._partial / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")


def _keep(folder: Path, digest: str) -> bool:
    """Whether `folder` is an intact store of this digest, which another process may have opened. Raises UserError if it
    is not a store.
    """
    read_meta(folder)
    return is_intact(folder, digest)


def is_intact(folder: Path, digest: str) -> bool:
    """Whether `folder` is an intact store of this digest."""
    try:
        return TokenStore.open(folder).digest == digest != ""
    except UserError:
        return False


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Waits until no other thread or process is within such a block for the same `folder`, and removes what killed ones
    left there. Blocks of one thread nest. On a file system without locks nobody waits and nothing is removed.
    """
    entered = _entered.__dict__.setdefault("folders", set())
    if folder in entered:
        yield
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f"{folder.name}.lock")
    lock = _wait_for_lock(path)
    try:
        if lock:
            _remove_abandoned(folder)
        entered.add(folder)
        yield
    finally:
        entered.discard(folder)
        path.unlink(missing_ok=True)  # before the release, so that a waiting process sees that the file was removed
        if lock:
            lock.release()


def _wait_for_lock(path: Path) -> FileLock | None:
    """The lock on `path`; None where the file system has no locks."""
    for attempt in itertools.count():
        try:
            lock = lock_file(path, "prepare")
        except OSError as error:
            if error.errno in (*NO_LOCKS, errno.EINVAL, errno.EBADF):
                return None
            raise
        if lock is None:
            if attempt == 10:
                log.warning("waiting for another process that writes %s (%s)", path.with_suffix(""), holder_of(path))
            time.sleep(0.2)
            continue
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.descriptor), path.stat()):
                return lock
        lock.release()  # the lock of a file that its previous holder has removed
    raise AssertionError("unreachable")


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
        if path.name.startswith(f"{prefix}{_machine()}-") or time.time() - written > _DAY:
            shutil.rmtree(path, ignore_errors=True)


def _machine() -> str:
    """Identifies this boot of this machine; containers that share a kernel, and so its locks, share it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]
    except OSError:
        return socket.gethostname()
