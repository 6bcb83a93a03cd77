"""Tokenizes a source into a token store."""

import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from etils import epath

from t2t_flax.data import encoding
from t2t_flax.data.encoding import Encoder, Policies, Segmentation, encode_parts
from t2t_flax.data.sources.base import Source
from t2t_flax.data.token_store import StoreWriter, TokenStore, find_store, local_path, upload
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.locks import exclusive_writer

RECIPE_VERSION = 1
"""Version of the tokenized sentences, which checkpoints refer to; the files have their own FORMAT_VERSION."""
ProgressCallback = Callable[[int, int | None], None]
"""Called with (pairs done, pairs in total or None)."""


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
        if find_store(local, digest):  # written by another process during the wait
            return TokenStore.open(local, epath.Path(folder))
        with StoreWriter(local, vocab_sizes=tokenizers.vocab_sizes) as writer:
            total: Counter[str] = Counter()
            kept = []
            for part, chunks in encode_parts(Encoder(tokenizers, policies, segmentation), source, num_workers):
                counts: Counter[str] = Counter()
                with contextlib.closing(chunks):
                    for chunk in chunks:
                        if chunk.first_empty is not None:
                            raise UserError(
                                f"{part.where(counts['pairs_read'] + chunk.first_empty)}: one side of the pair is empty; "
                                "correct the text, or drop such pairs with config.data.empty_lines = 'drop'"
                            )
                        writer.write(*chunk.sides)
                        counts.update(chunk.counts)
                        if progress:
                            progress(total["pairs_read"] + counts["pairs_read"], source.count)
                _require_nonempty(part, counts, policies)
                kept.append(counts["pairs_read"] - counts["dropped"])
                total.update(counts)
            names = [*encoding.COUNTS, *(pair_filter.reason for pair_filter in policies.filters)]
            writer.meta.update(digest=digest, recipe=recipe, **{name: total[name] for name in names})
            if policies.filters:
                writer.meta["filters"] = {f.reason: f.shown for f in policies.filters}
            writer.meta.update({"pairs_of_sources": kept} if len(kept) > 1 else {})
        upload(folder, local)
        return TokenStore.open(local, epath.Path(folder))


def list_dropped(
    source: Source,
    tokenizers: TokenizerPair,
    policies: Policies,
    *,
    num_workers: int = 0,
    segmentation: Segmentation | None = None,
) -> Iterator[tuple[str, str]]:
    """(where it is, reason) of each pair that `prepare_split` drops, in order; tokenizes the source again."""
    for part, chunks in encode_parts(Encoder(tokenizers, policies, segmentation), source, num_workers):
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
        recipe |= {"segmentation": segmentation.as_stored(), "chunk_pairs": encoding.CHUNK_PAIRS}
    if starts:
        recipe["start_tokens"] = starts
    return recipe, hashlib.sha256(json.dumps(recipe).encode()).hexdigest()


def _require_nonempty(source: Source, counts: dict[str, int], policies: Policies) -> None:
    if counts["dropped"] == counts["pairs_read"]:
        raise UserError(
            f"{source.spec}: no pair is left of {counts['pairs_read']}: {counts['empty']} have an empty side, "
            f"{counts['too_long']} have a side longer than config.data.max_length = {policies.max_length} tokens"
            + "".join(f", {counts[f.reason]} are {f.shown}" for f in policies.filters if counts[f.reason])
        )
