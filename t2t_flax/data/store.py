"""Tokenised sentence pairs on local disk, memory-mapped: constant memory however large the corpus.

A folder with, for each side, all ids in one flat file, the length of each sentence (int32, EOS counted) and its offset
into the ids (int64), all little-endian, plus meta.json. A folder under its own name is always complete.
"""

import contextlib
import json
import mmap
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from etils import epath

from t2t_flax.errors import UserError
from t2t_flax.files import is_remote

FORMAT_VERSION = 1
SIDES = ("source", "target")
_LENGTH, _OFFSET = np.dtype("<i4"), np.dtype("<i8")


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest of uint16 and int32 that holds every id."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<i4")


class StoreWriter:
    """Writes a store into a sibling of `folder` and gives it its name when the `with` block ends without an error.

    An older store at `folder` stays readable until then; after an error nothing of the new one is left.
    """

    def __init__(self, folder: os.PathLike | str, *, vocab_sizes: tuple[int, int]):
        self.folder = Path(folder)
        self._partial = self.folder.with_name(f"{self.folder.name}.partial-{socket.gethostname()}-{os.getpid()}")
        self._dtypes = [token_dtype(size) for size in vocab_sizes]
        self._pairs = 0
        self._tokens, self._longest = [0, 0], [0, 0]
        self.meta: dict = {}
        """What the caller adds to meta.json, before the block ends."""

    def __enter__(self) -> "StoreWriter":
        read_meta(self.folder)  # raises rather than to replace a folder of something else
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(self.folder)
        self._partial.mkdir()
        self._files = contextlib.ExitStack()
        self._open = {
            (side, part): self._files.enter_context(open(_file(self._partial, side, part), "wb"))
            for side in SIDES
            for part in ("ids", "lengths", "offsets")
        }
        return self

    def write(self, source: tuple[np.ndarray, np.ndarray], target: tuple[np.ndarray, np.ndarray]) -> None:
        """Appends pairs; each side is (ids [total], lengths [pairs]), the sentences one after another, EOS included."""
        for n, (side, (ids, lengths)) in enumerate(zip(SIDES, (source, target), strict=True)):
            ends = self._tokens[n] + np.cumsum(lengths, dtype=np.int64)
            self._open[side, "ids"].write(np.asarray(ids).astype(self._dtypes[n]).tobytes())
            self._open[side, "lengths"].write(np.asarray(lengths).astype(_LENGTH).tobytes())
            self._open[side, "offsets"].write((ends - lengths).astype(_OFFSET).tobytes())
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
            for part in ("ids", "lengths"):
                for block in _blocks(_file(folder, side, part)):
                    self._open[side, part].write(block)
            for block in _blocks(_file(folder, side, "offsets")):
                self._open[side, "offsets"].write((np.frombuffer(block, _OFFSET) + self._tokens[n]).tobytes())
            self._tokens[n] += meta[side]["tokens"]
            self._longest[n] = max(self._longest[n], meta[side]["longest"])
        self._pairs += meta["pairs"]
        return meta

    def __exit__(self, kind, error, trace) -> None:
        self._files.close()
        try:
            if kind is None:
                self._finish()
        finally:
            shutil.rmtree(self._partial, ignore_errors=True)

    def _finish(self) -> None:
        sides = {
            side: {"tokens": self._tokens[n], "longest": self._longest[n], "dtype": self._dtypes[n].name}
            for n, side in enumerate(SIDES)
        }
        meta = {"format_version": FORMAT_VERSION, "pairs": self._pairs, **sides, **self.meta}
        (self._partial / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
        there = read_meta(self.folder)
        if there is None:
            self._partial.rename(self.folder)
        elif not self.meta.get("digest") or there.get("digest") != self.meta["digest"]:
            old = self._partial.with_name(f"{self._partial.name}-old")
            self.folder.rename(old)
            self._partial.rename(self.folder)
            shutil.rmtree(old)
        # Otherwise another run that shares the folder was faster, and has perhaps opened its store already.


class TokenStore:
    """A finished store. `source_lengths`, `target_lengths`: int32 [num_pairs], EOS counted, memory-mapped."""

    def __init__(self, folder: Path, meta: dict, origin: epath.Path | None = None):
        self.folder, self.meta = folder, meta
        self.origin = origin or epath.Path(folder)
        """Where all hosts see it: an object store, of which `folder` is this host's copy, or `folder` itself."""
        self.num_pairs: int = meta["pairs"]
        self.digest: str = meta.get("digest", "")
        """Identifies what the store was made from: corpus, tokenizers, policies."""
        self._maps: list[mmap.mmap] = []
        self._sides = {side: self._map(side) for side in SIDES}
        self.source_lengths = self._sides["source"][2]
        self.target_lengths = self._sides["target"][2]

    @classmethod
    def open(cls, folder: os.PathLike | str, origin: epath.Path | None = None) -> "TokenStore":
        """Raises UserError if there is none at `folder`, its files are damaged or another version wrote it."""
        folder = Path(folder)
        meta = read_meta(folder)
        if meta is None:
            raise UserError(f"there is no token store at {folder}; run prepare")
        if meta["format_version"] != FORMAT_VERSION:
            raise UserError(
                f"the token store {folder} has format {meta['format_version']}, this version of t2t_flax reads "
                f"{FORMAT_VERSION}; delete the folder and run prepare again"
            )
        return cls(folder, meta, origin)

    def side(self, side: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(ids [tokens], offsets [num_pairs], lengths [num_pairs]) of "source" or "target", memory-mapped."""
        return self._sides[side]

    def release(self) -> None:
        """Takes the pages that were read so far out of this process's memory; the system's file cache keeps them. Without
        it a process that visits a whole corpus would in time seem as large as the corpus.
        """
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)

    @property
    def longest(self) -> int:
        """Tokens of the longest side of a pair, from meta.json: nothing is read."""
        return max(self.meta[side]["longest"] for side in SIDES)

    @property
    def mean_length(self) -> float:
        """Tokens of a pair's side on average, on the side that has more."""
        return max(self.meta[side]["tokens"] for side in SIDES) / self.num_pairs

    @property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """(source_lengths, target_lengths)."""
        return self.source_lengths, self.target_lengths

    def describe(self) -> str:
        """Pairs and tokens in words, and what was dropped or cut."""
        source, target = (self.meta[side]["tokens"] for side in SIDES)
        counts = [f"{self.meta.get(name, 0):,} {name}" for name in ("dropped", "cut", "empty") if self.meta.get(name)]
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

    def _map(self, side: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        about = self.meta[side]
        ids = self._file(side, "ids", np.dtype(about["dtype"]).newbyteorder("<"), about["tokens"])
        return (
            ids,
            self._file(side, "offsets", _OFFSET, self.num_pairs),
            self._file(side, "lengths", _LENGTH, self.num_pairs),
        )

    def _file(self, side: str, part: str, dtype: np.dtype, count: int) -> np.ndarray:
        path = _file(self.folder, side, part)
        size = path.stat().st_size if path.exists() else 0
        if size != count * dtype.itemsize:
            raise UserError(
                f"the token store {self.folder} is damaged: {path.name} has {size} bytes, meta.json says "
                f"{count * dtype.itemsize}; delete the folder and run prepare again"
            )
        if not count:
            return np.zeros(0, dtype)
        mapped = np.memmap(path, dtype, "r")
        self._maps.append(mapped._mmap)
        # As a plain array: every slice of the memmap class costs microseconds, and it is sliced for each sentence.
        return np.asarray(mapped)


def read_meta(folder: Path | epath.Path) -> dict | None:
    """meta.json of the store at `folder`; None if nothing is there, or, in an object store, if it is not complete yet.
    Raises UserError if it is no store.
    """
    if is_remote(folder):
        if not (folder / "meta.json").exists():
            return None
    elif not folder.exists() or folder.is_dir() and not any(folder.iterdir()):
        return None
    try:
        meta = json.loads((folder / "meta.json").read_text())
        meta["format_version"], meta["pairs"]  # noqa: B018  (a KeyError says that this is another file)
        return meta
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{folder} is not a token store, or a damaged one (no readable meta.json); "
            f"delete the folder and run prepare again, or name another"
        ) from None


def _file(folder: Path, side: str, part: str) -> Path:
    return folder / f"{side}.{part}"


def _blocks(path: epath.Path, size: int = 1 << 22) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(size):
            yield block


def _remove_abandoned(folder: Path) -> None:
    """Deletes what killed writers of `folder` on this host left behind."""
    prefix = f"{folder.name}.partial-{socket.gethostname()}-"
    for path in folder.parent.iterdir():
        pid = path.name.removeprefix(prefix).removesuffix("-old")
        if path.name.startswith(prefix) and pid.isdecimal() and (int(pid) == os.getpid() or not _alive(int(pid))):
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
