"""Phrases to avoid against the text of every sequence of tokens."""

import itertools
import re

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax.config.data_keys import UNK
from t2t_flax.data.sources import toy
from t2t_flax.data.tokenizers import SPECIAL, Data, SentencePieceTokenizer
from t2t_flax.extensions.constraints.avoid import (
    advance,
    array,
    completing,
    edges,
    ends_word,
    start,
)
from t2t_flax.extensions.constraints.lines import contains


class Pieces:
    """A tokenizer as SentencePiece's with any pieces, which encodes by the first ones that fit."""

    def __init__(self, pieces):
        self._pieces = [*SPECIAL, *dict.fromkeys(pieces)]
        self.vocab_size = len(self._pieces)

    def pieces(self, ids):
        return [self._pieces[i] for i in ids]

    def encode_text(self, text):
        text, ids = ("▁" + text.replace(" ", "▁")), []
        while text:
            fits = [i for i in range(UNK + 1, self.vocab_size) if text.startswith(self._pieces[i])]
            first = text[0].encode()
            fallback = [
                self._pieces.index(f"<0x{b:02X}>") for b in first if f"<0x{b:02X}>" in self._pieces
            ]
            if not fits and len(fallback) < len(first):
                return [UNK]
            ids += [max(fits, key=lambda i: len(self._pieces[i]))] if fits else fallback
            text = text[len(self._pieces[ids[-1]]) if fits else 1 :]
        return ids

    def decode(self, ids):
        parts = [re.fullmatch("<0x(..)>", self._pieces[i]) or self._pieces[i] for i in ids]
        text = b"".join(
            p.replace("▁", " ").encode() if isinstance(p, str) else bytes([int(p[1], 16)])
            for p in parts
        )
        return text.decode(errors="replace")


ALPHABET = "▁ a b - é ▁a ab ▁ab b- -a ▁ba a▁b <0xC3> <0xA9> 木 林 木林 ▁木".split()


def forbidden_after(tokenizer, phrases, ids):
    """The tokens that the automaton forbids after some."""
    rows = jnp.asarray(array([edges(tokenizer, phrases)]))
    ends_V = jnp.asarray(np.frombuffer(ends_word(tokenizer), bool))
    states = start(rows, 1)
    for token in ids:
        states = advance(rows, states, jnp.full((1, 1), token), ends_V)
    return set(np.asarray(completing(rows, states)).ravel().tolist()) - {0}


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(ALPHABET[5:]), max_size=6),
    st.lists(
        st.text("ab-é木林 ", min_size=1, max_size=4).map(str.strip).filter(bool),
        min_size=1,
        max_size=2,
    ),
    st.lists(st.integers(0, 10**6), max_size=4),
)
def test_a_token_is_forbidden_if_the_text_then_contains_a_phrase(more, phrases, choices):
    phrases = [" ".join(phrase.split()) for phrase in phrases]
    tokenizer, ids = Pieces(ALPHABET[:5] + more), []
    for choice in [*choices, 0]:
        forbidden = forbidden_after(tokenizer, phrases, ids)
        free = range(UNK + 1, tokenizer.vocab_size)
        whole = [i for i in free if "\ufffd" not in tokenizer.decode([*ids, i])]
        found = {
            i
            for i in whole
            if any(contains(tokenizer.decode([*ids, i]), phrase) for phrase in phrases)
        }
        assert forbidden & set(whole) >= found
        # After a byte it is not known whether a letter ends there: more is forbidden.
        if not any("<0x" in piece for piece in tokenizer.pieces(ids)):
            assert forbidden & set(whole) == found
        if not (allowed := [i for i in free if i not in forbidden]):
            return
        ids.append(allowed[choice % len(allowed)])


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_no_segmentation_of_a_word_is_written(kind):
    """With letters and bytes there are more than can be listed."""
    sentences = [s for pair in toy.pairs("train", 300) for s in pair]
    tokenizer = SentencePieceTokenizer.train(
        sentences, Data(tokenizer=kind, vocab_size=400, byte_fallback=True)
    )
    ids = {piece: i for i, piece in enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))}
    rng, seen, word = np.random.default_rng(0), set(), "Bücherei"
    for _ in range(40):
        cuts = [0, *(i for i in range(1, len(word)) if rng.random() < 0.6), len(word)]
        parts = [word[a:b] for a, b in itertools.pairwise(cuts)]
        pieces = [p for part in parts for p in ([part] if part in ids else part)]
        names = [
            [p] if rng.random() < 0.7 else [f"<0x{byte:02X}>" for byte in p.encode()]
            for p in pieces
        ]
        way = [ids["▁"], *(ids[name] for each in names for name in each)]
        assert tokenizer.decode(way).strip() == word
        seen.add(tuple(way))
        assert way[-1] in forbidden_after(tokenizer, [word], way[:-1])
    assert len(seen) > 32
