"""Which word each token is of, held against the positions that the tokenizers themselves report."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.config import Data
from t2t_flax.config.data_keys import EOS
from t2t_flax.data.sources import toy
from t2t_flax.data.tokenizers import SentencePieceTokenizer
from t2t_flax.extensions.alignments import words
from t2t_flax.extensions.alignments.words import tokens_of
from t2t_flax.extensions.shared.list_tokenizer import SymbolTokenizer

LINES = [side for pair in toy.pairs("train", 400) for side in pair]
TEXTS = st.text(alphabet="abcdeß½…¨Ａé\u200b ,.", max_size=30)


@functools.cache
def tokenizer(kind: str, **keys):
    data = Data(tokenizer=kind, vocab_size=400, byte_fallback=True, character_coverage=1.0, **keys)
    return SentencePieceTokenizer.train(LINES, data, ("<2de>", "<2fr>"))


def words_by_position(model: SentencePieceTokenizer, text: str) -> list[int]:
    """Return the word in which each piece begins, by the byte that SentencePiece reports."""
    content = text.encode()
    pieces = model._processor.encode(text, out_type="proto").pieces
    # A piece may begin with the space before its word.
    return [content[: piece.begin + 1].count(b" ") for piece in pieces]


def test_ids_of_long_words_are_not_kept():
    """They would be what fills the memory of a server."""
    model, before = tokenizer("bpe"), words._kept_ids.cache_info().currsize
    for text in ("x" * 200, "häuser" * 40):
        assert tokens_of(model, text, limit=400, eos=False).ids == model.encode_text(text)
    assert words._kept_ids.cache_info().currsize == before


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_tokens_are_of_the_words_at_their_positions(kind):
    """Also where words have several pieces, own punctuation, or unknown characters."""
    model = tokenizer(kind)
    for line in [*LINES[:200], "Ein Ünbekanntes 漢字 wort , mit...  Leerzeichen ", "x"]:
        text = " ".join(line.split())
        tokens = tokens_of(model, text, limit=1000)
        assert tokens.ids[:-1] == model.encode_text(text) and tokens.ids[-1] == EOS
        assert tokens.words == [*words_by_position(model, text), -1] and tokens.count == len(
            text.split()
        )


@given(TEXTS)
def test_every_word_has_its_own_tokens_in_order(text):
    """Whatever normalization does to it.

    A word may vanish or become several, the others keep their numbers.
    """
    model = tokenizer("unigram")
    tokens = tokens_of(model, text, limit=1000)
    assert tokens.words[:-1] == sorted(tokens.words[:-1]) and tokens.count == len(text.split())
    for number, word in enumerate(text.split()):
        own = [i for i, of in zip(tokens.ids, tokens.words, strict=True) if of == number]
        assert own == model.encode_text(word)
    assert tokens.matrix.sum() == len(tokens.ids) - 1 and (tokens.matrix.sum(0)[:-1] == 1).all()


def test_control_symbols_and_eos_are_no_words_but_those_that_the_user_typed_are_counted():
    model = tokenizer("bpe")
    added = tokens_of(model, "<2de> A dog", line="A dog", limit=100)
    typed = tokens_of(model, "<2de> A dog", line="<2de> A dog", limit=100)
    assert added.ids == typed.ids and added.words[0] == typed.words[0] == added.words[-1] == -1
    assert (added.count, typed.count) == (2, 3)
    assert [w + 1 if w >= 0 else -1 for w in added.words] == typed.words
    assert tokens_of(model, "A dog", limit=100, eos=False).ids == added.ids[1:-1]


def test_what_does_not_fit_is_cut_off():
    model = SymbolTokenizer.of(["a b c d"])
    tokens = tokens_of(model, "a b c d", limit=3)
    assert tokens.words == [0, 1, -1] and tokens.ids[-1] == EOS and tokens.count == 4 and tokens.cut
    assert not tokens.matrix[2:].any()
    assert not tokens_of(model, "a b", limit=3).cut and not tokens_of(model, "", limit=3).cut
