"""Phrases as tokens: in the segmentation of the model, and in others that give the same text."""

import functools
import heapq
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.data.tokenizers import Tokenizer

SPACE = "▁"
MOST = 32
"""Segmentations of a phrase that are forbidden: those of fewest tokens."""
_LONGEST = 16


@functools.lru_cache(maxsize=8)
def _pieces(tokenizer: Tokenizer) -> tuple[str, ...]:
    return tuple(tokenizer.pieces(range(tokenizer.vocab_size)))


@functools.lru_cache(maxsize=8)
def _ids(tokenizer: Tokenizer) -> dict[str, int]:
    return {piece: i for i, piece in enumerate(_pieces(tokenizer)) if i > EOS}


def _marks_spaces(tokenizer: Tokenizer) -> bool:
    return any(piece.startswith(SPACE) for piece in _pieces(tokenizer))


def continues_word(character: str) -> bool:
    """Whether it belongs to the word before it if no space is between: letters of scripts that put spaces between words."""
    return character.isalnum() and unicodedata.category(character) != "Lo"


def begins_word(tokenizer: Tokenizer) -> bytes:
    """For each token whether a word that stands before it has ended; empty for tokenizers whose tokens say so themselves."""
    if not _marks_spaces(tokenizer):
        return b""
    ends = [piece[0] == SPACE or not continues_word(piece[0]) for piece in _pieces(tokenizer)]
    return np.array(ends, np.uint8).tobytes()


@functools.lru_cache(maxsize=2**14)
def forms(tokenizer: Tokenizer, phrase: str) -> list[tuple[int, ...]]:
    """The phrase as the model segments it after a space, and, if it may follow other text without a space, as it does then. None
    for a phrase with characters that the vocabulary lacks.
    """
    ids = tuple(tokenizer.encode_text(phrase))
    found = [ids] if ids and UNK not in ids else []
    if found and _marks_spaces(tokenizer) and not continues_word(phrase.strip()[0]):
        first = tokenizer.pieces(ids[:1])[0].removeprefix(SPACE)
        if not first:
            found.append(ids[1:])
        elif first in _ids(tokenizer) and first != tokenizer.pieces(ids[:1])[0]:
            found.append((_ids(tokenizer)[first], *ids[1:]))
    return [form for form in found if form]


@functools.lru_cache(maxsize=2**14)
def segmentations(tokenizer: Tokenizer, phrase: str) -> list[tuple[int, ...]]:
    """Those of `forms`, and up to `MOST` other ways to write each, which have the fewest tokens."""
    found = dict.fromkeys(forms(tokenizer, phrase))
    if _marks_spaces(tokenizer):
        for form in list(found):
            text = "".join(tokenizer.pieces(form))
            found |= dict.fromkeys(_ways(text, _ids(tokenizer)))
    return list(found)


def _ways(text: str, ids: dict[str, int]) -> Iterator[tuple[int, ...]]:
    queue: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, ())]
    count = 0
    while queue and count < MOST:
        length, negative, way = heapq.heappop(queue)
        start = -negative
        if start == len(text):
            count += 1
            yield way
        elif length < _LONGEST and len(queue) < 50 * MOST:
            for stop in range(start + 1, len(text) + 1):
                if (token := ids.get(text[start:stop])) is not None:
                    heapq.heappush(queue, (length + 1, -stop, (*way, token)))


def arrays(rows: Sequence[Sequence[Sequence[int]]], least: tuple[int, int]) -> np.ndarray:
    """int32 [rows, N, L], zero-padded; N and L are at least these, and else powers of two, so that few programs are compiled."""
    most = max((len(row) for row in rows), default=0), max((len(ids) for row in rows for ids in row), default=0)
    shape = [max(low, _power(n)) for low, n in zip(least, most, strict=True)]
    out = np.full((len(rows), *shape), PAD, np.int32)
    for i, row in enumerate(rows):
        for j, ids in enumerate(row):
            out[i, j, : len(ids)] = ids
    return out


def _power(n: int) -> int:
    return 1 << max(0, n - 1).bit_length() if n else 0
