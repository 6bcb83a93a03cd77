"""Writes token stores atomically, even if several processes write the same store at the same time.

A store is written into a folder of a unique name, synced to disk, and renamed. Writers of one store take turns by a
file lock; on file systems without locks the first to finish wins, and the others use its store.
"""

import contextlib
import json
import os
import zlib
from pathlib import Path

import numpy as np

from t2t_flax.data.store.token_store import FILES, FORMAT_VERSION, LENGTH, OFFSET, SIDES, is_intact, read_meta
from t2t_flax.filesystem import atomic_directory
from t2t_flax.locks import exclusive_writer, machine_tag


class StoreWriter:
    """Context that writes a store into a sibling of `folder` and renames it when the block ends without an error.

    An older store at `folder` stays readable until then. After an error the new one is removed. Where an intact
    store of the same digest has appeared meanwhile, that one stays. Raises ValueError for ids outside of the vocabulary.
    """

    def __init__(self, folder: os.PathLike | str, *, vocab_sizes: tuple[int, int]):
        self.folder = Path(folder)
        self._vocab_sizes = vocab_sizes
        self._dtypes = [np.dtype("<u2" if size <= 1 << 16 else "<i4") for size in vocab_sizes]
        self._pairs = 0
        self._tokens, self._longest = [0, 0], [0, 0]
        self._checksums = dict.fromkeys(FILES, 0)
        self.meta: dict = {}
        """Entries for meta.json, to be added by the caller before the block ends."""

    def __enter__(self) -> "StoreWriter":
        with contextlib.ExitStack() as stack:
            stack.enter_context(exclusive_writer(self.folder, "prepare"))
            read_meta(self.folder)  # raises instead of replacing a foreign folder
            self._partial = stack.enter_context(atomic_directory(self.folder, tag=machine_tag(), keep=self._keep))
            stack.push(self._finish)
            self._open_files = contextlib.ExitStack()
            self._files = {name: self._open_files.enter_context(open(self._partial / name, "wb")) for name in FILES}
            self._stack = stack.pop_all()
        return self

    def _keep(self) -> bool:
        """Whether an intact store of this digest has appeared, which another process may have opened."""
        read_meta(self.folder)
        return is_intact(self.folder, self.meta.get("digest", ""))

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
