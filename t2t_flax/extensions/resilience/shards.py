"""A killed preparation of data goes on: the chunks that it has tokenized are kept in shards until their store is written."""

import collections
import contextlib
import hashlib
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

from t2t_flax.data import preprocess
from t2t_flax.data.preprocess import Chunk
from t2t_flax.data.token_store import StoreWriter, TokenStore
from t2t_flax.errors import UserError
from t2t_flax.filesystem import list_numbers, remove_folder
from t2t_flax.locks import exclusive_writer

SHARD_CHUNKS = 50
"""Chunks of a shard, which a killed preparation does not tokenize again."""
SUFFIX = ".shards-"
_ABANDONED = 24 * 3600.0
"""Seconds without a change after which nobody is writing shards, where no lock says so."""
_WEEK = 7 * 24 * 3600.0
"""Seconds after which shards of which nobody went on are removed."""

Encode = Callable[[Callable[[int], bool]], Generator[Chunk, None, None]]
"""(whether to leave out the chunk of a number) -> the other chunks of a source, in order."""


@contextlib.contextmanager
def kept_chunks(
    encode: Encode, store: Path, vocab_sizes: Sequence[int], digest: str, check: Callable[[], None], *, alone: bool
) -> Iterator[Iterator[Chunk]]:
    """All chunks of the store that will be at `store` with this digest: those that an earlier preparation has kept, and the
    others, which are kept until the block ends without an error. check: raises UserError if the source has changed; called
    before a shard is written. alone: see `Shards`.
    """
    _remove_forgotten(store.parent)
    shards = Shards(store, f"{digest} {preprocess.CHUNK_PAIRS} {SHARD_CHUNKS}", vocab_sizes, alone=alone)
    complete = shards.complete.copy()
    with contextlib.closing(encode(lambda number: number // SHARD_CHUNKS in complete)) as new:
        yield _in_order(shards, new, check)
    shards.remove()


def _in_order(shards: "Shards", new: Iterator[Chunk], check: Callable[[], None]) -> Iterator[Chunk]:
    """The chunks in the order of the source; the new ones become shards."""
    stored, last, number = sorted(shards.complete), list[Chunk](), -1
    while stored[:1] == [number + 1]:
        number = stored.pop(0)
        yield from shards.read(number)
    for chunk in new:
        here = chunk.number // SHARD_CHUNKS
        if last and here != number:
            check()
            shards.write(number, last)
            last = []
            while stored and stored[0] < here:
                yield from shards.read(stored.pop(0))
        last.append(chunk)
        number = here
        yield chunk
    for rest in stored:
        yield from shards.read(rest)


def _remove_forgotten(folder: Path) -> None:
    for path in folder.glob(f"*{SUFFIX}*"):
        with contextlib.suppress(UserError, OSError):  # it is being written, or another account's
            if time.time() - path.stat().st_mtime > _WEEK:
                with exclusive_writer(folder / path.name.partition(SUFFIX)[0], "prepare", wait=False):
                    remove_folder(path)


class Shards:
    """The shards of the store that will be at `store`, in a folder beside it: token stores of consecutive chunks. key: says of
    which pairs, in which chunks; shards under another key, and half-written ones, are removed. alone: whether no other process
    writes the store (`locks.exclusive_writer`); else only those that nobody has changed for a day are removed, and processes with
    the same key share the shards, until the first of them has written the store.
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

    def write(self, number: int, chunks: Sequence[Chunk]) -> None:
        """Writes a shard, whole or not at all."""
        folder = self._folder / str(number)
        if not self._alone and folder.exists():  # by another process, which may be reading it
            return
        counts: dict[int, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        with (
            contextlib.suppress(FileNotFoundError),  # another process has written the store, and removes the shards
            StoreWriter(folder, vocab_sizes=self._vocab_sizes) as writer,
        ):
            for chunk in chunks:
                writer.write(*chunk.sides)
                counts[chunk.part].update(chunk.counts)
            writer.meta["counts"] = counts

    def read(self, number: int) -> Iterator[Chunk]:
        """A shard as a chunk of each part of the source that it holds pairs of; the first one has the sentences of all. Raises
        UserError for one that is damaged, or that another process has removed.
        """
        store = TokenStore.open(self._folder / str(number))
        sides = [(ids, lengths) for ids, _, lengths in store.all_sides()]
        for part, counts in store.meta["counts"].items():
            yield Chunk(number, int(part), collections.Counter(counts), sides)
            sides = [(ids[:0], lengths[:0]) for ids, lengths in sides]

    def remove(self) -> None:
        """Removes all shards, at once for other processes."""
        removed = self._folder.with_name(f"{self._folder.name}.partial-{uuid.uuid4().hex}")
        with contextlib.suppress(FileNotFoundError):
            self._folder.rename(removed)
        remove_folder(removed)
