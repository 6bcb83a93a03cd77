"""Tokenizer of M2M-100 and NLLB, whose tokens name the language of each side.

One file holds the vocabulary in our numbering, and a SentencePiece model or a tokenizer.json of
Hugging Face's package `tokenizers`.
"""

import base64
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.data.tokenizers import Frame, sentencepiece_encode
from t2t_flax.errors import UserError, install_hint
from t2t_flax.extensions.shared.list_tokenizer import ListTokenizer


class M2M100Tokenizer(ListTokenizer):
    """Tokenizer in which the target begins with the token of its language.

    The source begins with the token of its own language, or ends with EOS and that token. The
    symbols `<2deu_Latn>` and `<from:eng_Latn>` before a source text name both.

    Attributes:
        languages: token of each language by its code.
        source_last: whether the token of the source comes last.
        settings: tokenizer_config.json of the imported model.
        rows: id of each of our tokens in that model.
    """

    KIND, PIECES = "M2M-100 vocabulary", "vocabulary"

    def __init__(self, data: bytes):
        super().__init__(data)
        self.languages: dict[str, str] = self.content["languages"]
        self.source_last: bool = self.content["source_last"]
        self.settings: dict[str, Any] = self.content["settings"]
        first = self.content["first"]
        rest = (i for i in range(self.vocab_size) if i not in first)
        self.rows: list[int] = [*first, *rest]
        ids = {code: self.ids[token] for code, token in self.languages.items()}
        # A source's symbol has the same token, so its id is beyond the vocabulary until `frame`.
        self.control_symbols = {f"<2{code}>": i for code, i in ids.items()} | {
            f"<from:{code}>": i + self.vocab_size for code, i in ids.items()
        }
        self._without_text = {PAD, EOS, *ids.values()}
        self._without_text |= {self.ids[token] for token in self.content["special"]}

    @staticmethod
    def of(
        vocabulary: Sequence[str],
        languages: Mapping[str, str],
        special: Sequence[str],
        *,
        first: Sequence[int],
        source_last: bool,
        settings: Mapping[str, Any],
        model: bytes = b"",
        json: str = "",
    ) -> "M2M100Tokenizer":
        """Build the tokenizer of a SentencePiece model or the text of a tokenizer.json.

        Args:
            vocabulary: pieces of ids 3, 4, ...
            special: pieces without text, besides languages.
            first: ids of padding, EOS and unknown in the imported model.
        """
        more: dict[str, Any] = dict(
            languages=dict(languages),
            special=list(special),
            first=list(first),
            source_last=source_last,
            settings=dict(settings),
            model=base64.b64encode(model).decode(),
            json=json,
        )
        return M2M100Tokenizer(M2M100Tokenizer.write(list(vocabulary), **more))

    @functools.cached_property
    def _sentencepiece(self) -> Any:
        from sentencepiece import SentencePieceProcessor

        return SentencePieceProcessor(model_proto=self.sentencepiece_model)

    @property
    def sentencepiece_model(self) -> bytes:
        """Serialized SentencePiece model; empty if there is a tokenizer.json."""
        return base64.b64decode(self.content["model"])

    @property
    def json(self) -> str:
        """Text of tokenizer.json; empty if there is a SentencePiece model."""
        return self.content["json"]

    @functools.cached_property
    def _fast(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError:
            raise UserError(
                f"a tokenizer.json needs the package tokenizers: {install_hint('hf')}."
            ) from None
        fast = Tokenizer.from_str(self.json)
        fast.encode_special_tokens = True  # </s> in a text is text
        return fast

    def encode_text(self, text):
        if self.json:
            pieces = self._fast.encode(text, add_special_tokens=False).tokens
        else:
            pieces = sentencepiece_encode(self._sentencepiece, text, out_type=str)
        return [self.ids.get(piece, UNK) for piece in pieces]

    def decode(self, ids):
        pieces = self.pieces([i for i in ids if i not in self._without_text])
        if self.json:
            return self._fast.decode([self._fast.token_to_id(piece) for piece in pieces])
        return self._sentencepiece.decode_pieces(pieces)

    def frame(self, symbols):
        targets = [i for i in symbols if i < self.vocab_size]
        sources = [i - self.vocab_size for i in symbols if i >= self.vocab_size]
        if len(targets) != 1 or len(sources) != 1:
            code = min(self.languages)
            raise UserError(
                "a source text needs symbols of its own language and of the language to write, such"
                f" as <from:{code}> <2{code}>."
            )
        if self.source_last:
            return Frame([], [EOS, *sources], targets[0])
        return Frame(sources, [], targets[0])
