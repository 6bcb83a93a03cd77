"""Tokenizers whose file lists their pieces."""

import json
from collections import Counter
from collections.abc import Iterable

from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.data.tokenizers import SPECIAL, Tokenizer
from t2t_flax.json_file import parse_json


class ListTokenizer(Tokenizer):
    """Tokenizer whose file is `{"kind": KIND, ..., PIECES: [...]}`.

    KIND is as in `registry.TOKENIZER_FILES`. Ids are positions in the list, after the ids of PAD,
    EOS and UNK.
    """

    KIND: str
    PIECES: str

    def __init__(self, data: bytes):
        super().__init__(data)
        self.content = parse_json(data)
        self._pieces = [*SPECIAL, *self.content[self.PIECES]]
        if not all(isinstance(piece, str) for piece in self._pieces):
            raise ValueError(f"{self.PIECES} holds a piece that is no text")
        self.ids = {piece: i for i, piece in enumerate(self._pieces)}

    @classmethod
    def write(cls, pieces: list[str], **more: str | list[str]) -> bytes:
        """Return the file of a tokenizer with these pieces."""
        return json.dumps(
            {"kind": cls.KIND, **more, cls.PIECES: pieces}, ensure_ascii=False
        ).encode()

    @property
    def vocab_size(self):
        return len(self._pieces)

    def decode(self, ids):
        return " ".join(self.pieces([i for i in ids if i not in (PAD, EOS)]))

    def pieces(self, ids):
        for i in ids:
            if not 0 <= i < len(self._pieces):
                raise IndexError(f"token id {i} is outside the vocabulary of {len(self._pieces)}")
        return [self._pieces[i] for i in ids]


class SymbolTokenizer(ListTokenizer):
    """Tokenizer in which every symbol is a piece; symbols unseen in training are UNK."""

    KIND, PIECES = "symbols split at spaces", "symbols"

    @staticmethod
    def of(texts: Iterable[str]) -> "SymbolTokenizer":
        """Build the tokenizer of all symbols of the texts, the most frequent first."""
        counts = Counter(symbol for text in texts for symbol in text.split())
        return SymbolTokenizer(
            SymbolTokenizer.write(sorted(counts, key=lambda symbol: (-counts[symbol], symbol)))
        )

    def encode_text(self, text):
        return [self.ids.get(symbol, UNK) for symbol in text.split()]
