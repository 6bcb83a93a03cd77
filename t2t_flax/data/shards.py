"""Shards: token stores of consecutive chunks, from which a store is joined. A killed preparation goes on after them."""

import collections
import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from t2t_flax.data.token_store import StoreWriter, TokenStore
from t2t_flax.filesystem import list_numbers, remove_folder

Sides = list[tuple[np.ndarray, np.ndarray]]
"""(ids [total], lengths [pairs]) of each side."""
SUFFIX = ".shards-"


class ShardChunk(Protocol):
    """The part of `preprocess.Chunk` that this module uses. part: number of the part of the source."""

    part: int
    counts: collections.Counter[str]
    sides: Sides


class Shards:
    """The shards of the store that will be at `store`, in a folder beside it. key: says of which pairs, in which chunks; shards
    under another key are removed. The caller sees to it that no other process writes the store (`locks.exclusive_writer`).
    """

    def __init__(self, store: Path, key: str, vocab_sizes: Sequence[int]):
        self._vocab_sizes = vocab_sizes
        self._folder = store.with_name(f"{store.name}{SUFFIX}{hashlib.sha256(key.encode()).hexdigest()[:12]}")
        for folder in store.parent.glob(f"{store.name}{SUFFIX}*"):
            if folder != self._folder:
                remove_folder(folder)
        for partial in self._folder.glob("*.partial-*"):
            remove_folder(partial)
        self.complete = set(list_numbers(self._folder))
        """Their numbers."""

    def write(self, number: int, chunks: Sequence[ShardChunk]) -> None:
        """Writes a shard, whole or not at all."""
        counts: dict[int, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        with StoreWriter(self._folder / str(number), vocab_sizes=self._vocab_sizes) as writer:
            for chunk in chunks:
                writer.write(*chunk.sides)
                counts[chunk.part].update(chunk.counts)
            writer.meta["counts"] = counts
        self.complete.add(number)

    def counts(self, parts: int) -> list[collections.Counter[str]]:
        """The sums of the chunks' counts, for each of the first parts of the source."""
        sums: list[collections.Counter[str]] = [collections.Counter() for _ in range(parts)]
        for store in self._stores():
            for part, counts in store.meta["counts"].items():
                sums[int(part)].update(counts)
        return sums

    def read(self) -> Iterator[Sides]:
        """The sentences of each shard, in order."""
        for store in self._stores():
            yield [(side.ids, side.lengths) for side in store.all_sides()]

    def remove(self) -> None:
        """Removes all shards."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _stores(self) -> Iterator[TokenStore]:
        return (TokenStore.open(self._folder / str(number)) for number in sorted(self.complete))
