"""A SentencePiece model whose pieces are numbered by a vocabulary of their own, as Marian's and OPUS-MT's models have it.

Both languages may share the vocabulary while each has its own SentencePiece model. One file holds model and vocabulary.
"""

import base64
import re

from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.data.tokenizers.base import ListTokenizer

_LANGUAGE_TAG = re.compile(r">>[^<>]*<<")


class MarianTokenizer(ListTokenizer):
    """Pieces of the model that the vocabulary lacks are UNK. A tag `>>fra<<` before the text, which names the target language
    of a multilingual model, is a piece.
    """

    KIND, PIECES = "SentencePiece model and vocabulary", "vocabulary"

    def __init__(self, data: bytes):
        from sentencepiece import SentencePieceProcessor

        super().__init__(data)
        self.model = base64.b64decode(self.content["model"])
        self._processor = SentencePieceProcessor(model_proto=self.model)

    @staticmethod
    def of(model: bytes, pieces: list[str]) -> "MarianTokenizer":
        """The tokenizer of a serialized SentencePiece model and the pieces of ids 3, 4, ..."""
        encoded = base64.b64encode(model).decode()
        return MarianTokenizer(MarianTokenizer.write(pieces, model=encoded))

    def encode(self, text):
        tag = _LANGUAGE_TAG.match(text)
        pieces = self._processor.encode(text[tag.end() :] if tag else text, out_type=str)
        return [self.ids.get(piece, UNK) for piece in ([tag[0]] if tag else []) + pieces]

    def decode(self, ids):
        return self._processor.decode_pieces(self.pieces([i for i in ids if i not in (PAD, EOS)]))
