"""Tokenizes a source into a token store."""

import contextlib
import hashlib
import itertools
import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from etils import epath

from t2t_flax.config.special_tokens import EOS
from t2t_flax.data import worker_pool
from t2t_flax.data.pair_filter import Pair, PairFilter, Unread
from t2t_flax.data.sources.base import Source
from t2t_flax.data.store.places import find_store, local_path, upload
from t2t_flax.data.store.token_store import TokenStore
from t2t_flax.data.store.writer import StoreWriter
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.data.tokenizers.base import Tokenizer
from t2t_flax.errors import UserError
from t2t_flax.locks import exclusive_writer

CHUNK_PAIRS = 2000
"""Pairs that a process tokenizes at a time."""
INLINE_PAIRS = 60_000
"""Pairs tokenized before worker processes start: starting them takes seconds, these pairs about two."""
CHUNKS_IN_FLIGHT = 3
"""Chunks queued or in progress per process."""

RECIPE_VERSION = 1
"""Version of the tokenized sentences, which checkpoints refer to; the files have their own FORMAT_VERSION."""
COUNTS = ("pairs_read", "dropped", "truncated", "empty", "too_long")
"""Beside those of filters, by their reason. A pair that is dropped for several reasons counts under each, and is listed with the
first."""

Encode = Callable[[str], list[int]]
"""Text to ids, without EOS."""
ProgressCallback = Callable[[int, int | None], None]
"""Called with (pairs done, pairs in total or None)."""


class Segmentation(Protocol):
    """A way to tokenize training pairs other than the tokenizers' own; pickled once for each worker process. Its `str` says
    which one it is.
    """

    def as_stored(self) -> dict[str, Any]:
        """As part of a store's recipe."""

    def encoders(self, sides: Sequence[Tokenizer], chunk: int, max_length: int) -> Sequence[Encode]:
        """The functions for both sides of a chunk of `CHUNK_PAIRS` pairs, chunks numbered from 0 in the whole source; called in
        the order of the pairs, source before target. max_length: of the policies.
        """


@dataclass(frozen=True)
class Policies:
    """How pairs that are too long or have an empty side are handled.

    max_length: tokens of either side, EOS included. on_too_long: "drop" the pair | "truncate" each side to its first
    max_length - 1 tokens and EOS | "keep". empty_lines (a side without a token, or only whitespace): "drop" | "keep" |
    "error". source_eos: whether source sentences end with EOS. filters: drop further pairs.
    """

    max_length: int
    on_too_long: str
    empty_lines: str
    source_eos: bool = True
    filters: tuple[PairFilter, ...] = ()

    def as_stored(self) -> dict[str, Any]:
        """The policies as JSON values, of which the digest of a store is computed."""
        stored: dict[str, Any] = {
            "max_length": self.max_length,
            "on_too_long": self.on_too_long,
            "empty_lines": self.empty_lines,
            "source_eos": self.source_eos,
        }
        for pair_filter in self.filters:
            stored |= pair_filter.as_stored()
        return stored


def prepare_split(
    source: Source,
    tokenizers: TokenizerPair,
    folder: os.PathLike | str,
    policies: Policies,
    *,
    num_workers: int = 0,
    progress: ProgressCallback | None = None,
    segmentation: Segmentation | None = None,
) -> TokenStore:
    """The token store of `source` at `folder`: opened if it was written from the same data, otherwise written. For a
    folder in an object store, this host's copy of it.

    num_workers: processes that tokenize, 0 = one per core; the bytes do not depend on it. meta.json counts pairs_read,
    pairs (kept), truncated, dropped and, by reason, those dropped. Raises UserError if no pair is left, and for
    an empty side if the policies say "error".
    """
    recipe, digest = recipe_of(source.fingerprint(), tokenizers, policies, segmentation, start_tokens(source))
    if store := find_store(folder, digest):
        return store
    local = local_path(folder, digest)
    with exclusive_writer(local, "prepare"):
        if store := find_store(folder, digest):  # written by another process during the wait
            return store
        with StoreWriter(local, vocab_sizes=tokenizers.vocab_sizes) as writer:
            encoder = _Encoder(tokenizers, policies, segmentation)
            counts, pairs = encoder.no_counts(), []
            for part, chunks in _encode_parts(encoder, source, num_workers):
                of_part = _write(writer, chunks, part, progress, source, counts["pairs_read"])
                _require_nonempty(part, of_part, policies)
                pairs.append(of_part["pairs_read"] - of_part["dropped"])
                counts = {name: count + of_part[name] for name, count in counts.items()}
            writer.meta.update(digest=digest, recipe=recipe, **counts)
            if policies.filters:
                writer.meta["filters"] = {f.reason: f.shown for f in policies.filters}
            writer.meta.update({"pairs_of_sources": pairs} if len(pairs) > 1 else {})
        store = TokenStore.open(local, epath.Path(folder))
        upload(folder, local)
    return store


def list_dropped(
    source: Source,
    tokenizers: TokenizerPair,
    policies: Policies,
    *,
    num_workers: int = 0,
    segmentation: Segmentation | None = None,
) -> Iterator[tuple[str, str]]:
    """(where it is, reason) of each pair that `prepare_split` drops, in order; tokenizes the source again."""
    for part, chunks in _encode_parts(_Encoder(tokenizers, policies, segmentation), source, num_workers):
        first = 0
        with contextlib.closing(chunks):
            for chunk in chunks:
                yield from ((part.where(first + i), reason) for i, reason in chunk.dropped)
                first += chunk.counts["pairs_read"]


def start_tokens(source: Source) -> list[list[str]]:
    """The `start_tokens` of each part of a source; empty if none has any."""
    tokens = [list(part.start_tokens) for part in source.parts]
    return tokens if any(tokens) else []


def recipe_of(
    fingerprint: str,
    tokenizers: TokenizerPair,
    policies: Policies,
    segmentation: Segmentation | None = None,
    starts: list[list[str]] | None = None,
) -> tuple[dict[str, Any], str]:
    """(the inputs and settings that determine a store, their sha256). starts: of `start_tokens`."""
    recipe = {
        "format_version": RECIPE_VERSION,
        "source_fingerprint": fingerprint,
        "tokenizer_digest": tokenizers.digest,
        **policies.as_stored(),
    }
    if segmentation:  # drawn chunk by chunk
        recipe |= {"segmentation": segmentation.as_stored(), "chunk_pairs": CHUNK_PAIRS}
    if starts:
        recipe["start_tokens"] = starts
    return recipe, hashlib.sha256(json.dumps(recipe).encode()).hexdigest()


@dataclass
class _Chunk:
    sides: tuple[tuple[np.ndarray, np.ndarray], ...]
    counts: dict[str, int]
    empty: int | None = None
    """Index in the chunk of the first pair with an empty side, if that is an error."""
    dropped: list[tuple[int, str]] = field(default_factory=list)
    """(index in the chunk, reason) of the dropped pairs."""


def _write(
    writer: StoreWriter,
    chunks: Iterator[_Chunk],
    source: Source,
    progress: ProgressCallback | None,
    whole: Source,
    done: int,
) -> dict[str, int]:
    counts: Counter[str] = Counter()
    with contextlib.closing(chunks):
        for chunk in chunks:
            if chunk.empty is not None:
                raise UserError(
                    f"{source.where(counts['pairs_read'] + chunk.empty)}: one side of the pair is empty; correct the "
                    "text, or drop such pairs with config.data.empty_lines = 'drop'"
                )
            writer.write(*chunk.sides)
            for name, count in chunk.counts.items():
                counts[name] += count
            if progress:
                progress(done + counts["pairs_read"], whole.count)
    return counts


def _require_nonempty(source: Source, counts: dict[str, int], policies: Policies) -> None:
    if counts["dropped"] == counts["pairs_read"]:
        raise UserError(
            f"{source.spec}: no pair is left of {counts['pairs_read']}: {counts['empty']} have an empty side, "
            f"{counts['too_long']} have a side longer than config.data.max_length = {policies.max_length} tokens"
            + "".join(f", {counts[f.reason]} are {f.shown}" for f in policies.filters if counts[f.reason])
        )


@dataclass
class _Encoder:
    """Tokenizes chunks of pairs under the policies; pickled once for each worker process. start: ids before those of each
    source sentence.
    """

    tokenizers: TokenizerPair
    policies: Policies
    segmentation: Segmentation | None = None
    tag: str = ""
    """Before the source sentences, its space included; filters do not see it."""
    start: tuple[int, ...] = ()

    def no_counts(self) -> dict[str, int]:
        """Zero for each count of a chunk."""
        return dict.fromkeys([*COUNTS, *(pair_filter.reason for pair_filter in self.policies.filters)], 0)

    def __call__(self, pairs: list[Unread], number: int) -> _Chunk:
        """The chunk of these pairs; number: of the chunk in the whole source."""
        sides = self.tokenizers.source, self.tokenizers.target
        if self.segmentation is None:
            return self._encode(pairs, *(tokenizer.encode for tokenizer in sides))
        return self._encode(pairs, *self.segmentation.encoders(sides, number, self.policies.max_length))

    def _encode(self, pairs: list[Unread], encode_source: Encode, encode_target: Encode) -> _Chunk:
        policies = self.policies
        counts = self.no_counts() | {"pairs_read": len(pairs)}
        sentences: tuple[list, list] = [], []
        first_empty, dropped = None, []
        for i, pair in enumerate(pairs):
            if isinstance(pair, str):
                counts[pair] += 1
                counts["dropped"] += 1
                dropped.append((i, pair))
                continue
            source, target = encode_source(pair[0]), encode_target(pair[1])
            empty = not (source and target and pair[0].strip() and pair[1].strip())
            if empty and first_empty is None and policies.empty_lines == "error":
                first_empty = i
            long = max(len(self.start) + len(source), len(target)) + 1 > policies.max_length
            reasons = ["empty"] if empty and policies.empty_lines == "drop" else []
            reasons += ["too_long"] if long and policies.on_too_long == "drop" else []
            if policies.filters and not empty:
                whole = Pair(pair[0].removeprefix(self.tag), pair[1], source, target)
                filtered = [pair_filter.reason for pair_filter in policies.filters if pair_filter.drops(whole)]
                counts.update({reason: counts[reason] + 1 for reason in filtered})
                reasons += filtered
            counts["empty"] += empty
            counts["too_long"] += long
            counts["dropped"] += bool(reasons)
            counts["truncated"] += long and not reasons and policies.on_too_long == "truncate"
            if reasons:
                dropped.append((i, reasons[0]))
                continue
            source = self.tokenizers.after_start(self.start, source)
            for side, ids, eos in zip(sentences, (source, target), (policies.source_eos, True), strict=True):
                if policies.on_too_long == "truncate":
                    del ids[policies.max_length - 1 :]
                side.append(ids + [EOS] if eos else ids)
        sides = tuple(
            (
                np.fromiter(itertools.chain.from_iterable(side), np.int32),
                np.fromiter(map(len, side), np.int32, len(side)),
            )
            for side in sentences
        )
        return _Chunk(sides, counts, first_empty, dropped)


def _encode_parts(encoder: _Encoder, source: Source, num_workers: int) -> Iterator[tuple[Source, Iterator[_Chunk]]]:
    """The chunks of each part of a source."""
    numbers, filters = itertools.count(), encoder.policies.filters
    pairs: Sequence[Iterator[Unread]] = [part.pairs() for part in source.parts]
    for pair_filter in filters:
        pairs = pair_filter.in_order(source.parts, pairs)
    for number, (part, of_part) in enumerate(zip(source.parts, pairs, strict=True)):
        policies = replace(encoder.policies, filters=tuple(pair_filter.of_part(number) for pair_filter in filters))
        start = tuple(encoder.tokenizers.start_ids(part.start_tokens))
        tag = f"{part.tag} " if part.tag else ""
        yield (
            part,
            _encode_all(replace(encoder, policies=policies, tag=tag, start=start), of_part, num_workers, numbers),
        )


def _encode_all(
    encoder: _Encoder, pairs: Iterator[Unread], num_workers: int, numbers: Iterator[int]
) -> Iterator[_Chunk]:
    """Chunks in the order of the corpus; never more than a few in memory."""
    num_workers = num_workers or _num_cores()
    chunks = zip(iter(lambda: list(itertools.islice(pairs, CHUNK_PAIRS)), []), numbers, strict=False)
    inline = None if num_workers == 1 else INLINE_PAIRS // CHUNK_PAIRS
    yield from itertools.starmap(encoder, itertools.islice(chunks, inline))
    first = next(chunks, None)
    if first is not None:
        yield from _encode_in_processes(encoder, itertools.chain([first], chunks), num_workers)


def _encode_in_processes(
    encoder: _Encoder, chunks: Iterable[tuple[list[Unread], int]], num_workers: int
) -> Iterator[_Chunk]:
    pool = worker_pool.start(num_workers, _start_worker, encoder)
    pending = deque()
    try:
        with worker_pool.report_lost("tokenizes", "set config.data.num_workers = 1 to tokenize in this process"):
            for chunk in chunks:
                pending.append(pool.submit(_work, *chunk))
                if len(pending) >= num_workers * CHUNKS_IN_FLIGHT:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


_worker_encoder: _Encoder


def _start_worker(encoder: _Encoder) -> None:
    global _worker_encoder
    _worker_encoder = encoder


def _work(pairs: list[Unread], number: int) -> _Chunk:
    return _worker_encoder(pairs, number)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
