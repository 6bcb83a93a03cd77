"""Shards: token stores of consecutive chunks, from which a store is joined. A killed preparation goes on after them."""

import collections
import contextlib
import hashlib
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from t2t_flax.data.token_store import StoreWriter, TokenStore
from t2t_flax.errors import UserError
from t2t_flax.filesystem import list_numbers, remove_folder

Sides = list[tuple[np.ndarray, np.ndarray]]
"""(ids [total], lengths [pairs]) of each side."""
SUFFIX = ".shards-"
_ABANDONED = 24 * 3600.0
"""Seconds without a change after which nobody is writing shards, where no lock says so."""


class LostShards(UserError):
    """Another process has removed the shards, after it had written the store."""


class ShardChunk(Protocol):
    """The part of `preprocess.Chunk` that this module uses. part: number of the part of the source."""

    part: int
    counts: collections.Counter[str]
    sides: Sides


class Shards:
    """The shards of the store that will be at `store`, in a folder beside it. key: says of which pairs, in which chunks; shards
    under another key, and half-written ones, are removed. alone: whether no other process writes the store
    (`locks.exclusive_writer`); else only those that nobody has changed for a day are removed, and processes with the same key
    share the shards, until the first of them has joined them.
    """

    def __init__(self, store: Path, key: str, vocab_sizes: Sequence[int], *, alone: bool):
        self._vocab_sizes, self._alone = vocab_sizes, alone
        self._folder = store.with_name(f"{store.name}{SUFFIX}{hashlib.sha256(key.encode()).hexdigest()[:12]}")
        others = (one for one in store.parent.glob(f"{store.name}{SUFFIX}*") if one != self._folder)
        for folder in (*others, *self._folder.glob("*.partial-*")):
            with contextlib.suppress(FileNotFoundError):
                if alone or time.time() - folder.stat().st_mtime > _ABANDONED:
                    remove_folder(folder)
        self.complete = set(list_numbers(self._folder))
        """Their numbers."""

    def write(self, number: int, chunks: Sequence[ShardChunk]) -> None:
        """Writes a shard, whole or not at all. Raises LostShards."""
        folder = self._folder / str(number)
        self.complete.add(number)
        if not self._alone and folder.exists():  # by another process, which may be reading it
            return
        try:
            self._write(folder, chunks)
        except FileNotFoundError:
            raise self._lost() from None

    def _write(self, folder: Path, chunks: Sequence[ShardChunk]) -> None:
        counts: dict[int, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        with StoreWriter(folder, vocab_sizes=self._vocab_sizes) as writer:
            for chunk in chunks:
                writer.write(*chunk.sides)
                counts[chunk.part].update(chunk.counts)
            writer.meta["counts"] = counts

    def counts(self, parts: int) -> list[collections.Counter[str]]:
        """The sums of the chunks' counts, for each of the first parts of the source."""
        sums: list[collections.Counter[str]] = [collections.Counter() for _ in range(parts)]
        for store in self._stores():
            for part, counts in store.meta["counts"].items():
                sums[int(part)].update(counts)
        return sums

    def read(self) -> Iterator[Sides]:
        """The sentences of each shard, in order. Raises LostShards."""
        for store in self._stores():
            yield [(ids, lengths) for ids, _, lengths in store.all_sides()]

    def remove(self) -> None:
        """Removes all shards, at once for other processes."""
        removed = self._folder.with_name(f"{self._folder.name}.partial-{uuid.uuid4().hex}")
        with contextlib.suppress(FileNotFoundError):
            self._folder.rename(removed)
        remove_folder(removed)

    def _stores(self) -> Iterator[TokenStore]:
        for number in sorted(self.complete):
            folder = self._folder / str(number)
            try:
                store = TokenStore.open(folder)
            except (UserError, FileNotFoundError):
                if folder.exists():
                    raise
                raise self._lost() from None
            yield store

    def _lost(self) -> LostShards:
        self.remove()  # those that were written after the others had been removed
        return LostShards(f"another process has removed {self._folder}: start again when it has ended.")
