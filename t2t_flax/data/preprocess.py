"""Tokenization of a source into a token store, in worker processes, with filters of pairs."""

import collections
import contextlib
import hashlib
import itertools
import json
import operator
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from etils import epath

from t2t_flax.config.data_keys import EOS, PAD
from t2t_flax.data.progress import Report, silent
from t2t_flax.data.sources import PairOrReason, Source, counted
from t2t_flax.data.token_store import BYTES, StoreWriter, TokenStore, find_store, local_path, upload
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.data.workers import Workers, num_cores
from t2t_flax.errors import UserError
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
        self, parts: Sequence[Source], rows: Sequence[Iterator[PairOrReason]], report: Report
    ) -> Sequence[Iterator[PairOrReason]]:
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


@dataclass(frozen=True)
class Chunk:
    """Tokenized pairs of one part of a source.

    Attributes:
        part: number of the part.
        counts: counts of the pairs, see `COUNTS`.
        sides: (ids [total], lengths [pairs]) of source and target, int32, and of their texts if
            these are kept, uint8 and int32.
        dropped: (index, reason) of each dropped pair.
    """

    part: int
    counts: collections.Counter[str]
    sides: list[tuple[np.ndarray, np.ndarray]]
    dropped: list[tuple[int, str]]


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

    def __call__(self, pairs: list[PairOrReason]) -> Chunk:
        policies = self.policies
        read = [([], [], []) if isinstance(pair, str) else self._read(*pair) for pair in pairs]
        ids = [self._framed(*one) for one in read]
        reasons, long = self._reasons(pairs, read, ids)
        kept = [i for i, reason in enumerate(reasons) if not reason]
        dropped = [(i, reason) for i, reason in enumerate(reasons) if reason]
        counts = collections.Counter(pairs_read=len(pairs), dropped=len(dropped))
        counts.update(reason for _, reason in dropped)
        if policies.on_too_long == "truncate":
            counts["truncated"] = sum(not reasons[i] for i in long)
            for i in long:
                ids[i] = self._framed(*read[i], policies.max_length - 1)
        sides = []
        for side, eos in enumerate((policies.source_eos, True)):
            end = [EOS] if eos else []
            sentences = [[*ids[i][side], *end] for i in kept]
            flat = np.fromiter(itertools.chain.from_iterable(sentences), np.int32)
            sides.append((flat, _lengths(sentences)))
        if policies.keep_texts:
            for side in (0, 1):
                texts = [pairs[i][side].encode() for i in kept]
                sides.append((np.frombuffer(b"".join(texts), np.uint8), _lengths(texts)))
        return Chunk(self.part, counts, sides, dropped)

    def _read(self, source: str, target: str) -> tuple[list[int], list[int], list[int]]:
        """Return the ids of (control symbols of the source, its text, target)."""
        symbols, text = self.tokenizers.source.split(source)
        return (
            symbols,
            self.tokenizers.source.encode_text(text),
            self.tokenizers.target.encode_text(target),
        )

    def _framed(
        self, symbols: list[int], source: list[int], target: list[int], most: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Return the ids of both sides without EOS; text beyond `most` ids is left out."""
        if not source:
            return symbols[:most], target[:most]
        before, after, start = self.tokenizers.source.frame(symbols)
        room = None if most is None else max(0, most - len(before) - len(after))
        first = [start] if start != PAD else []
        return [*before, *source[:room], *after], [*first, *target][:most]

    def _reasons(
        self,
        pairs: list[PairOrReason],
        read: list[tuple[list[int], list[int], list[int]]],
        ids: list[tuple[list[int], list[int]]],
    ) -> tuple[list[str], list[int]]:
        """Return (first reason to drop each pair, "" if it is kept; pairs that are too long)."""
        policies, of_tag = self.policies, len(self.tokenizers.source.split(self.tag)[0])
        reasons, whole, long = [], {}, []
        for i, (pair, sides) in enumerate(zip(pairs, ids, strict=True)):
            if isinstance(pair, str):
                reasons.append(pair)
                continue
            symbols, text, target = read[i]
            source = [*symbols[of_tag:], *text]
            empty = not (source and target and all(map(str.strip, pair)))
            too_long = max(map(len, sides)) + 1 > policies.max_length
            if too_long:
                long.append(i)
            drops_long = policies.on_too_long == "drop" and too_long
            drops_empty = policies.empty_lines == "drop" and empty
            reasons.append("empty" if drops_empty else "too_long" if drops_long else "")
            if not (empty or reasons[i]):
                whole[i] = Pair(pair[0].removeprefix(self.tag), pair[1], source, target, self.part)
        for pair_filter in policies.filters:
            drops = pair_filter.drops(list(whole.values()))
            for i in [i for i, drop in zip(whole, drops, strict=True) if drop]:
                reasons[i] = pair_filter.reason
                del whole[i]
        return reasons, long


def _lengths(sentences: Sequence[Sequence[int]]) -> np.ndarray:
    return np.fromiter(map(len, sentences), np.int32, len(sentences))


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
    recipe, digest = recipe_of(source, tokenizers, policies)
    if store := find_store(folder, digest):
        return store
    local, encoder = local_path(folder, digest), Encoder(tokenizers, policies)
    sizes = [*tokenizers.vocab_sizes, *([BYTES, BYTES] if policies.keep_texts else [])]
    with exclusive_writer(local, "prepare"):
        if not find_store(local, digest):  # another process may have written it during the wait
            with StoreWriter(local, vocab_sizes=sizes) as writer:
                writer.meta.update(digest=digest, recipe=recipe)
                _write(writer, encoder, source, num_workers, report, f"tokenise {name}")
                _check_unchanged(source, recipe["source_fingerprint"])
            upload(folder, local)
        return TokenStore.open(local, epath.Path(folder))


def _write(
    writer: StoreWriter,
    encoder: Encoder,
    source: Source,
    num_workers: int,
    report: Report,
    stage: str,
) -> None:
    """Write the pairs of a source, and their counts into meta.json."""
    policies, parts = encoder.policies, source.parts
    shown = dict(source.reasons) | {f.reason: f.shown for f in policies.filters}
    counts: list[collections.Counter[str]] = [collections.Counter() for _ in parts]
    report(stage, 0, source.count, "pairs")
    with contextlib.closing(encode_all(encoder, source, num_workers, report)) as chunks:
        for part, of_part in itertools.groupby(chunks, operator.attrgetter("part")):
            for chunk in of_part:
                writer.write(*chunk.sides)
                counts[part].update(chunk.counts)
                done = sum(one["pairs_read"] for one in counts)
                report(stage, done, source.count, "pairs")
            _require_nonempty(parts[part], counts[part], policies, shown)
    sums, names = sum(counts, collections.Counter()), [*COUNTS, *shown]
    writer.meta.update({name: sums[name] for name in names})
    if shown:
        writer.meta["reasons"] = shown
    if len(parts) > 1:
        writer.meta["pairs_of_sources"] = [one["pairs_read"] - one["dropped"] for one in counts]
        writer.meta["counts_of_sources"] = [{name: one[name] for name in names} for one in counts]


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
    source: Source, tokenizers: TokenizerPair, policies: Policies
) -> tuple[dict[str, Any], str]:
    """Return the inputs and settings that determine a store, and their sha256."""
    recipe = {
        "format_version": RECIPE_VERSION,
        "source_fingerprint": source.fingerprint(),
        "tokenizer_digest": tokenizers.digest,
        **policies.as_stored(),
    }
    tags = [part.tag for part in source.parts]
    if any(tags):
        recipe["tags"] = tags
    return recipe, hashlib.sha256(json.dumps(recipe).encode()).hexdigest()


def _require_nonempty(
    source: Source, counts: dict[str, int], policies: Policies, shown: dict[str, str]
) -> None:
    if counts["dropped"] == counts["pairs_read"]:
        long = f"with a side longer than config.data.max_length = {policies.max_length} tokens"
        reasons = counted(counts, {"empty": EMPTY, "too_long": long} | shown)
        raise UserError(f"{source.spec}: no pair is left of {counts['pairs_read']:,}: {reasons}")


def encode_all(
    encoder: Encoder, source: Source, num_workers: int, report: Report = silent
) -> Generator[Chunk, None, None]:
    """Yield the chunks of a source in order, with only a few in memory."""
    num_workers = num_workers or num_cores()
    inline = None if num_workers == 1 else INLINE_PAIRS // CHUNK_PAIRS
    all_rows = rows_of(source.parts, encoder.policies.filters, report)
    for number, (part, rows) in enumerate(zip(source.parts, all_rows, strict=True)):
        encode = replace(encoder, part=number, tag=f"{part.tag} " if part.tag else "")
        chunks = _chunks_of(rows)
        yield from map(encode, itertools.islice(chunks, inline))
        if first := next(chunks, None):
            with Workers(encode, num_workers, does="tokenizes") as workers:
                calls = zip(itertools.chain([first], chunks))
                yield from workers.map(calls, num_workers * CHUNKS_IN_FLIGHT)


def _chunks_of(rows: Iterator[PairOrReason]) -> Iterator[list[PairOrReason]]:
    while chunk := list(itertools.islice(rows, CHUNK_PAIRS)):
        yield chunk


def rows_of(
    parts: Sequence[Source], filters: Sequence[PairFilter], report: Report = silent
) -> Sequence[Iterator[PairOrReason]]:
    """Return the rows of each part of a source, as the filters leave them.

    The reason stands in place of a pair that a filter drops because of other pairs.
    """
    rows: Sequence[Iterator[PairOrReason]] = [part.rows() for part in parts]
    for pair_filter in filters:
        rows = pair_filter.rows(parts, rows, report)
    return rows
