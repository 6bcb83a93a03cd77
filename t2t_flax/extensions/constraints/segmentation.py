"""Phrases as tokens in the model's segmentation."""

import functools
import unicodedata
from collections.abc import Sequence

import numpy as np

from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.data.tokenizers import Tokenizer

SPACE = "▁"


@functools.lru_cache(maxsize=8)
def pieces(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the pieces of all tokens."""
    return tuple(tokenizer.pieces(range(tokenizer.vocab_size)))


@functools.lru_cache(maxsize=8)
def _ids(tokenizer: Tokenizer) -> dict[str, int]:
    return {piece: i for i, piece in enumerate(pieces(tokenizer)) if i > EOS}


def marks_spaces(tokenizer: Tokenizer) -> bool:
    """Return True if pieces have `SPACE` where the text has a space."""
    return any(piece.startswith(SPACE) for piece in pieces(tokenizer))


def continues_word(character: str) -> bool:
    """Return True if a character joins the word before it when no space is between.

    These are letters of scripts that put spaces between words.
    """
    return character.isalnum() and unicodedata.category(character) != "Lo"


def begins_word(tokenizer: Tokenizer) -> bytes:
    """Return for each token whether a word before it has ended.

    Empty for tokenizers whose tokens say so themselves.
    """
    if not marks_spaces(tokenizer):
        return b""
    ends = [piece[0] == SPACE or not continues_word(piece[0]) for piece in pieces(tokenizer)]
    return np.array(ends, np.uint8).tobytes()


@functools.lru_cache(maxsize=2**14)
def forms(tokenizer: Tokenizer, phrase: str) -> list[tuple[int, ...]]:
    """Return the segmentations of a phrase.

    The first is the model's segmentation after a space. If the phrase may follow other text without
    a space, the segmentation for that place follows. The list is empty for a phrase with characters
    that the vocabulary lacks.
    """
    ids = tuple(tokenizer.encode_text(phrase))
    found = [ids] if ids and UNK not in ids else []
    if found and marks_spaces(tokenizer) and not continues_word(phrase.strip()[0]):
        first = tokenizer.pieces(ids[:1])[0].removeprefix(SPACE)
        if not first:
            found.append(ids[1:])
        elif first in _ids(tokenizer) and first != tokenizer.pieces(ids[:1])[0]:
            found.append((_ids(tokenizer)[first], *ids[1:]))
    return [form for form in found if form]


def arrays(rows: Sequence[Sequence[Sequence[int]]], least: tuple[int, int]) -> np.ndarray:
    """Return int32 [rows, N, L], zero-padded.

    N and L are at least `least`, and otherwise powers of two, so that few programs are compiled.
    """
    most = (
        max((len(row) for row in rows), default=0),
        max((len(ids) for row in rows for ids in row), default=0),
    )
    shape = [max(low, power_of_two(n)) for low, n in zip(least, most, strict=True)]
    out = np.full((len(rows), *shape), PAD, np.int32)
    for i, row in enumerate(rows):
        for j, ids in enumerate(row):
            out[i, j, : len(ids)] = ids
    return out


def power_of_two(n: int) -> int:
    """Return the least power of two that is not below n; 0 for 0."""
    return 1 << max(0, n - 1).bit_length() if n else 0
