"""From a corpus to trained tokenizers, and from corpus and tokenizers to a token store."""

import contextlib
import hashlib
import itertools
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from t2t_flax.config import Data
from t2t_flax.config.renamed import original_value
from t2t_flax.data import worker_pool as workers
from t2t_flax.data.sources.base import Source
from t2t_flax.data.store.remote import find, place_of, send
from t2t_flax.data.store.token_store import TokenStore
from t2t_flax.data.store.writer import StoreWriter, turn
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.data.tokenizers.base import EOS, train_sentencepiece
from t2t_flax.errors import UserError

CHUNK_PAIRS = 2000
"""Pairs that one process tokenises at a time."""
INLINE_PAIRS = 60_000
"""Pairs tokenised before other processes are started: starting them takes seconds, these take about two."""
CHUNKS_IN_FLIGHT = 3
"""Chunks that wait or are worked on, for each process."""

RECIPE_VERSION = 1
"""Of the tokenised sentences, which checkpoints refer to: another number than the files' own FORMAT_VERSION."""
COUNTS = ("pairs_read", "dropped", "too_long", "truncated", "empty")

Pairs = list[tuple[str, str]]


def train_tokenizers(
    source: Source,
    *,
    kind: str,
    vocab_size: int,
    joint: bool,
    character_coverage: float = 1.0,
    byte_fallback: bool = True,
    normalization: str = "nmt_nfkc",
    split_digits: bool = False,
    max_sentences: int = 2_000_000,
) -> TokenizerPair:
    """Trains one tokenizer on the sentences of both sides (section 5.1), or one for each side if not joint.

    `max_sentences` bounds what trains one tokenizer. Arguments and errors as `train_sentencepiece`.
    """

    def train(sentences: Iterable[str]):
        return train_sentencepiece(
            sentences,
            kind=kind,
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            byte_fallback=byte_fallback,
            normalization=normalization,
            split_digits=split_digits,
            max_sentences=max_sentences,
        )

    if joint:
        both = train(itertools.chain.from_iterable(source.pairs()))
        return TokenizerPair(both, both)
    sides = []
    for n, side in enumerate(("source", "target")):
        try:
            sides.append(train(pair[n] for pair in source.pairs()))
        except UserError as error:
            raise UserError(f"{side} side of {source.spec}: {error}") from None
    return TokenizerPair(*sides)


def tokenizer_settings(data: Data) -> dict[str, Any]:
    """The keys of a config that `train_sentencepiece` takes."""
    return dict(
        kind=data.tokenizer,
        vocab_size=data.vocab_size,
        character_coverage=data.character_coverage,
        byte_fallback=data.byte_fallback,
        normalization=data.normalization,
        split_digits=data.split_digits,
        max_sentences=data.tokenizer_sentences,
    )


def prepare_split(
    source: Source,
    tokenizers: TokenizerPair,
    folder: os.PathLike | str,
    *,
    max_length: int,
    on_too_long: str,
    empty_lines: str,
    source_eos: bool = True,
    processes: int = 0,
    progress: Callable[[int, int | None], None] | None = None,
) -> TokenStore:
    """The token store of `source` at `folder`: opened if it was made from the same, else made anew. A folder in an object
    store is opened as this host's copy of it.

    max_length: tokens of either side, EOS counted. on_too_long: "drop" the pair | "truncate" each side to its first
    max_length - 1 tokens and EOS | "keep". empty_lines (a side without a token, or only whitespace): "drop" | "keep" |
    "error". processes: 0 = one per core; the bytes do not depend on it. progress(pairs done, pairs in all or None).
    meta.json counts pairs_read, pairs (kept), dropped, too_long, truncated and empty. Raises UserError if nothing is kept.
    """
    policies = Policies(max_length, on_too_long, empty_lines, source_eos)
    recipe, digest = recipe_of(source.fingerprint(), tokenizers, policies)
    found = find(folder, digest)
    if found:
        return found
    place = place_of(folder, digest)
    with turn(place):
        found = find(folder, digest)  # another process may have made it while this one waited
        if found:
            return found
        encoded = encode(source.pairs(), tokenizers, policies, processes)
        with new_store(place, tokenizers) as writer:
            counts = write_chunks(writer, encoded, source, policies, progress=progress)
            refuse_nothing(source, counts, policies)
            writer.meta.update(digest=digest, recipe=recipe, **counts)
        store = TokenStore.open(place, epath.Path(folder))
        send(place, folder)
    return store


@dataclass(frozen=True)
class Policies:
    """What happens to pairs that are too long or have an empty side; see `prepare_split`."""

    max_length: int
    on_too_long: str
    empty_lines: str
    source_eos: bool = True

    def as_stored(self) -> dict[str, Any]:
        """By their first names, so that the digests of stores stay what they were."""
        return {
            "max_length": self.max_length,
            "too_long": original_value("data.on_too_long", self.on_too_long),
            "empty_lines": self.empty_lines,
            "source_eos": self.source_eos,
        }


def recipe_of(fingerprint: str, tokenizers: TokenizerPair, policies: Policies) -> tuple[dict[str, Any], str]:
    """(what a store is made from, its sha256)."""
    recipe = {
        "format_version": RECIPE_VERSION,
        "source_fingerprint": fingerprint,
        "tokenizer_digest": tokenizers.digest,
        **policies.as_stored(),
    }
    return recipe, hashlib.sha256(json.dumps(recipe).encode()).hexdigest()


def new_store(place: Path, tokenizers: TokenizerPair) -> StoreWriter:
    """A writer of a store with the tokenizers' sizes."""
    return StoreWriter(place, vocab_sizes=(tokenizers.source.vocab_size, tokenizers.target.vocab_size))


def encode(pairs: Iterator[tuple[str, str]], tokenizers: TokenizerPair, policies: Policies, processes: int):
    """Tokenised chunks of the pairs, in their order; `processes` as in `prepare_split`."""
    return _encode_all(_Encoder(tokenizers, policies), pairs, processes or _num_cores())


def write_chunks(
    writer: StoreWriter, encoded, source: Source, policies: Policies, *, first: int = 0, total=None, progress=None
) -> dict[str, int]:
    """Appends tokenised chunks, of which the first begins with pair `first` of the source; returns the counts.

    Raises UserError for an empty side where the policies say so.
    """
    counts = dict.fromkeys(COUNTS, 0)
    with contextlib.closing(encoded):
        for chunk in encoded:
            if chunk.first_empty is not None and policies.empty_lines == "error":
                place = source.where(first + counts["pairs_read"] + chunk.first_empty)
                raise UserError(
                    f"{place}: one side of the pair is empty; correct the text, or drop such pairs with "
                    f"config.data.empty_lines = 'drop'"
                )
            writer.write(*chunk.sides)
            for name, count in chunk.counts.items():
                counts[name] += count
            if progress:
                progress(counts["pairs_read"], total or source.count)
    return counts


def refuse_nothing(source: Source, counts: dict[str, int], policies: Policies) -> None:
    """Raises UserError where no pair was kept."""
    if counts["dropped"] == counts["pairs_read"]:
        raise UserError(
            f"{source.spec}: nothing is left of {counts['pairs_read']} pairs: {counts['empty']} have an empty side, "
            f"{counts['too_long']} have a side longer than config.data.max_length = {policies.max_length} tokens"
        )


@dataclass
class _Chunk:
    sides: tuple[tuple[np.ndarray, np.ndarray], ...]
    counts: dict[str, int]
    first_empty: int | None = None


@dataclass
class _Encoder:
    """Tokenises chunks of pairs under the policies; is sent to other processes once."""

    tokenizers: TokenizerPair
    policies: Policies

    def __call__(self, pairs: Pairs) -> _Chunk:
        policies = self.policies
        counts = dict.fromkeys(COUNTS, 0) | {"pairs_read": len(pairs)}
        kept: tuple[list, list] = [], []
        first_empty = None
        for i, pair in enumerate(pairs):
            source, target = self.tokenizers.source.encode(pair[0]), self.tokenizers.target.encode(pair[1])
            empty = not (source and target and pair[0].strip() and pair[1].strip())
            if empty and first_empty is None:
                first_empty = i
            long = max(len(source), len(target)) + 1 > policies.max_length
            drop = (empty and policies.empty_lines == "drop") or (long and policies.on_too_long == "drop")
            counts["empty"] += empty
            counts["too_long"] += long
            counts["dropped"] += drop
            counts["truncated"] += long and not drop and policies.on_too_long == "truncate"
            if not drop:
                for side, ids, eos in zip(kept, (source, target), (policies.source_eos, True), strict=True):
                    if policies.on_too_long == "truncate":
                        del ids[policies.max_length - 1 :]
                    side.append(ids + [EOS] if eos else ids)
        sides = tuple(
            (
                np.fromiter(itertools.chain.from_iterable(side), np.int32),
                np.fromiter(map(len, side), np.int32, len(side)),
            )
            for side in kept
        )
        return _Chunk(sides, counts, first_empty)


def _encode_all(encoder: _Encoder, pairs: Iterator[tuple[str, str]], processes: int) -> Iterator[_Chunk]:
    """Chunks in the order of the corpus; never more than a few in memory."""
    chunks = iter(lambda: list(itertools.islice(pairs, CHUNK_PAIRS)), [])
    inline = None if processes == 1 else INLINE_PAIRS // CHUNK_PAIRS
    yield from map(encoder, itertools.islice(chunks, inline))
    first = next(chunks, None)
    if first is not None:
        yield from _encode_in_processes(encoder, itertools.chain([first], chunks), processes)


def _encode_in_processes(encoder: _Encoder, chunks: Iterable[Pairs], processes: int) -> Iterator[_Chunk]:
    pool = workers.pool(processes, _start_worker, encoder)
    waiting = deque()
    try:
        with workers.lost("tokenises", "set config.data.num_workers = 1 to tokenise in this process alone"):
            for chunk in chunks:
                waiting.append(pool.submit(_work, chunk))
                if len(waiting) >= processes * CHUNKS_IN_FLIGHT:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


_worker_encoder: _Encoder


def _start_worker(encoder: _Encoder) -> None:
    global _worker_encoder
    _worker_encoder = encoder


def _work(pairs: Pairs) -> _Chunk:
    return _worker_encoder(pairs)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
