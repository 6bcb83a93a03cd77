"""Writes token stores: nobody ever sees half of one, whoever else writes the same store at the same time.

A store is written into a folder of a unique name, synced to disk, and renamed. Preparations of one store take turns by
a file lock where the file system has locks; where it has none, the first to finish wins and the others take its store.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import shutil
import socket
import threading
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
from etils import epath

from t2t_flax.data.store.integrity import FILES, LENGTH, OFFSET, PARTS, SIDES, blocks
from t2t_flax.data.store.token_store import FORMAT_VERSION, TokenStore, read_meta
from t2t_flax.errors import UserError
from t2t_flax.filesystem import fsync_file, fsync_folder

_DAY = 24 * 3600
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL, errno.EBADF)
_held = threading.local()
log = logging.getLogger("t2t_flax")


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest of uint16 and int32 that holds every id."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<i4")


class StoreWriter:
    """Writes a store into a sibling of `folder` and gives it its name when the `with` block ends without an error.

    An older store at `folder` stays readable until then. After an error nothing of the new one is left. Where a sound
    store of the same digest has appeared meanwhile, that one stays. Raises ValueError for ids outside of the vocabulary.
    """

    def __init__(self, folder: os.PathLike | str, *, vocab_sizes: tuple[int, int]):
        self.folder = Path(folder)
        self._partial = self.folder.with_name(f"{self.folder.name}.partial-{_machine()}-{uuid.uuid4().hex}")
        self._vocab_sizes = vocab_sizes
        self._dtypes = [token_dtype(size) for size in vocab_sizes]
        self._pairs = 0
        self._tokens, self._longest = [0, 0], [0, 0]
        self._checksums = dict.fromkeys(FILES, 0)
        self.meta: dict = {}
        """What the caller adds to meta.json, before the block ends."""

    def __enter__(self) -> "StoreWriter":
        self._closing, self._turn = contextlib.ExitStack(), contextlib.ExitStack()
        self._turn.enter_context(turn(self.folder))
        try:
            read_meta(self.folder)  # raises rather than to replace a folder of something else
            self._partial.mkdir()
            self._files = {name: self._closing.enter_context(open(self._partial / name, "wb")) for name in FILES}
        except BaseException:
            self._turn.close()
            raise
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

    def append(self, folder: epath.PathLike) -> dict:
        """Appends all pairs of a finished store, wherever it lies; returns its meta. Raises UserError if there is none."""
        folder = epath.Path(folder)
        meta = read_meta(folder)
        if meta is None:
            raise UserError(f"there is no token store at {folder}; give the same command again")
        for n, side in enumerate(SIDES):
            for part in PARTS:
                for block in blocks(folder / f"{side}.{part}"):
                    if part == "offsets":
                        block = (np.frombuffer(block, OFFSET) + self._tokens[n]).tobytes()
                    self._put(side, part, block)
            self._tokens[n] += meta[side]["tokens"]
            self._longest[n] = max(self._longest[n], meta[side]["longest"])
        self._pairs += meta["pairs"]
        return meta

    def _put(self, side: str, part: str, data: bytes) -> None:
        name = f"{side}.{part}"
        self._files[name].write(data)
        self._checksums[name] = zlib.crc32(data, self._checksums[name])

    def __exit__(self, kind, error, trace) -> None:
        try:
            self._closing.close()  # which writes what is buffered, and may fail for a full disk
            if kind is None:
                self._finish()
        finally:
            shutil.rmtree(self._partial, ignore_errors=True)
            self._turn.close()

    def _finish(self) -> None:
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
        put_in_place(self._partial, self.folder, self.meta.get("digest", ""))


def put_in_place(partial: Path, folder: Path, digest: str) -> None:
    """Syncs a complete store to disk and renames it to `folder`, unless a sound store of the same digest lies there, which
    another process may have opened. What else lies there is replaced. `partial` may be left behind.
    """
    for name in (*FILES, "meta.json"):
        fsync_file(partial / name)
    fsync_folder(partial)
    while True:
        read_meta(folder)  # raises rather than to replace a folder of something else
        try:
            partial.rename(folder)
            return fsync_folder(folder.parent)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if is_whole(folder, digest):
            return
        old = partial.with_name(f"{partial.name}-old")
        with contextlib.suppress(FileNotFoundError):  # another process may have moved it away first
            folder.rename(old)
        shutil.rmtree(old, ignore_errors=True)


def is_whole(folder: Path, digest: str) -> bool:
    """Whether a sound store of this digest lies at `folder`."""
    try:
        return TokenStore.open(folder).digest == digest != ""
    except UserError:
        return False


@contextlib.contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Waits until no other thread or process is within such a block for the same `folder`, and removes what killed ones
    left there. Blocks of one thread nest. Where the file system has no locks nobody waits and nothing is removed.
    """
    held = _held.__dict__.setdefault("folders", set())
    if folder in held:
        yield
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f"{folder.name}.lock")
    with contextlib.ExitStack() as stack:
        locked = None
        while locked is None:
            file = stack.enter_context(_open(path))
            locked = _lock(file, path)
        if locked:
            _remove_abandoned(folder)
        held.add(folder)
        try:
            yield
        finally:
            held.remove(folder)
            path.unlink(missing_ok=True)  # while it is locked: who waits for it sees that the name has gone


def _open(path: Path) -> IO[str]:
    try:
        return path.open("a")
    except PermissionError:  # another user's, in a folder that both may write to: its lock needs no right to write
        if not path.exists():
            raise
        return path.open()


def _lock(file, path: Path) -> bool | None:
    """Waits for the lock. False where the file system has none; None where `path` is another file by now."""
    waited = 0
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if waited == 10:
                log.warning("waiting for another process that prepares %s", path.with_suffix(""))
            waited += 1
            time.sleep(0.2)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            raise
    try:
        return True if os.path.samestat(os.fstat(file.fileno()), path.stat()) else None
    except FileNotFoundError:
        return None


def _remove_abandoned(folder: Path) -> None:
    """Deletes what killed writers of `folder` left. Called by the one that holds the lock, so that no writer of this machine
    is at work; of other machines, which the lock may not reach, only what has not been written to for a day.
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
    """This boot of this machine: containers that share a kernel, and so its locks, share it; others do not."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]
    except OSError:
        return socket.gethostname()
