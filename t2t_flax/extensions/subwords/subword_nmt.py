"""Byte-pair codes of subword-nmt over pre-tokenized text.

They are used with fairseq, Marian and others. The vocabulary is the pieces of the segmented
training text, most frequent first. One file holds codes and vocabulary.
"""

import collections
import io
import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any

from etils import epath

from t2t_flax.config.data_keys import UNK
from t2t_flax.data.sources.text import lines
from t2t_flax.data.tokenizers import split_symbols
from t2t_flax.errors import UserError, require
from t2t_flax.extensions.shared.list_tokenizer import ListTokenizer

_MARK = "@@"
_INSPECTED_SENTENCES = 2000
log = logging.getLogger("t2t_flax")


class SubwordNmtTokenizer(ListTokenizer):
    """Tokenizer that splits at spaces and applies the codes.

    `decode` joins pieces that end in @@ with the next one.
    """

    KIND, PIECES = "subword-nmt codes and vocabulary", "vocabulary"
    READS_ALL = True

    def __init__(self, data: bytes):
        super().__init__(data)
        self._bpe = _segmenter(self.content["codes"])
        self.control_symbols = {
            symbol: self.ids.pop(symbol) for symbol in self.content.get("symbols", ())
        }

    @staticmethod
    def inputs(data):
        """Return the BPE codes of data.tokenizer_model. Raises UserError as `read_codes`."""
        return {"codes": read_codes(epath.Path(data.root or ".") / data.tokenizer_model)}

    @staticmethod
    def train(texts, data, control_symbols=()):
        """Build the tokenizer for the texts, see `with_vocabulary`."""
        return with_vocabulary(SubwordNmtTokenizer.inputs(data)["codes"], texts, control_symbols)

    def encode_text(self, text):
        return [self.ids.get(piece, UNK) for piece in self._bpe.segment_tokens(text.split())]

    def decode(self, ids):
        text = super().decode([i for i in ids if i not in self.control_symbols.values()])
        return re.sub(rf"{_MARK}( |$)", "", text)


def read_codes(path: epath.Path) -> str:
    """Read the codes file of subword-nmt, plain or compressed.

    Raises UserError if it is missing or not a codes file.
    """
    if not path.is_file():
        raise UserError(
            f"config.data.tokenizer_model: there is no file {path}; subword_nmt needs its BPE"
            " codes."
        )
    try:
        codes = [*lines(path)]
    except UserError as error:
        raise UserError(f"config.data.tokenizer_model: {error}") from None
    merges = [line for line in codes if not line.startswith("#version")]
    if not merges or any(len(line.split(" ")) != 2 for line in merges):
        raise UserError(
            f"config.data.tokenizer_model: {path} is not a file of BPE codes, which has two pieces"
            " on each line."
        )
    return "".join(f"{line}\n" for line in codes)


def _segmenter(codes: str) -> Any:
    """Return the package's object that applies the codes."""
    require("subword_nmt", "subword-nmt", "data.tokenizer = subword_nmt")
    from subword_nmt.apply_bpe import BPE

    return BPE(io.StringIO(codes))


def with_vocabulary(
    codes: str, sentences: Iterable[str], symbols: Sequence[str] = ()
) -> SubwordNmtTokenizer:
    """Build the tokenizer with the control symbols and all pieces of `sentences`.

    The codes make the pieces. Warns if the text does not look Moses-tokenized. Raises UserError if
    there is no text.
    """
    bpe = _segmenter(codes)
    words: collections.Counter[str] = collections.Counter()
    untokenised, count = 0, 0
    for sentence in (split_symbols(sentence, symbols)[1] for sentence in sentences):
        words.update(sentence.split())
        count += 1
        untokenised += count <= _INSPECTED_SENTENCES and bool(
            re.search(r"\w[.,!?](\s|$)", sentence)
        )
    if not words:
        raise UserError("there is no text to build a vocabulary from: every sentence is empty")
    if untokenised > 0.3 * min(count, _INSPECTED_SENTENCES):
        log.warning(
            "data.tokenizer = subword_nmt expects text in which Moses has put spaces around"
            " punctuation ('a dog .'), but %d of the first %d sentences have words like 'dog.':"
            " tokenise the text first.",
            untokenised,
            min(count, _INSPECTED_SENTENCES),
        )
    pieces: collections.Counter[str] = collections.Counter()
    for word, count in words.items():
        for piece in bpe.segment_tokens([word]):
            pieces[piece] += count
    vocabulary = sorted(pieces, key=lambda piece: (-pieces[piece], piece))
    more = {"symbols": [*symbols]} if symbols else {}
    return SubwordNmtTokenizer(
        SubwordNmtTokenizer.write([*symbols, *vocabulary], codes=codes, **more)
    )
