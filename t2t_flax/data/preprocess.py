"""Tokenizes a source into a token store, in worker processes, and decides which pairs are dropped."""

import collections
import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from etils import epath

from t2t_flax.config.data_keys import EOS
from t2t_flax.data.sources import Source
from t2t_flax.data.token_store import StoreWriter, TokenStore, find_store, local_path, upload
from t2t_flax.data.tokenizers import Tokenizer, TokenizerPair
from t2t_flax.data.workers import Workers, num_cores
from t2t_flax.errors import UserError
from t2t_flax.locks import exclusive_writer

RECIPE_VERSION = 2
"""Version of the tokenized sentences, which checkpoints refer to; the files have their own FORMAT_VERSION."""
ProgressCallback = Callable[[int, int | None], None]
"""Called with (pairs done, pairs in total or None)."""
CHUNK_PAIRS = 2000
"""Pairs that a process tokenizes at a time."""
INLINE_PAIRS = 60_000
"""Pairs tokenized before worker processes start: starting them takes seconds, these pairs about two."""
CHUNKS_IN_FLIGHT = 3
"""Chunks queued or in progress per process."""

COUNTS = ("pairs_read", "dropped", "truncated", "empty", "too_long")
"""Beside those of filters, by their reason. A pair that is dropped for several reasons counts under each, and is listed with the
first."""

Encode = Callable[[str], list[int]]
"""Text to ids, without EOS."""
Unread = tuple[str, str] | str
"""The texts of a pair, or the reason why it is dropped before it is tokenized."""


class Pair(NamedTuple):
    """A pair without an empty side: its texts and their ids, without a tag and EOS, and the number of its part of the source."""

    source: str
    target: str
    source_ids: Sequence[int]
    target_ids: Sequence[int]
    part: int


class PairFilter:
    """Finds training pairs that are dropped for one reason; a picklable object, of which each worker process has a copy."""

    reason: ClassVar[str]
    """A word, in lists of dropped pairs and as a count of a token store's meta.json."""
    shown: ClassVar[str]
    """In messages, after a number: "repeated"."""

    def as_stored(self) -> dict[str, Any]:
        """As part of a store's recipe, in JSON values. Raises UserError for what the filter lacks."""
        return {}

    def in_order(self, parts: Sequence[Source], pairs: Sequence[Iterator[Unread]]) -> Sequence[Iterator[Unread]]:
        """The pairs of all parts, in one process and in order, where each may be replaced by the reason."""
        return pairs

    def drops(self, pair: Pair) -> bool:
        """Whether a pair is dropped; in any order, in worker processes."""
        return False


class Segmentation(Protocol):
    """A way to tokenize training pairs other than the tokenizers' own; pickled once for each worker process. Its `str` says
    which one it is.
    """

    def as_stored(self) -> dict[str, Any]:
        """As part of a store's recipe."""

    def encoders(self, sides: Sequence[Tokenizer], chunk: int, max_length: int) -> Sequence[Encode]:
        """The functions for both sides of a chunk of `CHUNK_PAIRS` pairs, chunks numbered from 0 in the whole source; called in
        the order of the pairs, source before target. A source may begin with control symbols. max_length: of the policies.
        """


@dataclass(frozen=True)
class Policies:
    """How pairs that are too long or have an empty side are handled.

    max_length: tokens of either side, EOS included. on_too_long: "drop" the pair | "truncate" each side to its first
    max_length - 1 tokens and EOS | "keep". empty_lines (a side without a token, or only whitespace): "drop" | "keep".
    source_eos: whether source sentences end with EOS. filters: drop further pairs.
    """

    max_length: int
    on_too_long: str
    empty_lines: str
    source_eos: bool = True
    filters: tuple[PairFilter, ...] = ()

    def as_stored(self) -> dict[str, Any]:
        """The policies as JSON values, of which the digest of a store is computed."""
        stored = {name: value for name, value in vars(self).items() if name != "filters"}
        for pair_filter in self.filters:
            stored |= pair_filter.as_stored()
        return stored


@dataclass
class Chunk:
    """Encoded pairs. sides: (ids [total], lengths [pairs]), int32, of source and target. dropped: (index, reason)."""

    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    sides: Sequence[tuple[np.ndarray, np.ndarray]] = ()
    dropped: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class Encoder:
    """Tokenizes chunks of pairs under the policies; pickled once for each worker process."""

    tokenizers: TokenizerPair
    policies: Policies
    segmentation: Segmentation | None = None
    part: int = 0
    """Number of the part of the source from which the pairs are."""
    tag: str = ""
    """Before the source sentences, its space included; filters do not see it."""

    def __call__(self, pairs: list[Unread], number: int) -> Chunk:
        """The chunk of these pairs; number: of the chunk in the whole source."""
        policies = self.policies
        encode: Sequence[Encode] = [self.tokenizers.source.encode, self.tokenizers.target.encode_text]
        if self.segmentation:
            sides = self.tokenizers.source, self.tokenizers.target
            encode = self.segmentation.encoders(sides, number, policies.max_length)
        chunk = Chunk(collections.Counter(pairs_read=len(pairs)))
        kept: tuple[list, list] = [], []
        for i, pair in enumerate(pairs):
            if isinstance(pair, str):
                reasons = [pair]
                chunk.counts[pair] += 1
            else:
                ids = [one(text) for one, text in zip(encode, pair, strict=True)]
                reasons = self._reasons(pair, ids, chunk.counts)
            if reasons:
                chunk.counts["dropped"] += 1
                chunk.dropped.append((i, reasons[0]))
                continue
            for side, of_side, eos in zip(kept, ids, (policies.source_eos, True), strict=True):
                if policies.on_too_long == "truncate":
                    del of_side[policies.max_length - 1 :]
                side.append(of_side + [EOS] if eos else of_side)
        chunk.sides = [
            (
                np.fromiter(itertools.chain.from_iterable(side), np.int32),
                np.fromiter(map(len, side), np.int32, len(side)),
            )
            for side in kept
        ]
        return chunk

    def _reasons(self, pair: tuple[str, str], ids: list[list[int]], counts: collections.Counter[str]) -> list[str]:
        """Why a pair is dropped; counts what it is."""
        policies = self.policies
        bare = ids[0][len(self.tokenizers.source.split(self.tag)[0]) :]
        empty = not (bare and ids[1] and all(map(str.strip, pair)))
        long = max(map(len, ids)) + 1 > policies.max_length
        reasons = ["empty"] if empty and policies.empty_lines == "drop" else []
        reasons += ["too_long"] if long and policies.on_too_long == "drop" else []
        if policies.filters and not empty:
            whole = Pair(pair[0].removeprefix(self.tag), pair[1], bare, ids[1], self.part)
            filtered = [pair_filter.reason for pair_filter in policies.filters if pair_filter.drops(whole)]
            counts.update(filtered)
            reasons += filtered
        truncated = long and not reasons and policies.on_too_long == "truncate"
        counts.update(empty=empty, too_long=long, truncated=truncated)
        return reasons


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
    pairs (kept), truncated, dropped and, by reason, those dropped. Raises UserError if no pair is left.
    """
    recipe, digest = recipe_of(source.fingerprint(), tokenizers, policies, segmentation, tags_of(source))
    if store := find_store(folder, digest):
        return store
    local = local_path(folder, digest)
    with exclusive_writer(local, "prepare"):
        if find_store(local, digest):  # written by another process during the wait
            return TokenStore.open(local, epath.Path(folder))
        with StoreWriter(local, vocab_sizes=tokenizers.vocab_sizes) as writer:
            total: collections.Counter[str] = collections.Counter()
            kept = []
            for part, chunks in encode_parts(Encoder(tokenizers, policies, segmentation), source, num_workers):
                counts: collections.Counter[str] = collections.Counter()
                with contextlib.closing(chunks):
                    for chunk in chunks:
                        writer.write(*chunk.sides)
                        counts.update(chunk.counts)
                        if progress:
                            progress(total["pairs_read"] + counts["pairs_read"], source.count)
                _require_nonempty(part, counts, policies)
                kept.append(counts["pairs_read"] - counts["dropped"])
                total.update(counts)
            names = [*COUNTS, *(pair_filter.reason for pair_filter in policies.filters)]
            writer.meta.update(digest=digest, recipe=recipe, **{name: total[name] for name in names})
            if policies.filters:
                writer.meta["filters"] = {f.reason: f.shown for f in policies.filters}
            writer.meta.update({"pairs_of_sources": kept} if len(kept) > 1 else {})
        upload(folder, local)
        return TokenStore.open(local, epath.Path(folder))


def recipe_of(
    fingerprint: str,
    tokenizers: TokenizerPair,
    policies: Policies,
    segmentation: Segmentation | None = None,
    tags: Sequence[str] = (),
) -> tuple[dict[str, Any], str]:
    """(the inputs and settings that determine a store, their sha256). fingerprint, tags: of the source, see `tags_of`."""
    recipe = {
        "format_version": RECIPE_VERSION,
        "source_fingerprint": fingerprint,
        "tokenizer_digest": tokenizers.digest,
        **policies.as_stored(),
    }
    if segmentation:  # drawn chunk by chunk
        recipe |= {"segmentation": segmentation.as_stored(), "chunk_pairs": CHUNK_PAIRS}
    if any(tags):
        recipe["tags"] = tags
    return recipe, hashlib.sha256(json.dumps(recipe).encode()).hexdigest()


def tags_of(source: Source) -> list[str]:
    """The tag of each part of a source."""
    return [part.tag for part in source.parts]


def _require_nonempty(source: Source, counts: dict[str, int], policies: Policies) -> None:
    if counts["dropped"] == counts["pairs_read"]:
        raise UserError(
            f"{source.spec}: no pair is left of {counts['pairs_read']}: {counts['empty']} have an empty side, "
            f"{counts['too_long']} have a side longer than config.data.max_length = {policies.max_length} tokens"
            + "".join(f", {counts[f.reason]} are {f.shown}" for f in policies.filters if counts[f.reason])
        )


def encode_parts(
    encoder: Encoder, source: Source, num_workers: int
) -> Iterator[tuple[Source, Generator[Chunk, None, None]]]:
    """The chunks of each part of a source, in order; never more than a few in memory."""
    numbers = itertools.count()
    pairs: Sequence[Iterator[Unread]] = [part.pairs() for part in source.parts]
    for pair_filter in encoder.policies.filters:
        pairs = pair_filter.in_order(source.parts, pairs)
    for number, (part, of_part) in enumerate(zip(source.parts, pairs, strict=True)):
        of = replace(encoder, part=number, tag=f"{part.tag} " if part.tag else "")
        yield part, _encode_all(of, of_part, num_workers or num_cores(), numbers)


def _encode_all(
    encoder: Encoder, pairs: Iterator[Unread], num_workers: int, numbers: Iterator[int]
) -> Generator[Chunk, None, None]:
    chunks = zip(iter(lambda: list(itertools.islice(pairs, CHUNK_PAIRS)), []), numbers, strict=False)
    inline = None if num_workers == 1 else INLINE_PAIRS // CHUNK_PAIRS
    yield from itertools.starmap(encoder, itertools.islice(chunks, inline))
    first = next(chunks, None)
    if first is not None:
        with Workers(encoder, num_workers, does="tokenizes") as workers:
            yield from workers.map(itertools.chain([first], chunks), num_workers * CHUNKS_IN_FLIGHT)
