"""Text to token ids and back. Ids 0, 1 and 2 are PAD, EOS and UNK, whatever the tokenizer."""

import abc
import hashlib
from collections.abc import Sequence

from etils import epath

from t2t_flax.filesystem import atomic_write


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
