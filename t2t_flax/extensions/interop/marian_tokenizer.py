"""SentencePiece model with a separate piece vocabulary.

Marian's and OPUS-MT's models have one. Both languages may share the vocabulary while each has its
own SentencePiece model. One file holds model and vocabulary.
"""

import base64
import re
from collections.abc import Sequence

from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.data.tokenizers import sentencepiece_encode
from t2t_flax.extensions.shared.list_tokenizer import ListTokenizer

_TAG = re.compile(r">>[^<>]*<<")
_LANGUAGE = re.compile(r">>([A-Za-z][\w-]*)<<|<2([A-Za-z][\w-]*)>")


def language_of(token: str) -> str | None:
    """Return the target language that a token of a multilingual model names, or None.

    Such a token is `>>de<<` or `<2de>`.
    """
    match = _LANGUAGE.fullmatch(token)
    return match and (match[1] or match[2])


class MarianTokenizer(ListTokenizer):
    """Tokenizer in which pieces that the vocabulary lacks are UNK.

    A tag `>>fra<<` before the text, which names the target language of a multilingual model, is a
    piece; `<2fra>` is the same one.
    """

    KIND, PIECES = "SentencePiece model and vocabulary", "vocabulary"

    def __init__(self, data: bytes):
        from sentencepiece import SentencePieceProcessor

        super().__init__(data)
        self.model = base64.b64decode(self.content["model"])
        self._processor = SentencePieceProcessor(model_proto=self.model)
        tags = self.content.get("symbols", [])
        self.control_symbols = {
            symbol: self.ids[tag] for tag in tags for symbol in (tag, f"<2{language_of(tag)}>")
        }

    @staticmethod
    def of(model: bytes, pieces: list[str], symbols: Sequence[str] = ()) -> "MarianTokenizer":
        """Build the tokenizer of a SentencePiece model and the pieces of ids 3, 4, ...

        The model is serialized.

        Args:
            symbols: symbols of target languages; if given, texts must begin with one of them.
        """
        encoded = base64.b64encode(model).decode()
        more = {"symbols": list(symbols)} if symbols else {}
        return MarianTokenizer(MarianTokenizer.write(pieces, model=encoded, **more))

    def split(self, text):
        symbols, rest = super().split(text)
        if not symbols and (tag := _TAG.match(text)):  # also without a space, as in Marian
            return [self.ids.get(tag[0], UNK)], text[tag.end() :]
        return symbols, rest

    def encode_text(self, text):
        return [
            self.ids.get(piece, UNK)
            for piece in sentencepiece_encode(self._processor, text, out_type=str)
        ]

    def decode(self, ids):
        return self._processor.decode_pieces(self.pieces([i for i in ids if i not in (PAD, EOS)]))
