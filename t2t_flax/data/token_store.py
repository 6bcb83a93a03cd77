"""Token stores: the tokenized pairs of a split in a folder.

A store is written whole or not at all, and then memory-mapped.
"""

import contextlib
import functools
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from t2t_flax.data.sources import counted
from t2t_flax.data.stored_ids import Sentences, StoredIds, damaged
from t2t_flax.errors import UserError
from t2t_flax.files import (
    atomic_directory,
    dispatch_by_storage,
    file_state,
    is_remote,
    list_names,
    read_if_exists,
)
from t2t_flax.json_file import parse_json

TOO_LONG = "too long for data.max_length"  # in messages, after a number

FORMAT_VERSION = 2
"""Version of the files. A store of another version is written again."""
SIDES = ("source", "target")
TEXTS = ("source_text", "target_text")
"""Further sides of a store that keeps the texts of its pairs.

Their ids are UTF-8 bytes.
"""
BYTES = 256
LENGTH, OFFSET = np.dtype("<i4"), np.dtype("<i8")
VERIFIED = ".verified"
"""File in a store's folder with the checksums that were verified.

It also has the files' size, times and inode at that time.
"""
_BLOCK = 1 << 20


class TokenStore:
    """Finished token store."""

    def __init__(self, folder: Path, meta: dict, origin: epath.Path | None = None):
        self.folder, self.meta = folder, meta
        self.origin = origin or epath.Path(folder)
        """Location that all hosts share.

        It is an object store with the local copy `folder`, or `folder` itself.
        """
        self.num_pairs: int = meta["pairs"]
        self.digest: str = meta.get("digest", "")
        """Digest of the store's inputs: corpus, tokenizers, policies."""
        self._sides = {side: self._map(side) for side in stored_sides(meta)}
        self.lengths: tuple[np.ndarray, np.ndarray] = (
            self._sides["source"].lengths,
            self._sides["target"].lengths,
        )
        """(source lengths, target lengths), int32 [num_pairs], EOS counted, memory-mapped."""

    @classmethod
    def open(cls, folder: os.PathLike | str, origin: epath.Path | None = None) -> "TokenStore":
        """Open the store at `folder`.

        Raises UserError if there is none, its files are damaged or another version wrote it.
        """
        folder = Path(folder)
        meta = read_meta(folder)
        if meta is None:
            raise UserError(f"there is no token store at {folder}; run prepare")
        if meta["format_version"] != FORMAT_VERSION:
            raise UserError(
                f"the token store {folder} has format {meta['format_version']}, this version of"
                f" t2t_flax reads {FORMAT_VERSION}; delete the folder and run prepare again"
            )
        store = cls(folder, meta, origin)
        _verify(folder, meta)
        return store

    def __reduce__(self):
        return _reopen, (self.folder, self.origin)

    def sentences(self, pairs: np.ndarray) -> tuple[Sentences, Sentences]:
        """Return the source and the target sentences of pairs, in their order.

        This is fast if the pairs ascend. The ids are not read yet.
        """
        return self._sides["source"].at(pairs), self._sides["target"].at(pairs)

    def texts(self, i: int) -> tuple[str, str]:
        """Return the source text (its tag included) and the target text of pair i.

        The store must keep texts.
        """
        source, target = (self._sentence(side, i).tobytes().decode() for side in TEXTS)
        return source, target

    @property
    def longest(self) -> int:
        """Number of tokens on the longest side of a pair, from meta.json."""
        return max(self.meta[side]["longest"] for side in SIDES)

    @property
    def pairs_of_sources(self) -> list[int]:
        """Number of pairs from each source of the store, in order."""
        return self.meta.get("pairs_of_sources", [self.num_pairs])

    def describe(self, names: Sequence[str] = ()) -> str:
        """Return a line that counts pairs, tokens, dropped pairs and truncated pairs.

        Args:
            names: names of several sources, for a further line about each.
        """
        source, target = (self.meta[side]["tokens"] for side in SIDES)
        tokens = f"{source:,} + {target:,} tokens"
        counts = self.meta.get("counts_of_sources", [])
        sources = (
            f"{name}: {pairs:,} pairs{self._notes(of_source)}"
            for name, pairs, of_source in zip(names, self.pairs_of_sources, counts, strict=False)
        )
        return "\n".join([f"{self.num_pairs:,} pairs, {tokens}{self._notes(self.meta)}", *sources])

    def _notes(self, counts: Mapping[str, int]) -> str:
        reasons = {"empty": "empty", "too_long": TOO_LONG, **self.meta.get("reasons", {})}
        notes = counted(counts, {"dropped": "dropped", **reasons, "truncated": "truncated"})
        return f" (of {counts['pairs_read']:,}: {notes})" if notes else ""

    def source(self, i: int) -> np.ndarray:
        """Return the ids of source sentence i, EOS last."""
        return self._sentence("source", i)

    def target(self, i: int) -> np.ndarray:
        """Return the ids of target sentence i, EOS last."""
        return self._sentence("target", i)

    def _sentence(self, side: str, i: int) -> np.ndarray:
        ids, offsets, lengths = self._sides[side]
        return ids[offsets[i] : offsets[i] + lengths[i]]

    def _map(self, side: str) -> Sentences:
        about = self.meta[side]
        dtype = np.dtype(about["dtype"]).newbyteorder("<")
        ids = StoredIds(
            self.folder / f"{side}.ids", self._file(side, "ids", dtype, about["tokens"])
        )
        offsets = self._file(side, "offsets", OFFSET, self.num_pairs)
        return Sentences(ids, offsets, self._file(side, "lengths", LENGTH, self.num_pairs))

    def _file(self, side: str, part: str, dtype: np.dtype, count: int) -> np.ndarray:
        path = self.folder / f"{side}.{part}"
        size = path.stat().st_size if path.exists() else 0
        if size != count * dtype.itemsize:
            raise damaged(
                self.folder,
                f"{path.name} has {size} bytes, meta.json says {count * dtype.itemsize}",
            )
        if not count:
            return np.zeros(0, dtype)
        # A plain array: a slice of np.memmap costs microseconds, and each sentence is one.
        return np.asarray(np.memmap(path, dtype, "r"))


@functools.lru_cache(8)
def _reopen(folder: Path, origin: epath.Path) -> TokenStore:
    """Return a store that another process has opened and verified."""
    meta = read_meta(folder)
    assert meta, f"{folder} was open a moment ago"
    return TokenStore(folder, meta, origin)


@dispatch_by_storage
def find_store(folder: epath.PathLike, digest: str) -> TokenStore | None:
    """Return the finished store at `folder` if it has this digest, else None.

    A store of an older format gives None, too. Raises UserError for a damaged store and for a
    folder with something else.
    """
    return (
        TokenStore.open(Path(folder), epath.Path(folder))
        if matches(read_meta(epath.Path(folder)), digest)
        else None
    )


@dispatch_by_storage
def local_path(folder: epath.PathLike, digest: str) -> Path:
    """Return the path at which the store `folder` is written and memory-mapped."""
    return Path(folder)


@dispatch_by_storage
def upload(folder: epath.PathLike, local: Path) -> None:
    """Copy a finished local store into its object store, if `folder` is in one."""


def stored_sides(meta: Mapping[str, object]) -> list[str]:
    """Return the sides of a store, from its meta.json."""
    return [side for side in (*SIDES, *TEXTS) if side in meta]


def files_of(meta: Mapping[str, object]) -> list[str]:
    """Return the names of a store's files beside meta.json."""
    return [
        f"{side}.{part}" for side in stored_sides(meta) for part in ("ids", "lengths", "offsets")
    ]


def matches(meta: dict | None, digest: str) -> bool:
    """Return whether metadata belong to a store with this digest in today's format."""
    return meta is not None and (meta.get("digest"), meta["format_version"]) == (
        digest,
        FORMAT_VERSION,
    )


def read_meta(folder: Path | epath.Path) -> dict | None:
    """Return meta.json of the store at `folder`, or None.

    None means that nothing is there or, in an object store, that the store is not complete yet.
    Raises UserError if the folder is not a store.
    """
    text = read_if_exists(folder / "meta.json")
    if text is None:
        names = list_names(folder)
        if is_remote(folder) or not names:
            return None
        if "meta.json" in names:  # another process has replaced the store meanwhile
            return read_meta(folder)
    try:
        meta = parse_json(text or "")
        meta["format_version"], meta["pairs"]  # noqa: B018  (a KeyError shows that this is another file)
        return meta
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{folder} is not a token store, or a damaged one (no readable meta.json); "
            "delete the folder and run prepare again, or name another"
        ) from None


def _verify(folder: Path, meta: dict[str, Any]) -> None:
    """Compare every file with its checksum in `meta`, in constant memory.

    Reads nothing if the files are unchanged since they were last verified. Raises UserError that
    names the first damaged file.
    """
    state = {
        name: [meta["crc32"][name], *(file_state(folder / name) or ())] for name in files_of(meta)
    }
    with contextlib.suppress(OSError, ValueError):
        if parse_json((folder / VERIFIED).read_text()) == state:
            return
    for name in files_of(meta):
        if _checksum(folder / name) != meta["crc32"][name]:
            raise damaged(folder, f"the checksum of {name} is not that in meta.json")
    with contextlib.suppress(OSError):  # this account may only read the store
        (folder / VERIFIED).write_text(json.dumps(state))


def _checksum(path: Path) -> int:
    checksum = 0
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            checksum = zlib.crc32(block, checksum)
    return checksum


class StoreWriter:
    """Context that writes a store into a sibling of `folder`, then renames it.

    The sibling is renamed when the block ends without an error. An older store at `folder` stays
    readable until then. After an error the new one is removed. The caller ensures that no other
    process writes there (`locks.exclusive_writer`). Raises ValueError for ids outside the
    vocabulary.

    Args:
        vocab_sizes: vocabulary sizes of source and target, and `BYTES` for each of their texts if
            these are kept.
    """

    def __init__(self, folder: os.PathLike | str, *, vocab_sizes: Sequence[int]):
        self.folder, self._pairs = Path(folder), 0
        self._sides: dict[str, dict[str, Any]] = {}
        for side, size in zip((*SIDES, *TEXTS), vocab_sizes, strict=False):
            dtype = "uint8" if size <= 1 << 8 else "uint16" if size <= 1 << 16 else "int32"
            self._sides[side] = {"tokens": 0, "longest": 0, "dtype": dtype, "vocab_size": size}
        self._checksums = dict.fromkeys(files_of(self._sides), 0)
        self.meta: dict[str, Any] = {}
        """Entries for meta.json, which the caller adds before the block ends."""

    def __enter__(self) -> "StoreWriter":
        read_meta(self.folder)  # raises instead of replacing a foreign folder
        with contextlib.ExitStack() as stack:
            self._partial = stack.enter_context(atomic_directory(self.folder))
            stack.push(self._write_meta)
            self._files = {
                name: stack.enter_context(open(self._partial / name, "wb"))
                for name in self._checksums
            }
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error) -> None:
        self._stack.__exit__(*error)

    def write(self, *sides: tuple[np.ndarray, np.ndarray]) -> None:
        """Append pairs.

        Args:
            *sides: (ids [total], lengths [pairs]) of each side, the sentences one after another,
                EOS included.
        """
        for (side, about), (ids, lengths) in zip(self._sides.items(), sides, strict=True):
            size = about["vocab_size"]
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < size:
                raise ValueError(f"{side}: ids {ids.min()} to {ids.max()}, a vocabulary of {size}")
            ends = about["tokens"] + np.cumsum(lengths, dtype=np.int64)
            self._put(side, "ids", ids.astype(np.dtype(about["dtype"]).newbyteorder("<")))
            self._put(side, "lengths", lengths.astype(LENGTH))
            self._put(side, "offsets", (ends - lengths).astype(OFFSET))
            about["tokens"] += len(ids)
            about["longest"] = max(about["longest"], int(lengths.max(initial=0)))
        self._pairs += len(lengths)

    def _put(self, side: str, part: str, array: np.ndarray) -> None:
        name, data = f"{side}.{part}", array.tobytes()
        self._files[name].write(data)
        self._checksums[name] = zlib.crc32(data, self._checksums[name])

    def _write_meta(self, kind, error, trace) -> None:
        if kind is None:
            meta = {
                "format_version": FORMAT_VERSION,
                "pairs": self._pairs,
                **self._sides,
                "crc32": self._checksums,
                **self.meta,
            }
            (self._partial / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
