"""Lines of text as the searches take them: token ids, forced prefixes and the largest length of each output."""

import dataclasses
import math
from collections.abc import Sequence

from t2t_flax.config import Decode, Model
from t2t_flax.config.special_tokens import EOS
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError


@dataclasses.dataclass(frozen=True)
class EncodedLines:
    """sources: ids with EOS, none for an empty line. prefixes: forced first ids of the output. cut: whether a source was
    truncated. caps: most output tokens, prefix and EOS included.
    """

    sources: list[list[int]]
    prefixes: list[list[int]]
    cut: list[bool]
    caps: list[int]


def encode_lines(
    tokenizers: TokenizerPair,
    model: Model,
    config: Decode,
    lines: Sequence[str],
    prefixes: Sequence[str] | None = None,
    *,
    starts: Sequence[Sequence[int]] | None = None,
    source_eos: bool = True,
) -> EncodedLines:
    """starts: ids that come before those of each line. Raises UserError if the numbers of prefixes and lines differ."""
    if prefixes is not None and len(prefixes) != len(lines):
        raise UserError(
            f"{len(prefixes)} prefixes for {len(lines)} lines: expected one prefix (possibly empty) per line."
        )
    eos = [EOS] if source_eos else []
    positions = model.max_positions if model.position == "learned" else 2**31 - 1
    limit = min(config.max_source_length, positions) - len(eos)
    encode, encode_prefix = tokenizers.source.encode, tokenizers.target.encode
    sources = [
        tokenizers.after_start(start, encode(line)) if line.strip() else []
        for line, start in zip(lines, [()] * len(lines) if starts is None else starts, strict=True)
    ]
    cut = [len(ids) > limit for ids in sources]
    sources = [ids[:limit] + eos if ids else [] for ids in sources]
    forced = [encode_prefix(p) if p else [] for p in prefixes or [""] * len(lines)]
    caps = [
        max(1, min(math.floor(config.max_length_ratio * len(ids)) + config.max_length_offset + len(prefix), positions))
        for ids, prefix in zip(sources, forced, strict=True)
    ]
    return EncodedLines(sources, forced, cut, caps)
