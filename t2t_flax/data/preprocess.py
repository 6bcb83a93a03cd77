"""Tokenization of a source into a token store, in worker processes.

It also decides which pairs are dropped.
"""

import collections
import contextlib
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from etils import epath

from t2t_flax.config.data_keys import EOS
from t2t_flax.data.progress import Report, silent
from t2t_flax.data.shards import Chunk, kept_chunks
from t2t_flax.data.sources import Source, counted
from t2t_flax.data.token_store import BYTES, StoreWriter, TokenStore, find_store, local_path, upload
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.data.workers import Workers, num_cores
from t2t_flax.errors import UserError
from t2t_flax.files import is_remote
from t2t_flax.locks import exclusive_writer

RECIPE_VERSION = 2
"""Version of the tokenized sentences, which checkpoints refer to.

The files have their own FORMAT_VERSION.
"""
CHUNK_PAIRS = 2000
"""Number of pairs that a process tokenizes at a time."""
INLINE_PAIRS = 60_000
"""Number of pairs that are tokenized before worker processes start.

Starting the processes takes seconds, and these pairs take about two.
"""
CHUNKS_IN_FLIGHT = 3
"""Chunks queued or in progress per process."""

COUNTS = ("pairs_read", "dropped", "truncated", "empty", "too_long")
"""Counts of every store, beside the counts for reasons of sources and filters.

A dropped pair counts under the first reason that applies. `empty` and `too_long` are reasons as
well, so the counts of all reasons add up to `dropped`.
"""

EMPTY = "with an empty side"  # in messages, after a number

Unread = tuple[str, str] | str
"""Texts of a pair, or the reason why it is dropped before it is tokenized."""


class Pair(NamedTuple):
    """Pair of texts without an empty side.

    Attributes:
        source: source text, without its tag.
        target: target text.
        source_ids: ids of the source, without tag and EOS.
        target_ids: ids of the target, without EOS.
        part: number of the source's part that has the pair.
    """

    source: str
    target: str
    source_ids: Sequence[int]
    target_ids: Sequence[int]
    part: int


class PairFilter:
    """Filter that drops training pairs for one reason.

    It is picklable, and each worker process has a copy.
    """

    reason: ClassVar[str]
    """Word for lists of dropped pairs and for the count in a token store's meta.json."""
    shown: ClassVar[str]
    """Text for messages, after a number: "repeated"."""
    needs_tokens: ClassVar[bool] = False
    """True if the filter reads ids.

    It then does not filter the text that trains a tokenizer.
    """

    def as_stored(self) -> dict[str, Any]:
        """Return the filter's part of a store's recipe, as JSON.

        Raises UserError for a missing package.
        """
        return {}

    def rows(
        self, parts: Sequence[Source], rows: Sequence[Iterator[Unread]], report: Report
    ) -> Sequence[Iterator[Unread]]:
        """Return the rows of each part, with the reason in place of each dropped pair.

        This method drops pairs because of other pairs. It may read the parts once beforehand.

        Args:
            rows: rows that the filters before this one leave.
        """
        return rows

    def drops(self, pairs: Sequence[Pair]) -> Sequence[bool]:
        """Return which pairs of a chunk are dropped.

        Worker processes call it, in any order.
        """
        return [False] * len(pairs)


@dataclass(frozen=True)
class Policies:
    """Handling of pairs that are too long or have an empty side.

    Attributes:
        max_length: maximum tokens of either side, EOS included.
        on_too_long: "drop" the pair, "truncate" each side to its first max_length - 1 tokens and
            EOS, or "keep" it.
        empty_lines: "drop" or "keep" a pair with a side that has no token or only whitespace.
        source_eos: True if source sentences end with EOS.
        filters: filters that drop further pairs.
        keep_texts: True if the store keeps the texts of its pairs, too.
    """

    max_length: int
    on_too_long: str
    empty_lines: str
    source_eos: bool = True
    filters: tuple[PairFilter, ...] = ()
    keep_texts: bool = False

    def as_stored(self) -> dict[str, Any]:
        """Return the policies as JSON; part of a store's digest."""
        stored = {
            name: value
            for name, value in vars(self).items()
            if name not in ("filters", "keep_texts")
        }
        stored |= {"keep_texts": True} if self.keep_texts else {}
        for pair_filter in self.filters:
            stored |= pair_filter.as_stored()
        return stored


@dataclass
class Encoder:
    """Tokenizer of chunks of pairs under the policies.

    It is pickled once for each worker process.
    """

    tokenizers: TokenizerPair
    policies: Policies
    part: int = 0
    """Number of the source's part that has the pairs."""
    tag: str = ""
    """Text before the source sentences, its space included; filters do not see it."""

    def __call__(self, pairs: list[Unread]) -> Chunk:
        policies = self.policies
        encode = [self.tokenizers.source.encode, self.tokenizers.target.encode_text]
        chunk = Chunk(self.part, collections.Counter(pairs_read=len(pairs)))
        encoded: list[list[list[int]]] = [
            (
                []
                if isinstance(pair, str)
                else [one(text) for one, text in zip(encode, pair, strict=True)]
            )
            for pair in pairs
        ]
        reasons, long = self._reasons(pairs, encoded)
        chunk.dropped = [(i, reason) for i, reason in enumerate(reasons) if reason]
        chunk.counts["dropped"] = len(chunk.dropped)
        chunk.counts.update(reason for _, reason in chunk.dropped)
        chunk.counts["truncated"] = (
            sum(not reasons[i] for i in long) if policies.on_too_long == "truncate" else 0
        )
        kept: tuple[list, list] = [], []
        for ids in (ids for ids, reason in zip(encoded, reasons, strict=True) if not reason):
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
        if policies.keep_texts:
            texts = [pair for pair, reason in zip(pairs, reasons, strict=True) if not reason]
            chunk.sides += [_as_bytes([text[side] for text in texts]) for side in (0, 1)]
        return chunk

    def _reasons(
        self, pairs: list[Unread], encoded: list[list[list[int]]]
    ) -> tuple[list[str], list[int]]:
        """Return the reasons for dropping pairs, and the pairs that are too long.

        Returns:
            (first reason that applies to each pair, "" if it is kept; indices of the pairs that are
            too long).
        """
        policies, symbols = self.policies, len(self.tokenizers.source.split(self.tag)[0])
        reasons, whole, long = [], {}, []
        for i, (pair, ids) in enumerate(zip(pairs, encoded, strict=True)):
            if isinstance(pair, str):
                reasons.append(pair)
                continue
            bare = ids[0][symbols:]
            empty = not (bare and ids[1] and all(map(str.strip, pair)))
            if max(map(len, ids)) + 1 > policies.max_length:
                long.append(i)
            drops_long = policies.on_too_long == "drop" and long[-1:] == [i]
            drops_empty = policies.empty_lines == "drop" and empty
            reasons.append("empty" if drops_empty else "too_long" if drops_long else "")
            if not (empty or reasons[i]):
                whole[i] = Pair(pair[0].removeprefix(self.tag), pair[1], bare, ids[1], self.part)
        for pair_filter in policies.filters:
            drops = pair_filter.drops(list(whole.values()))
            for i in [i for i, drop in zip(whole, drops, strict=True) if drop]:
                reasons[i] = pair_filter.reason
                del whole[i]
        return reasons, long


def _as_bytes(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    encoded = [text.encode() for text in texts]
    return np.frombuffer(b"".join(encoded), np.uint8), np.fromiter(
        map(len, encoded), np.int32, len(encoded)
    )


def prepare_split(
    source: Source,
    tokenizers: TokenizerPair,
    folder: os.PathLike | str,
    policies: Policies,
    *,
    num_workers: int = 0,
    report: Report = silent,
    name: str = "pairs",
) -> TokenStore:
    """Return the token store of `source` at `folder`, and write it if needed.

    A store that was written from the same data is opened. For a folder in an object store, this
    host's copy is returned. meta.json counts pairs_read, pairs (kept), truncated, dropped and, by
    reason, the dropped pairs; for several sources also the counts of each one. Raises UserError if
    no pair of a source is left, and for a source that changes meanwhile.

    Args:
        num_workers: number of processes that tokenize, 0 = one per core. The bytes do not depend on
            it.
        name: name of the split, for `report`.
    """
    recipe, digest = recipe_of(source.fingerprint(), tokenizers, policies, tags_of(source))
    if store := find_store(folder, digest):
        return store
    local = local_path(folder, digest)
    with exclusive_writer(local, "prepare") as alone:
        if not find_store(local, digest):  # another process may have written it during the wait
            _write(
                source,
                tokenizers,
                local,
                policies,
                recipe,
                digest,
                alone,
                num_workers,
                report,
                name,
            )
            upload(folder, local)
        return TokenStore.open(local, epath.Path(folder))


def _write(
    source: Source, tokenizers: TokenizerPair, local: Path, policies: Policies,
    recipe: dict[str, Any], digest: str, alone: bool, num_workers: int, report: Report, name: str,
) -> None:  # fmt: skip
    """Write the store at `local`.

    Args:
        alone: True if no other process writes it.
    """
    shown = dict(source.reasons) | {f.reason: f.shown for f in policies.filters}
    sizes = [*tokenizers.vocab_sizes, *([BYTES, BYTES] if policies.keep_texts else [])]
    of_sources: list[collections.Counter[str]] = [collections.Counter() for _ in source.parts]
    encode = functools.partial(
        encode_all, Encoder(tokenizers, policies), source, num_workers, report=report
    )
    check = functools.partial(_check_unchanged, source, recipe["source_fingerprint"])
    # In object stores each file takes a request, so one check at the end is enough.
    often = (lambda: None) if any(map(is_remote, source.files)) else check
    # Without a lock another process may write the same shards.
    kept = (
        kept_chunks(encode, local, sizes, f"{digest} {CHUNK_PAIRS}", often)
        if alone
        else contextlib.closing(encode())
    )

    def say() -> None:
        done = sum(counts["pairs_read"] for counts in of_sources)
        report(f"tokenise {name}", done, source.expected_count(), "pairs")

    with kept as chunks, StoreWriter(local, vocab_sizes=sizes) as writer:
        say()
        part = 0
        for chunk in chunks:
            if chunk.part > part:
                _require_nonempty(source.parts[part], of_sources[part], policies, shown)
            part = chunk.part
            writer.write(*chunk.sides)
            of_sources[part].update(chunk.counts)
            say()
        _require_nonempty(source.parts[part], of_sources[part], policies, shown)
        check()
        sums = sum(of_sources, collections.Counter())
        names = [*COUNTS, *shown]
        writer.meta.update(digest=digest, recipe=recipe, **{name: sums[name] for name in names})
        if shown:
            writer.meta["reasons"] = shown
        if len(of_sources) > 1:
            writer.meta["pairs_of_sources"] = [
                counts["pairs_read"] - counts["dropped"] for counts in of_sources
            ]
            writer.meta["counts_of_sources"] = [
                {name: counts[name] for name in names} for counts in of_sources
            ]


def _check_unchanged(source: Source, fingerprint: str) -> None:
    """Raise UserError if the source no longer has this fingerprint.

    Files that look as before are not read again.
    """
    with contextlib.suppress(FileNotFoundError):
        if source.fingerprint() == fingerprint:
            return
    raise UserError(
        f"{source.spec} changed while its pairs were tokenized: wait until it is complete, and run"
        " prepare again"
    )


def recipe_of(
    fingerprint: str, tokenizers: TokenizerPair, policies: Policies, tags: Sequence[str] = ()
) -> tuple[dict[str, Any], str]:
    """Return the inputs and settings that determine a store, and their sha256.

    Args:
        fingerprint: fingerprint of the source.
        tags: tags of the source, see `tags_of`.
    """
    recipe = {
        "format_version": RECIPE_VERSION,
        "source_fingerprint": fingerprint,
        "tokenizer_digest": tokenizers.digest,
        **policies.as_stored(),
    }
    if any(tags):
        recipe["tags"] = tags
    return recipe, hashlib.sha256(json.dumps(recipe).encode()).hexdigest()


def tags_of(source: Source) -> list[str]:
    """Return the tag of each part of a source."""
    return [part.tag for part in source.parts]


def _require_nonempty(
    source: Source, counts: dict[str, int], policies: Policies, shown: dict[str, str]
) -> None:
    if counts["dropped"] == counts["pairs_read"]:
        long = f"with a side longer than config.data.max_length = {policies.max_length} tokens"
        reasons = counted(counts, {"empty": EMPTY, "too_long": long} | shown)
        raise UserError(f"{source.spec}: no pair is left of {counts['pairs_read']:,}: {reasons}")


def encode_all(
    encoder: Encoder,
    source: Source,
    num_workers: int,
    skip: int = 0,
    report: Report = silent,
) -> Generator[Chunk, None, None]:
    """Yield the chunks of a source in order, with only a few in memory.

    Args:
        skip: number of first chunks that are read, but neither tokenized nor yielded.
    """
    for number, (part, pairs) in enumerate(
        zip(source.parts, rows_of(source.parts, encoder.policies.filters, report), strict=True)
    ):
        of_part = replace(encoder, part=number, tag=f"{part.tag} " if part.tag else "")
        chunks = _chunks_of(pairs)
        while skip and next(chunks, None):
            skip -= 1
        yield from _encode_part(of_part, chunks, num_workers or num_cores())


def _chunks_of(pairs: Iterator[Unread]) -> Iterator[list[Unread]]:
    return iter(lambda: list(itertools.islice(pairs, CHUNK_PAIRS)), [])


def rows_of(
    parts: Sequence[Source], filters: Sequence[PairFilter], report: Report = silent
) -> Sequence[Iterator[Unread]]:
    """Return the rows of each part of a source, as the filters leave them.

    The reason stands in place of a pair that a filter drops because of other pairs.
    """
    rows: Sequence[Iterator[Unread]] = [part.rows() for part in parts]
    for pair_filter in filters:
        rows = pair_filter.rows(parts, rows, report)
    return rows


def _encode_part(
    encoder: Encoder, chunks: Iterator[list[Unread]], num_workers: int
) -> Generator[Chunk, None, None]:
    inline = None if num_workers == 1 else INLINE_PAIRS // CHUNK_PAIRS
    yield from map(encoder, itertools.islice(chunks, inline))
    first = next(chunks, None)
    if first is not None:
        with Workers(encoder, num_workers, does="tokenizes") as workers:
            yield from workers.map(
                zip(itertools.chain([first], chunks)), num_workers * CHUNKS_IN_FLIGHT
            )
