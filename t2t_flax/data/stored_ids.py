"""Sentences of a token store, with ids that are read from its files when needed."""

import functools
import io
import itertools
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t2t_flax.errors import UserError
from t2t_flax.files import file_state

_SMALL = 1 << 27
"""Maximum bytes of a file whose ids are read from mapped memory.

The ids of a larger one are read from the file: around each mapped place that is read, the kernel
would load 128 KiB, also when memory is short.
"""
_READ_AHEAD = 1 << 25
"""Bytes of one request to read ahead.

The end of the process waits for no more than these.
"""


class StoredIds:
    """Ids of one side of a store, [tokens], memory-mapped, or read from a large file.

    The pickle holds the path. A process that has the store open does not open the path again.
    """

    def __init__(self, path: Path, mapped: np.ndarray):
        self._path, self._mapped, self.dtype = path, mapped, mapped.dtype
        is_small = mapped.nbytes <= _SMALL
        self._opened = None if is_small else open(path, "rb", buffering=0)  # noqa: SIM115
        self._key = path, *(file_state(path) or ())
        _in_use[self._key] = self

    def __reduce__(self):
        return _of_file, (self._key, self.dtype)

    @functools.cached_property
    def _file(self) -> io.FileIO:
        """Opened file. The first access starts to read it ahead."""
        assert self._opened
        threading.Thread(target=_read_ahead, args=(self._opened,), daemon=True).start()
        return self._opened

    def __getitem__(self, part: slice) -> np.ndarray:
        return self._mapped[part]

    def take(self, index: np.ndarray) -> np.ndarray:
        """Return the ids at `index` [N]. Neighbours are read together.

        Raises UserError if the file has become shorter.
        """
        if self._opened is None or not len(index):
            return self._mapped.take(index)
        first = np.flatnonzero(np.diff(index, prepend=index[0] - 2) != 1)
        sizes = np.diff(first, append=len(index)) * self.dtype.itemsize
        begins = index[first] * self.dtype.itemsize
        read = b"".join(
            map(os.pread, itertools.repeat(self._file.fileno()), sizes.tolist(), begins.tolist())
        )
        if len(read) != len(index) * self.dtype.itemsize:
            raise damaged(self._path.parent, f"{self._path.name} has become shorter")
        return np.frombuffer(read, self.dtype)


_in_use: weakref.WeakValueDictionary[tuple, StoredIds] = weakref.WeakValueDictionary()
"""Open ids by path and state of the file.

Another process may have replaced or deleted the file since.
"""


def _of_file(key: tuple, dtype: np.dtype) -> StoredIds:
    return _in_use.get(key) or StoredIds(key[0], np.asarray(np.memmap(key[0], dtype, "r")))


def _read_ahead(file: io.FileIO) -> None:
    """Let the kernel read a file into its cache if a quarter of the memory holds it.

    Reading one sentence after another would take minutes, since each is in another place.
    """
    size = os.fstat(file.fileno()).st_size
    if (
        hasattr(os, "posix_fadvise")
        and size <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    ):
        for begin in range(0, size, _READ_AHEAD):
            os.posix_fadvise(file.fileno(), begin, _READ_AHEAD, os.POSIX_FADV_WILLNEED)


class Sentences(NamedTuple):
    """Tokenized sentences: sentence i is ids[offsets[i] : offsets[i] + lengths[i]]."""

    ids: np.ndarray | StoredIds
    offsets: np.ndarray
    lengths: np.ndarray

    def at(self, index: np.ndarray | slice) -> "Sentences":
        return Sentences(self.ids, self.offsets[index], self.lengths[index])


def joined(parts: Sequence[Sentences]) -> Sentences:
    """Return the sentences of all parts, one part after another."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([part.lengths for part in parts])
    ids = parts[0].ids
    if all(part.ids is ids for part in parts):
        return Sentences(ids, np.concatenate([part.offsets for part in parts]), lengths)
    own = np.concatenate([part.ids.take(positions(part.offsets, part.lengths)) for part in parts])
    return Sentences(own, np.cumsum(lengths, dtype=np.int64) - lengths, lengths)


def positions(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the places that begin at `begins` and have these lengths, int64.

    They are begins[0] .. begins[0] + lengths[0] - 1, then the same for the others.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - lengths), lengths)


def damaged(folder: os.PathLike | str, problem: str) -> UserError:
    """Return the error for a store whose files have changed."""
    return UserError(
        f"the token store {folder} is damaged: {problem}; delete the folder and run prepare again"
    )
