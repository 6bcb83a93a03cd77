"""Encode lines and group them into batches of few shapes.

Few shapes mean few compiled programs.
"""

import bisect
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from t2t_flax.config import Config, Decode, Model
from t2t_flax.config.data_keys import EOS, PAD
from t2t_flax.data.tokenizers import Tokenizer, TokenizerPair
from t2t_flax.errors import UserError

SOURCE_LENGTHS = (32, 64, 128, 256, 512, 1024)
"""Lengths to which sources are padded; longer ones to a multiple of 256."""
PREFIX_LENGTHS = (0, 64, 1024)
"""Lengths to which prefixes are padded: long padding costs only memory."""
_ALWAYS_USED = (32, 128, 512, 1024)
_WORTH_COMPILING = 32
"""Batches that a length outside `_ALWAYS_USED` must fill to be used."""
_FULL_BATCH_SIZE = 256 * 4
"""Source length times hypotheses up to which batches have decode.batch_size rows."""


@dataclasses.dataclass(frozen=True)
class EncodedLines:
    """Token ids of source lines and prefixes.

    Args:
        sources: ids with EOS; empty for an empty line.
        prefixes: first ids that are forced on the output.
        starts: first of them that costs nothing, as it names the language; PAD = none.
        cut: whether the source was truncated.
        caps: maximum output tokens, prefix and EOS included.
    """

    sources: list[list[int]]
    prefixes: list[list[int]]
    starts: list[int]
    cut: list[bool]
    caps: list[int]


def encode_lines(
    tokenizers: TokenizerPair,
    model: Model,
    config: Decode,
    lines: Sequence[str],
    prefixes: Sequence[str] | None = None,
    *,
    source_eos: bool = True,
) -> EncodedLines:
    """Encode lines and their prefixes, and truncate long sources.

    Raises UserError if the numbers of prefixes and lines differ.
    """
    if prefixes is not None and len(prefixes) != len(lines):
        raise UserError(
            f"{len(prefixes)} prefixes for {len(lines)} lines: expected one prefix (possibly empty)"
            " per line."
        )
    eos = [EOS] if source_eos else []
    limit = source_limit(config, model) - len(eos)
    encode_prefix = tokenizers.target.encode_text
    read = [source_ids(tokenizers.source, line, limit) for line in lines]
    sources = [one.ids + eos if one.ids else [] for one in read]
    forced = [
        [one.start] * (one.start != PAD) + (encode_prefix(prefix) if prefix else [])
        for one, prefix in zip(read, prefixes or [""] * len(lines), strict=True)
    ]
    caps = [
        output_cap(config, model, len(ids), len(prefix))
        for ids, prefix in zip(sources, forced, strict=True)
    ]
    return EncodedLines(
        sources, forced, [one.start for one in read], [one.cut for one in read], caps
    )


class StepChange(Protocol):
    """Change of a decoding step, such as a rule on the next token; usually a module."""

    def step(self, inner: Any, config: Config, tokenizers: TokenizerPair) -> Any:
        """Return a `decoding.translator.DecodeStep` that wraps another one."""

    def prepare(
        self, config: Config, tokenizers: TokenizerPair, lines: Sequence[str], first_line: int
    ) -> tuple[Sequence[str], dict[str, np.ndarray]]:
        """Return source lines as the model reads them, and arrays [lines, ...] by name."""
        ...


def step_changes(config: Config) -> dict[str, StepChange]:
    """Return the changes of a decoding step by the groups of keys that make them."""
    made = {name: group.step_change(config) for name, group in config.extension_groups.items()}
    return {name: change for name, change in made.items() if change}


def read_lines(
    config: Config, tokenizers: TokenizerPair, lines: Sequence[str], first_line: int
) -> tuple[Sequence[str], dict[str, np.ndarray]]:
    """Return the text of source lines, and arrays for `Sentences.more`.

    Raises UserError for a line that a `StepChange` cannot read.

    Args:
        first_line: number of the first line, counted from 0.
    """
    more: dict[str, np.ndarray] = {}
    for change in step_changes(config).values():
        lines, arrays = change.prepare(config, tokenizers, lines, first_line)
        more |= arrays
    return lines, more


class SourceIds(NamedTuple):
    """Ids of a source line without EOS; empty if it has no text besides control symbols.

    Args:
        start: see `data.tokenizers.Frame`.
        cut: whether text was left out.
    """

    ids: list[int]
    start: int = PAD
    cut: bool = False


def source_ids(tokenizer: Tokenizer, line: str, limit: int | None = None) -> SourceIds:
    """Return the ids of a source line.

    Args:
        limit: maximum number of ids; the text beyond it is left out.
    """
    symbols, text = tokenizer.split(line)
    ids = tokenizer.encode_text(text) if text.strip() else []
    if not ids:
        return SourceIds([])
    before, after, start = tokenizer.frame(symbols)
    room = len(ids) if limit is None else max(0, limit - len(before) - len(after))
    return SourceIds([*before, *ids[:room], *after], start, len(ids) > room)


def output_cap(config: Decode, model: Model, source: int, prefix: int = 0) -> int:
    """Return the maximum output tokens, prefix and EOS included (6.1).

    Args:
        source: number of source tokens.
        prefix: number of prefix tokens.
    """
    cap = math.floor(config.max_length_ratio * source) + config.max_length_offset + prefix
    return max(1, min(cap, positions(model)))


def source_limit(config: Decode, model: Model) -> int:
    """Return the length of the longest source that is not truncated, EOS included."""
    return min(config.max_source_length, positions(model))


def positions(model: Model) -> int:
    """Return the maximum tokens of a source or output.

    Without learned positions any number is possible.
    """
    return model.max_positions if model.position == "learned" else 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Batch:
    """Sentences `indices`, padded to `rows` sentences and `source_length` tokens."""

    indices: tuple[int, ...]
    rows: int
    source_length: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.source_length


def hypotheses_per_sentence(config: Decode) -> int:
    """Return K, the number of beams or samples that are decoded for each sentence."""
    return {"greedy": 1, "sample": config.n_best}.get(config.strategy, config.beam_size)


def plan_batches(source_lengths: Sequence[int], config: Decode, shards: int = 1) -> list[Batch]:
    """Return batches of similar source lengths (in tokens), shortest first.

    Sources of length 0 are left out. The rows of a batch are a multiple of `shards`. Each shard has
    config.batch_size rows, fewer where rows x source length x hypotheses would exceed a bound, and
    1, 4, 16, ... for sentences of a length that fill no batch.
    """
    order = sorted((i for i, n in enumerate(source_lengths) if n), key=source_lengths.__getitem__)
    batches: list[Batch] = []
    start, length = 0, 0
    while start < len(order):
        length = round_up(length + 1, SOURCE_LENGTHS)
        stop = bisect.bisect_right(order, length, key=source_lengths.__getitem__)
        full = shards * _rows_per_shard(length, config)
        always = length in _ALWAYS_USED or length > SOURCE_LENGTHS[-1]
        if not always:  # sentences that fill no batch join the batches of the next length
            count = (stop - start) // full
            stop = start + (count * full if count >= _WORTH_COMPILING else 0)
        rows = full
        if stop - start < full:
            rows = min(full, shards * _power_of_four(math.ceil((stop - start) / shards)))
        for first in range(start, stop, rows):
            indices = order[first : min(first + rows, stop)]
            batches.append(Batch(_dealt(indices, rows, shards), rows, length))
        start = stop
    return batches


def _dealt(indices: list[int], rows: int, shards: int) -> tuple[int, ...]:
    """Deal out a full batch, sorted by length, to the shards.

    So no shard gets all the long sentences.
    """
    if len(indices) < rows:
        return tuple(indices)
    return tuple(i for shard in range(shards) for i in indices[shard::shards])


def _rows_per_shard(length: int, config: Decode) -> int:
    width = max(4, hypotheses_per_sentence(config))
    return max(1, min(config.batch_size, config.batch_size * _FULL_BATCH_SIZE // (length * width)))


def _power_of_four(n: int) -> int:
    """Return the smallest power of four that is at least n."""
    power = 1
    while power < n:
        power *= 4
    return power


def round_up(n: int, choices: Sequence[int]) -> int:
    """Return the first of `choices` that is at least n.

    Beyond them, return the next multiple of 256.
    """
    return next((c for c in choices if c >= n), 256 * math.ceil(n / 256))


def padded(rows: Sequence[Sequence[int]], count: int, length: int) -> np.ndarray:
    """Return `rows` as int32 [count, length], zero-padded on the right and below."""
    out = np.zeros((count, length), np.int32)
    for i, ids in enumerate(rows):
        out[i, : len(ids)] = ids
    return out
