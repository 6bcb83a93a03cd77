"""Text to token ids and back. Ids 0, 1 and 2 are PAD, EOS and UNK, whatever the tokenizer. Tokenizers whose file lists their
pieces; the simplest splits symbols, such as those of trees, at spaces.
"""

import abc
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence

from etils import epath

from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.filesystem import atomic_write
from t2t_flax.json_file import parse_json

SPECIAL = ("<pad>", "</s>", "<unk>")


class Tokenizer(abc.ABC):
    """Maps text to ids in [0, vocab_size) and back. `data`: the content of its file."""

    def __init__(self, data: bytes):
        self.data = data
        self.digest = hashlib.sha256(data).hexdigest()

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int: ...

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Ids of the text, without EOS."""

    def control_id(self, symbol: str) -> int | None:
        """Id of a control symbol, to which no text is encoded; None if there is none of that name."""
        return None

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; PAD and EOS have none. Raises IndexError for ids outside the vocabulary."""

    def changes(self, text: str) -> bool:
        """Whether decoding the text's ids gives another text, spaces apart: one that a model can never write. Unicode
        normalization and unknown characters are the causes.
        """
        return self.decode(self.encode(text)).split() != text.split()

    @abc.abstractmethod
    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary entry of each id, for display."""

    def save(self, path: epath.PathLike) -> None:
        atomic_write(path, self.data)

    def __reduce__(self):
        return type(self), (self.data,)


class ListTokenizer(Tokenizer):
    """Reads `{"kind": KIND, ..., PIECES: [...]}`, KIND as in `registry.TOKENIZER_FILES`; ids are positions in the list, after
    those of PAD, EOS and UNK.
    """

    KIND: str
    PIECES: str

    def __init__(self, data: bytes):
        super().__init__(data)
        self.content = parse_json(data)
        self._pieces = [*SPECIAL, *self.content[self.PIECES]]
        self.ids = {piece: i for i, piece in enumerate(self._pieces)}

    @classmethod
    def write(cls, pieces: list[str], **more: str) -> bytes:
        """The file of a tokenizer with these pieces."""
        return json.dumps({"kind": cls.KIND, **more, cls.PIECES: pieces}, ensure_ascii=False).encode()

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
    """Every symbol is a piece; symbols unseen in training are UNK."""

    KIND, PIECES = "symbols split at spaces", "symbols"

    @staticmethod
    def of(texts: Iterable[str]) -> "SymbolTokenizer":
        """The tokenizer of all symbols of the texts, the most frequent first."""
        counts = Counter(symbol for text in texts for symbol in text.split())
        return SymbolTokenizer(SymbolTokenizer.write(sorted(counts, key=lambda symbol: (-counts[symbol], symbol))))

    def encode(self, text):
        return [self.ids.get(symbol, UNK) for symbol in text.split()]
