"""Tokenizers that number the words of both sides.

So the model need not count. The number is a token after each source word, and a part of each tag
(`parsing.word_numbers`).
"""

import base64
import functools
import json
from collections.abc import Iterable, Sequence

from t2t_flax.config import Data
from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.data.tokenizers import SentencePieceTokenizer, Tokenizer
from t2t_flax.extensions.parsing.trees import is_bracket
from t2t_flax.extensions.shared.list_tokenizer import ListTokenizer, SymbolTokenizer
from t2t_flax.json_file import parse_json


def _numbers(count: int) -> list[str]:
    return [f"<word{k}>" for k in range(count)]


def without_number(symbol: str) -> str:
    """Return `NN` for `NN#3`; brackets have no number."""
    return symbol if is_bracket(symbol) else symbol.rpartition("#")[0]


class NumberedWords(Tokenizer):
    """Pieces of each word, then the word's number modulo `count`.

    A SentencePiece model gives the pieces.
    """

    KIND = "SentencePiece model with numbers of words"

    def __init__(self, data: bytes):
        super().__init__(data)
        content = parse_json(data)
        self.words = SentencePieceTokenizer(base64.b64decode(content["model"]))
        symbols = dict(self.words.control_symbols)
        self._numbers = [symbols.pop(number) for number in _numbers(content["count"])]
        self.control_symbols = symbols
        self._ids = functools.lru_cache(2**16)(self.words.encode_text)

    @staticmethod
    def of(
        sentences: Iterable[str], data: Data, count: int, symbols: Sequence[str] = ()
    ) -> "NumberedWords":
        """Train the model on sentences, with control symbols.

        Raises UserError as `SentencePieceTokenizer.train`.
        """
        words = SentencePieceTokenizer.train(sentences, data, [*_numbers(count), *symbols])
        model = base64.b64encode(words.data).decode()
        return NumberedWords(
            json.dumps({"kind": NumberedWords.KIND, "count": count, "model": model}).encode()
        )

    @property
    def vocab_size(self):
        return self.words.vocab_size

    def encode_text(self, text):
        numbers = self._numbers
        return [
            i
            for k, word in enumerate(text.split())
            for i in (*self._ids(word), numbers[k % len(numbers)])
        ]

    def decode(self, ids):
        return self.words.decode(ids)

    def pieces(self, ids):
        return self.words.pieces(ids)


class NumberedSymbols(ListTokenizer):
    """Symbols of linearized trees with numbered tags: `NN#3`.

    The k-th tag has the number k modulo `count`.
    """

    KIND, PIECES = "symbols of trees with numbers of words", "symbols"

    def __init__(self, data: bytes):
        super().__init__(data)
        self.count = int(self.content["count"])

    @staticmethod
    def of(texts: Iterable[str], count: int) -> "NumberedSymbols":
        """Build the tokenizer of all symbols of the texts: each tag with all numbers."""
        symbols = SymbolTokenizer.of(texts).content[SymbolTokenizer.PIECES]
        pieces = [
            s if is_bracket(s) else f"{s}#{k}"
            for s in symbols
            for k in range(1 if is_bracket(s) else count)
        ]
        return NumberedSymbols(NumberedSymbols.write(pieces, count=str(count)))

    def encode_text(self, text):
        ids, words = [], 0
        for symbol in text.split():
            bracket = is_bracket(symbol)
            ids.append(self.ids.get(symbol if bracket else f"{symbol}#{words % self.count}", UNK))
            words += not bracket
        return ids

    def decode(self, ids):
        pieces = zip(ids, self.pieces(ids), strict=True)
        return " ".join(
            piece if i == UNK else without_number(piece)
            for i, piece in pieces
            if i not in (PAD, EOS)
        )
