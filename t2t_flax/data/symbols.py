"""A tokenizer whose pieces are the words of the text, split at spaces: for targets that are symbols, such as trees."""

import json
from collections import Counter
from collections.abc import Iterable

from t2t_flax.data.tokenizer import EOS, PAD, UNK, Tokenizer

_KIND = "symbols split at spaces"
_SPECIAL = ("<pad>", "</s>", "<unk>")


class SymbolTokenizer(Tokenizer):
    """Every symbol is a piece; one that training has not seen is UNK."""

    def __init__(self, data: bytes):
        super().__init__(data)
        self._pieces = [*_SPECIAL, *json.loads(data)["symbols"]]
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}

    @staticmethod
    def of(texts: Iterable[str]) -> "SymbolTokenizer":
        """The tokenizer of all symbols of the texts, the most frequent first."""
        found = Counter(symbol for text in texts for symbol in text.split())
        symbols = sorted(found, key=lambda symbol: (-found[symbol], symbol))
        return SymbolTokenizer(json.dumps({"kind": _KIND, "symbols": symbols}, ensure_ascii=False).encode())

    @property
    def vocab_size(self):
        return len(self._pieces)

    def encode(self, text):
        return [self._ids.get(symbol, UNK) for symbol in text.split()]

    def decode(self, ids):
        return " ".join(self.pieces([i for i in ids if i not in (PAD, EOS)]))

    def pieces(self, ids):
        for i in ids:
            if not 0 <= i < len(self._pieces):
                raise IndexError(f"token id {i} is outside the vocabulary of {len(self._pieces)}")
        return [self._pieces[i] for i in ids]

    @classmethod
    def recognizes(cls, data):
        try:
            return json.loads(data).get("kind") == _KIND
        except (ValueError, AttributeError):
            return False
