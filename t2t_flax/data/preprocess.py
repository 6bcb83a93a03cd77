"""Tokenizes a source into a token store."""

import contextlib
import functools
import hashlib
import itertools
import json
import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from etils import epath

from t2t_flax.config.special_tokens import EOS
from t2t_flax.data import worker_pool
from t2t_flax.data.language_filter import LanguageFilter
from t2t_flax.data.sources.base import Source
from t2t_flax.data.store.places import find_store, local_path, upload
from t2t_flax.data.store.token_store import TokenStore
from t2t_flax.data.store.writer import StoreWriter
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.data.tokenizers.base import Tokenizer
from t2t_flax.data.tokenizers.segmentations import Segmentation
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
REASONS = ("duplicate", "empty", "too_long", "length_ratio", "language")
"""Why a pair is dropped. One that has several reasons counts under each, and is listed with the first."""
COUNTS = ("pairs_read", "dropped", "truncated", *REASONS)

Pairs = list[tuple[str, str] | None]
"""None: a duplicate of an earlier pair."""
ProgressCallback = Callable[[int, int | None], None]
"""Called with (pairs done, pairs in total or None)."""


@dataclass(frozen=True)
class Policies:
    """How pairs that are too long or have an empty side are handled.

    max_length: tokens of either side, EOS included. on_too_long: "drop" the pair | "truncate" each side to its first
    max_length - 1 tokens and EOS | "keep". empty_lines (a side without a token, or only whitespace): "drop" | "keep" |
    "error". source_eos: whether source sentences end with EOS. max_length_ratio: pairs are dropped if one side has more than
    this many times the tokens of the other; 0 = none. drop_duplicates: pairs that occurred before, on both sides equal
    character by character, are dropped. language_filters: for each part of the source, pairs that it does not accept are
    dropped; () = none.
    """

    max_length: int
    on_too_long: str
    empty_lines: str
    source_eos: bool = True
    max_length_ratio: float = 0.0
    drop_duplicates: bool = False
    language_filters: tuple[LanguageFilter, ...] = ()

    def as_stored(self) -> dict[str, Any]:
        """The policies as JSON values, of which the digest of a store is computed."""
        stored: dict[str, Any] = {
            "max_length": self.max_length,
            "on_too_long": self.on_too_long,
            "empty_lines": self.empty_lines,
            "source_eos": self.source_eos,
        } | {name: getattr(self, name) for name in ("max_length_ratio", "drop_duplicates") if getattr(self, name)}
        filters = [language_filter.as_stored() for language_filter in self.language_filters]
        return stored | ({"language_filters": filters} if filters else {})


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
    pairs (kept), truncated, dropped and, by reason, those dropped (`REASONS`). Raises UserError if no pair is left, and for
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
            counts, pairs = dict.fromkeys(COUNTS, 0), []
            for part, chunks in _encode_parts(encoder, source, num_workers):
                of_part = _write(writer, chunks, part, progress, source, counts["pairs_read"])
                _require_nonempty(part, of_part, policies)
                pairs.append(of_part["pairs_read"] - of_part["dropped"])
                counts = {name: count + of_part[name] for name, count in counts.items()}
            writer.meta.update(digest=digest, recipe=recipe, **counts)
            writer.meta.update({"pairs_of_sources": pairs} if len(pairs) > 1 else {})
        store = TokenStore.open(local, epath.Path(folder))
        upload(local, folder)
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
    counts = dict.fromkeys(COUNTS, 0)
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
        others = {
            "duplicate": "occurred before",
            "length_ratio": f"have sides whose lengths differ by more than {policies.max_length_ratio:g} times",
            "language": "have a side in another language",
        }
        raise UserError(
            f"{source.spec}: no pair is left of {counts['pairs_read']}: {counts['empty']} have an empty side, "
            f"{counts['too_long']} have a side longer than config.data.max_length = {policies.max_length} tokens"
            + "".join(f", {counts[name]} {text}" for name, text in others.items() if counts[name])
        )


_Encode = Callable[[str], list[int]]


@dataclass
class _Encoder:
    """Tokenizes chunks of pairs under the policies; pickled once for each worker process. start: ids before those of each
    source sentence.
    """

    tokenizers: TokenizerPair
    policies: Policies
    segmentation: Segmentation | None = None
    tag: str = ""
    """Before the source sentences, with a space; the language filter ignores it."""
    start: tuple[int, ...] = ()
    language_filter: LanguageFilter | None = None

    def __call__(self, pairs: Pairs, number: int) -> _Chunk:
        """The chunk of these pairs; number: of the chunk in the whole source."""
        sides = self.tokenizers.source, self.tokenizers.target
        if self.segmentation is None:
            return self._encode(pairs, *(tokenizer.encode for tokenizer in sides))
        generator = self.segmentation.generator(number)
        return self._encode(pairs, *(functools.partial(self._sample, tokenizer, generator) for tokenizer in sides))

    def _sample(self, tokenizer: Tokenizer, generator: random.Random, text: str) -> list[int]:
        """Sentences that are too long as they are keep their one segmentation: drawing takes time with their square."""
        ids = tokenizer.encode(text)
        if len(ids) >= self.policies.max_length:
            return ids
        return tokenizer.sample(text, self.segmentation, generator)

    def _encode(self, pairs: Pairs, encode_source: _Encode, encode_target: _Encode) -> _Chunk:
        policies = self.policies
        counts = dict.fromkeys(COUNTS, 0) | {"pairs_read": len(pairs)}
        sentences: tuple[list, list] = [], []
        first_empty, dropped = None, []
        for i, pair in enumerate(pairs):
            if pair is None:
                counts["duplicate"] += 1
                counts["dropped"] += 1
                dropped.append((i, "duplicate"))
                continue
            source, target = encode_source(pair[0]), encode_target(pair[1])
            empty = not (source and target and pair[0].strip() and pair[1].strip())
            if empty and first_empty is None and policies.empty_lines == "error":
                first_empty = i
            long = max(len(self.start) + len(source), len(target)) + 1 > policies.max_length
            short, longer = sorted((len(source), len(target)))
            uneven = bool(policies.max_length_ratio) and longer > policies.max_length_ratio * short and not empty
            foreign = self.language_filter is not None and not self.language_filter.accepts(
                _without_tag(pair[0], self.tag), pair[1]
            )
            reasons = {
                "empty": empty and policies.empty_lines == "drop",
                "too_long": long and policies.on_too_long == "drop",
                "length_ratio": uneven,
                "language": foreign,
            }
            drop = any(reasons.values())
            counts["empty"] += empty
            counts["too_long"] += long
            counts["length_ratio"] += uneven
            counts["language"] += foreign
            counts["dropped"] += drop
            counts["truncated"] += long and not drop and policies.on_too_long == "truncate"
            if drop:
                dropped.append((i, next(reason for reason, applies in reasons.items() if applies)))
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
    """The chunks of each part of a source; duplicates are found over all parts."""
    seen: set[bytes] = set()
    numbers = itertools.count()
    filters = encoder.policies.language_filters or [None] * len(source.parts)
    for part, language_filter in zip(source.parts, filters, strict=True):
        pairs = _without_duplicates(part, seen) if encoder.policies.drop_duplicates else part.pairs()
        start = tuple(encoder.tokenizers.start_ids(part.start_tokens))
        of_part = replace(encoder, tag=part.tag, start=start, language_filter=language_filter)
        yield part, _encode_all(of_part, pairs, num_workers, numbers)


def _without_duplicates(part: Source, seen: set[bytes]) -> Iterator[tuple[str, str] | None]:
    """None for pairs whose digest, without the tag, is in `seen`, to which the others are added: about 120 bytes of memory a
    pair. The same pair in two directions, as names often are, is no duplicate.
    """
    language = part.start_tokens[:1]
    for pair in part.pairs():
        text = json.dumps([_without_tag(pair[0], part.tag), pair[1], *language])
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        yield None if digest in seen else pair
        seen.add(digest)


def _without_tag(text: str, tag: str) -> str:
    return text.removeprefix(f"{tag} ") if tag else text


def _encode_all(
    encoder: _Encoder, pairs: Iterator[tuple[str, str] | None], num_workers: int, numbers: Iterator[int]
) -> Iterator[_Chunk]:
    """Chunks in the order of the corpus; never more than a few in memory."""
    num_workers = num_workers or _num_cores()
    chunks = zip(iter(lambda: list(itertools.islice(pairs, CHUNK_PAIRS)), []), numbers, strict=False)
    inline = None if num_workers == 1 else INLINE_PAIRS // CHUNK_PAIRS
    yield from itertools.starmap(encoder, itertools.islice(chunks, inline))
    first = next(chunks, None)
    if first is not None:
        yield from _encode_in_processes(encoder, itertools.chain([first], chunks), num_workers)


def _encode_in_processes(encoder: _Encoder, chunks: Iterable[tuple[Pairs, int]], num_workers: int) -> Iterator[_Chunk]:
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


def _work(pairs: Pairs, number: int) -> _Chunk:
    return _worker_encoder(pairs, number)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
