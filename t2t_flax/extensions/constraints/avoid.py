"""Forbidden phrases: mask tokens that would complete one as whole words.

The states of a phrase's automaton are the positions in its text. An edge from position i to j
exists for each token that writes the text between them, so the automaton covers every segmentation.
A hypothesis is in a set of states, because its end may begin several phrases.
"""

import functools
import itertools
import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.config.data_keys import PAD, UNK
from t2t_flax.data.tokenizers import Tokenizer
from t2t_flax.extensions.constraints.segmentation import (
    SPACE,
    continues_word,
    forms,
    marks_spaces,
    pieces,
    power_of_two,
)

BOUNDARY, ANYWHERE, FIRST = 0, 1, 2
"""Automaton states; positions within phrases start at FIRST.

BOUNDARY: a word may begin. ANYWHERE: always.
"""
WRITTEN = BOUNDARY
"""Final state of the edges whose tokens complete a phrase."""
Edge = tuple[int, int, int]
"""(from state, to state, token)."""
_BYTE = re.compile("<0x([0-9A-F]{2})>")


def edges(tokenizer: Tokenizer, phrases: Sequence[str]) -> list[Edge]:
    """Return the edges of the automata of all phrases.

    A phrase that no tokens write is never completed.
    """
    found: list[Edge] = []
    free = FIRST
    for phrase in dict.fromkeys(phrases):
        own, states = _edges(tokenizer, phrase)
        shift = free - FIRST
        found += [
            (
                begin + shift if begin >= FIRST else begin,
                end + shift if end >= FIRST else end,
                token,
            )
            for begin, end, token in own
        ]
        free += states
    return found


def array(each: Sequence[Sequence[Edge]]) -> np.ndarray:
    """Return int32 [sentences, E, 3], zero-padded.

    E is a power of two, so that few programs are compiled.
    """
    most = max(map(len, each), default=0)
    out = np.full((len(each), max(1, power_of_two(most)), 3), PAD, np.int32)
    for row, own in zip(out, each, strict=True):
        if own:
            row[: len(own)] = own
    return out


def start(edges_BxEx3: jax.Array, width: int) -> jax.Array:
    """Return the states of `width` hypotheses without a token, bool [B, K, E + FIRST].

    At most E states beyond FIRST exist, since each has an edge that leads to it.
    """
    B, E, _ = edges_BxEx3.shape
    return jnp.broadcast_to(jnp.arange(E + FIRST) < FIRST, (B, width, E + FIRST))


def advance(
    edges_BxEx3: jax.Array, states_BxKxS: jax.Array, tokens_BxK: jax.Array, ends_V: jax.Array
) -> jax.Array:
    """Return the states after one more token.

    Args:
        ends_V: whether a word may begin after each token.
    """
    taken_BxKxE = _leaving(edges_BxEx3, states_BxKxS) & (
        tokens_BxK[..., None] == edges_BxEx3[:, None, :, 2]
    )
    rows, beams = (
        jnp.arange(len(states_BxKxS))[:, None, None],
        jnp.arange(states_BxKxS.shape[1])[:, None],
    )
    new = jnp.zeros_like(states_BxKxS).at[rows, beams, edges_BxEx3[:, None, :, 1]].max(taken_BxKxE)
    return new.at[..., BOUNDARY].set(ends_V[tokens_BxK]).at[..., ANYWHERE].set(True)


def completing(edges_BxEx3: jax.Array, states_BxKxS: jax.Array) -> jax.Array:
    """Return the tokens that would complete a phrase, and PAD, int32 [B, K, E]."""
    completes = _leaving(edges_BxEx3, states_BxKxS) & (edges_BxEx3[:, None, :, 1] == WRITTEN)
    return jnp.where(completes, edges_BxEx3[:, None, :, 2], PAD)


def _leaving(edges_BxEx3: jax.Array, states_BxKxS: jax.Array) -> jax.Array:
    """Return the edges that leave the states of a hypothesis, bool [B, K, E]."""
    return jnp.take_along_axis(states_BxKxS, edges_BxEx3[:, None, :, 0], axis=2)


@functools.lru_cache(maxsize=8)
def ends_word(tokenizer: Tokenizer) -> bytes:
    """Return for each token whether a word may begin after it.

    It is true where that is unknown, as after a byte that is no letter.
    """
    if not marks_spaces(tokenizer):
        return bytes([1]) * tokenizer.vocab_size
    known = [
        i <= UNK or _BYTE.fullmatch(piece) or not _is_word(piece[-1:])
        for i, piece in enumerate(pieces(tokenizer))
    ]
    return np.array([bool(end) for end in known], np.uint8).tobytes()


@functools.lru_cache(maxsize=2**14)
def _edges(tokenizer: Tokenizer, phrase: str) -> tuple[list[Edge], int]:
    """Return (edges, number of states from FIRST on)."""
    written = forms(tokenizer, phrase)
    found: list[Edge] = []
    if not marks_spaces(tokenizer):  # use only the tokenizer's segmentation
        free = FIRST
        for ids in written:
            path = [ANYWHERE, *range(free, free + len(ids) - 1), WRITTEN]
            found += zip(path, path[1:], ids, strict=False)
            free += len(ids) - 1
        return found, free - FIRST
    # Use the text as normalized by the tokenizer, if it can write the phrase.
    normalized = b"".join(map(_text_of, tokenizer.pieces(written[0]))).strip() if written else b""
    text = normalized or phrase.encode()
    begin = BOUNDARY if continues_word(text.decode()[0]) else ANYWHERE
    known, states = _parts(tokenizer), {0: begin, len(text): WRITTEN}
    for i in range(len(text)):
        if i not in states:
            continue
        for j in range(i + 1, len(text) + 1):
            for token, from_start, to_end in known.get(text[i:j], ()):
                if (from_start or i == 0) and (to_end or j == len(text)):
                    to = states.setdefault(j, FIRST + len(states) - 2)
                    found.append((states[i] if from_start else ANYWHERE, to, token))
    return found, len(states) - 2


@functools.lru_cache(maxsize=4)
def _parts(tokenizer: Tokenizer) -> dict[bytes, list[tuple[int, bool, bool]]]:
    """Return the parts of tokens that can be whole words beside other text.

    Maps the text to (token, whether the part starts it, whether the part ends it).
    """
    found: dict[bytes, list[tuple[int, bool, bool]]] = {}
    for token, piece in enumerate(pieces(tokenizer)):
        if token <= UNK:
            continue
        if _BYTE.fullmatch(piece):
            found.setdefault(_text_of(piece), []).append((token, True, True))
            continue
        text = piece.replace(SPACE, " ")
        starts = [
            a
            for a in range(len(text))
            if a == 0 or not (_is_word(text[a - 1]) and continues_word(text[a]))
        ]
        stops = [
            b
            for b in range(1, len(text))
            if not (continues_word(text[b - 1]) and _is_word(text[b]))
        ] + [len(text)]
        for a, b in itertools.product(starts, stops):
            if a < b:
                found.setdefault(text[a:b].encode(), []).append((token, a == 0, b == len(text)))
    return found


def _is_word(character: str) -> bool:
    return re.match(r"\w", character) is not None


def _text_of(piece: str) -> bytes:
    byte = _BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(SPACE, " ").encode()
