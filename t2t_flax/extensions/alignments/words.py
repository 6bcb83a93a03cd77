"""Tokens of a text by its words, which spaces separate.

Subword pieces, control symbols and EOS are not words.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from t2t_flax.config.data_keys import EOS
from t2t_flax.data.tokenizers import Tokenizer


class WordTokens(NamedTuple):
    """Tokens of a text and the word of each.

    Args:
        ids: token ids, with EOS if the model has it.
        words: for each id the index of its word, from 0; -1 if it belongs to none.
        count: words of the text as its user sees it.
        cut: whether ids are left out at the end.
    """

    ids: list[int]
    words: list[int]
    count: int  # type: ignore[assignment]  # not the method of a tuple
    cut: bool = False

    @property
    def matrix(self) -> np.ndarray:
        """float32 [words, ids]: 1 where the id belongs to the word."""
        return (np.arange(self.count)[:, None] == np.array(self.words)).astype(np.float32)


_KEPT = 32
"""Maximum characters of a word whose ids are cached.

Longer words seldom come again.
"""


def _ids_of_word(tokenizer: Tokenizer, word: str) -> tuple[int, ...]:
    return _kept_ids(tokenizer, word) if len(word) <= _KEPT else tuple(tokenizer.encode_text(word))


@functools.lru_cache(2**16)
def _kept_ids(tokenizer: Tokenizer, word: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode_text(word))


def tokens_of(
    tokenizer: Tokenizer,
    text: str,
    *,
    line: str = "",
    limit: int,
    eos: bool = True,
    before: list[int] | None = None,
    after: Sequence[int] = (),
) -> WordTokens:
    """Return the tokens of a text, which may begin with control symbols.

    Each word is encoded alone, so that the word of each id is known. No tokenizer here joins words,
    so the ids equal the ids of the whole text.

    Args:
        line: text that the user gave, perhaps without the control symbols.
        limit: maximum number of ids, EOS included; further ids are left out.
        before, after: ids around the words in place of those of the control symbols.
    """
    symbols, rest = tokenizer.split(text)
    ids = list(symbols if before is None else before)
    words, own = [-1] * len(ids), rest.split()
    # User's symbols; below 0: words added before the line.
    first = len(line.split()) - len(own) if line else 0
    for number, word in enumerate(own, first):
        pieces = _ids_of_word(tokenizer, word)
        ids += pieces
        words += [max(-1, number)] * len(pieces)
    most = limit - eos - len(after)
    cut = len(ids) > most
    end = [*after, *[EOS] * eos]
    return WordTokens([*ids[:most], *end], [*words[:most], *[-1] * len(end)], first + len(own), cut)
