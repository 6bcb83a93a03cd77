"""Shards of tokenized chunks, so that a killed preparation of data can continue.

They are kept until their store is written.
"""

import collections
import contextlib
import hashlib
import itertools
import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from t2t_flax.data.token_store import StoreWriter, TokenStore
from t2t_flax.errors import UserError
from t2t_flax.files import PARTIAL, delete, list_names, list_numbers
from t2t_flax.locks import exclusive_writer

SHARD_CHUNKS = 50
"""Number of chunks in a shard, which a killed preparation does not tokenize again."""
SUFFIX = ".shards-"
_KEY = "[0-9a-f]{12}"
_WEEK = 7 * 24 * 3600.0
"""Seconds after which unused shards of other stores are removed."""


@dataclass
class Chunk:
    """Tokenized pairs of one part of a source.

    Attributes:
        part: number of the part.
        sides: (ids [total], lengths [pairs]) of source and target, int32, and of their texts if
            these are kept, uint8 and int32.
        dropped: (index, reason) of each dropped pair.
    """

    part: int
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    sides: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    dropped: list[tuple[int, str]] = field(default_factory=list)


@contextlib.contextmanager
def kept_chunks(
    encode: Callable[[int], Generator[Chunk, None, None]],
    store: Path,
    vocab_sizes: Sequence[int],
    digest: str,
    check: Callable[[], None],
) -> Iterator[Iterator[Chunk]]:
    """Yield all chunks of a store. The caller is the only writer of the store.

    Args:
        encode: (n) -> the chunks of the source after the first n, in order.
        store: folder of the future store. The shards are in `STORE.shards-KEY` until the block ends
            without an error.
        digest: digest of the future store and its chunks. Shards with another digest are removed.
        check: raises UserError if the source has changed; called before a shard is written.
    """
    key = hashlib.sha256(f"{digest} {SHARD_CHUNKS}".encode()).hexdigest()[:12]
    folder = store.with_name(f"{store.name}{SUFFIX}{key}")
    with contextlib.suppress(OSError):  # owned by another account
        delete(store.parent, rf"{re.escape(store.name + SUFFIX)}(?!{key}){_KEY}")
    delete(folder, rf"\d+{PARTIAL}")
    _remove_forgotten(store.parent)
    numbers = set(list_numbers(folder))
    done = next(number for number in itertools.count() if number not in numbers)
    with contextlib.closing(encode(done * SHARD_CHUNKS)) as new:
        yield _chunks(folder, done, new, vocab_sizes, check)
    with contextlib.suppress(OSError):
        delete(folder.parent, re.escape(folder.name))


def _remove_forgotten(folder: Path) -> None:
    for match in filter(
        None, map(re.compile(rf"(.+){re.escape(SUFFIX)}{_KEY}").fullmatch, list_names(folder))
    ):
        with contextlib.suppress(UserError, OSError):  # being written, or owned by another account
            if time.time() - (folder / match[0]).stat().st_mtime > _WEEK:
                with exclusive_writer(folder / match[1], "prepare", wait=False):
                    delete(folder, re.escape(match[0]))


def _chunks(
    folder: Path,
    done: int,
    new: Iterator[Chunk],
    vocab_sizes: Sequence[int],
    check: Callable[[], None],
) -> Iterator[Chunk]:
    for number in range(done):
        yield from _read(folder / str(number))
    last: list[Chunk] = []
    for chunk in new:
        if len(last) == SHARD_CHUNKS:
            check()
            _write(folder / str(done), last, vocab_sizes)
            done, last = done + 1, []
        last.append(chunk)
        yield chunk


def _write(folder: Path, chunks: Sequence[Chunk], vocab_sizes: Sequence[int]) -> None:
    """Write a shard, whole or not at all."""
    counts: dict[int, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    with StoreWriter(folder, vocab_sizes=vocab_sizes) as writer:
        for chunk in chunks:
            writer.write(*chunk.sides)
            counts[chunk.part].update(chunk.counts)
        writer.meta["counts"] = counts


def _read(folder: Path) -> Iterator[Chunk]:
    """Yield a chunk for each part of the source in a shard.

    The first chunk has the sentences of all parts.
    """
    store = TokenStore.open(folder)
    sides = [(ids, lengths) for ids, _, lengths in store.all_sides()]
    for part, counts in store.meta["counts"].items():
        yield Chunk(int(part), collections.Counter(counts), sides)
        sides = [(ids[:0], lengths[:0]) for ids, lengths in sides]
