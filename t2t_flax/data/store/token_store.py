"""Tokenized sentence pairs on local disk, memory-mapped: constant memory for any size of corpus.

A folder with, for each side, all ids in one flat file, the length of each sentence (int32, EOS counted) and its offset
into the ids (int64), all little-endian, plus meta.json with a checksum of each. A folder under its own name is always
complete.
"""

import mmap
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from etils import epath

from t2t_flax.data.store.integrity import LENGTH, OFFSET, SIDES, damaged, verify
from t2t_flax.errors import UserError
from t2t_flax.filesystem import read_if_exists
from t2t_flax.json_file import parse_json

FORMAT_VERSION = 2
"""2 has checksums; a store of another version is written again."""


class Sentences(NamedTuple):
    """Tokenized sentences: sentence i is ids[offsets[i] : offsets[i] + lengths[i]]."""

    ids: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray


_SHOWN_COUNTS = {
    "dropped": "dropped",
    "truncated": "truncated",
    "empty": "empty",
}


class TokenStore:
    """A finished store. `source_lengths`, `target_lengths`: int32 [num_pairs], EOS counted, memory-mapped."""

    def __init__(self, folder: Path, meta: dict, origin: epath.Path | None = None):
        self.folder, self.meta = folder, meta
        self.origin = origin or epath.Path(folder)
        """The location that all hosts share: an object store, of which `folder` is a local copy, or `folder` itself."""
        self.num_pairs: int = meta["pairs"]
        self.digest: str = meta.get("digest", "")
        """Identifies the inputs of the store: corpus, tokenizers, policies."""
        self._maps: list[mmap.mmap] = []
        self._sides = {side: self._map(side) for side in SIDES}
        self.source_lengths = self._sides["source"].lengths
        self.target_lengths = self._sides["target"].lengths

    @classmethod
    def open(cls, folder: os.PathLike | str, origin: epath.Path | None = None) -> "TokenStore":
        """Raises UserError if there is none at `folder`, its files are damaged or another version wrote it. The first to
        open a store reads it once to verify it (`integrity`).
        """
        folder = Path(folder)
        meta = read_meta(folder)
        if meta is None:
            raise UserError(f"there is no token store at {folder}; run prepare")
        if meta["format_version"] != FORMAT_VERSION:
            raise UserError(
                f"the token store {folder} has format {meta['format_version']}, this version of t2t_flax reads "
                f"{FORMAT_VERSION}; delete the folder and run prepare again"
            )
        store = cls(folder, meta, origin)
        verify(folder, meta)
        return store

    def side(self, side: str) -> Sentences:
        """The sentences of "source" or "target", memory-mapped: ids [tokens], offsets and lengths [num_pairs]."""
        return self._sides[side]

    def release(self) -> None:
        """Unmaps the pages read so far from this process; they stay in the file cache. Otherwise the resident size of a
        process that visits the whole corpus would grow to the size of the corpus.
        """
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)

    @property
    def longest(self) -> int:
        """Tokens of the longest side of a pair, from meta.json."""
        return max(self.meta[side]["longest"] for side in SIDES)

    @property
    def pairs_of_sources(self) -> list[int]:
        """Pairs of each source of which the store was written, in order."""
        return self.meta.get("pairs_of_sources", [self.num_pairs])

    @property
    def mean_length(self) -> float:
        """Tokens of a pair's side on average, on the side that has more."""
        return max(self.meta[side]["tokens"] for side in SIDES) / self.num_pairs

    @property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """(source_lengths, target_lengths)."""
        return self.source_lengths, self.target_lengths

    def describe(self) -> str:
        """A line with the numbers of pairs and tokens, and of dropped and truncated pairs."""
        source, target = (self.meta[side]["tokens"] for side in SIDES)
        shown_counts = _SHOWN_COUNTS | self.meta.get("filters", {})
        counts = [f"{self.meta[name]:,} {shown}" for name, shown in shown_counts.items() if self.meta.get(name)]
        notes = f" (of {self.meta['pairs_read']:,}: {', '.join(counts)})" if counts else ""
        return f"{self.num_pairs:,} pairs, {source:,} + {target:,} tokens{notes}"

    def source(self, i: int) -> np.ndarray:
        """Ids of source sentence i, EOS last."""
        return self._sentence("source", i)

    def target(self, i: int) -> np.ndarray:
        """Ids of target sentence i, EOS last."""
        return self._sentence("target", i)

    def _sentence(self, side: str, i: int) -> np.ndarray:
        ids, offsets, lengths = self._sides[side]
        return ids[offsets[i] : offsets[i] + lengths[i]]

    def _map(self, side: str) -> Sentences:
        side_meta = self.meta[side]
        ids = self._file(side, "ids", np.dtype(side_meta["dtype"]).newbyteorder("<"), side_meta["tokens"])
        return Sentences(
            ids,
            self._file(side, "offsets", OFFSET, self.num_pairs),
            self._file(side, "lengths", LENGTH, self.num_pairs),
        )

    def _file(self, side: str, part: str, dtype: np.dtype, count: int) -> np.ndarray:
        path = self.folder / f"{side}.{part}"
        size = path.stat().st_size if path.exists() else 0
        if size != count * dtype.itemsize:
            raise damaged(self.folder, f"{path.name} has {size} bytes, meta.json says {count * dtype.itemsize}")
        if not count:
            return np.zeros(0, dtype)
        mapped = np.memmap(path, dtype, "r")
        self._maps.append(mapped._mmap)
        # As a plain array: every slice of the memmap class costs microseconds, and it is sliced for each sentence.
        return np.asarray(mapped)


def matches(meta: dict | None, digest: str) -> bool:
    """Whether the metadata are of a store with this digest in today's format."""
    return meta is not None and (meta.get("digest"), meta["format_version"]) == (digest, FORMAT_VERSION)


def read_meta(folder: Path | epath.Path) -> dict | None:
    """meta.json of the store at `folder`; None if nothing is there, or, in an object store, if it is not complete yet.
    Raises UserError if it is not a store.
    """
    before = _folder_state(folder)
    try:
        text = read_if_exists(folder / "meta.json")
        if text is None and (not before or folder.is_dir() and not any(folder.iterdir())):
            return None
        meta = parse_json(text or "")
        meta["format_version"], meta["pairs"]  # noqa: B018  (a KeyError shows that this is another file)
        return meta
    except (OSError, ValueError, KeyError, TypeError):
        if _folder_state(folder) != before:  # another process has replaced the store meanwhile
            return read_meta(folder)
        raise UserError(
            f"{folder} is not a token store, or a damaged one (no readable meta.json); "
            f"delete the folder and run prepare again, or name another"
        ) from None


def _folder_state(folder: Path | epath.Path) -> tuple[int, int] | None:
    """Inode and change time of a local folder, which tell a folder from the one that replaced it: inodes alone are reused."""
    try:
        stat = os.stat(folder)
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_ctime_ns
