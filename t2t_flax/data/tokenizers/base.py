"""Text to token ids and back. Ids 0, 1 and 2 are PAD, EOS and UNK, whatever the tokenizer.

A tokenizer is one file that says itself what kind it is (`Tokenizer.recognizes`), so `tokenizers.load_tokenizer` needs
only the path. The SentencePiece kind is a plain SentencePiece model, readable by every tool that reads those.
"""

import abc
import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from etils import epath

from t2t_flax.data.hashing import mix
from t2t_flax.errors import UserError
from t2t_flax.filesystem import atomic_write

PAD, EOS, UNK = 0, 1, 2

# Part of the model's bytes, and it changes unigram pieces: so a constant, not the number of cores.
_NUM_THREADS = 4
_MAX_SENTENCE_BYTES = 1 << 20


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

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; PAD and EOS have none. Raises IndexError for ids outside the vocabulary."""

    @abc.abstractmethod
    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary entry of each id, as one would show it beside the attention."""

    @classmethod
    @abc.abstractmethod
    def recognizes(cls, data: bytes) -> bool:
        """Whether `data` is a file of this kind."""

    def save(self, path: epath.PathLike) -> None:
        atomic_write(path, self.data)

    def __reduce__(self):
        return type(self), (self.data,)


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model. One that was trained with other special ids is renumbered to ours."""

    def __init__(self, data: bytes):
        from sentencepiece import SentencePieceProcessor

        super().__init__(data)
        self._processor = SentencePieceProcessor(model_proto=data)
        special = {i for i in range(len(self._processor)) if self._processor.is_control(i)} | {self._processor.unk_id()}
        ordinary = [i for i in range(len(self._processor)) if i not in special]
        self._to_model = [self._processor.pad_id(), self._processor.eos_id(), self._processor.unk_id(), *ordinary]
        renumbered = self._to_model != list(range(len(self._processor)))
        self._from_model = {theirs: ours for ours, theirs in enumerate(self._to_model)} if renumbered else None

    @property
    def vocab_size(self):
        return len(self._to_model)

    def encode(self, text):
        ids = self._processor.encode(text)
        return ids if self._from_model is None else [self._from_model[i] for i in ids]

    def decode(self, ids):
        return self._processor.decode([self._model_id(i) for i in ids if i not in (PAD, EOS)])

    def pieces(self, ids):
        names = {PAD: "<pad>", EOS: "</s>", UNK: "<unk>"}
        return [names.get(int(i)) or self._processor.id_to_piece(self._model_id(i)) for i in ids]

    def _model_id(self, i: int) -> int:
        if not 0 <= i < len(self._to_model):
            raise IndexError(f"token id {i} is outside the vocabulary of {len(self._to_model)}")
        return self._to_model[int(i)]

    @classmethod
    def recognizes(cls, data):
        from sentencepiece import SentencePieceProcessor

        try:
            return len(SentencePieceProcessor(model_proto=data)) > 0 if data else False
        except RuntimeError:
            return False


def train_sentencepiece(
    sentences: Iterable[str],
    *,
    kind: str,
    vocab_size: int,
    character_coverage: float = 1.0,
    byte_fallback: bool = True,
    normalization: str = "nmt_nfkc",
    split_digits: bool = False,
    max_sentences: int = 2_000_000,
) -> Tokenizer:
    """Trains a SentencePiece model; the same arguments give the same bytes.

    kind: "bpe" | "unigram". normalization: "identity" | "nmt_nfkc"; identity also keeps runs of spaces, so decoding
    gives the text back exactly. Of more than `max_sentences`, a uniform sample fixed by their positions is used.
    Raises UserError if there is no text, or vocab_size is too large or too small for it.
    """
    from sentencepiece import SentencePieceTrainer

    sample = _sample((s for s in sentences if s.strip()), max_sentences)
    if not sample:
        raise UserError("there is no text to train a tokenizer on: every sentence is empty")
    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            model_type=kind,
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            byte_fallback=byte_fallback,
            normalization_rule_name=normalization,
            split_digits=split_digits,
            remove_extra_whitespaces=normalization != "identity",
            pad_id=PAD,
            eos_id=EOS,
            unk_id=UNK,
            bos_id=-1,
            num_threads=_NUM_THREADS,
            max_sentence_length=_MAX_SENTENCE_BYTES,
            minloglevel=2,
        )
    except RuntimeError as error:
        if high := re.search(r"too high \(\d+\).*<= (\d+)", str(error)):
            raise UserError(
                f"config.data.vocab_size = {vocab_size} is too large: {len(sample)} sentences of text give at most "
                f"{high[1]} {kind} pieces; set config.data.vocab_size to {high[1]} or less, or give more text"
            ) from None
        if low := re.search(r"required_chars. \d+ vs (\d+)", str(error)):
            raise UserError(
                f"config.data.vocab_size = {vocab_size} is too small: the characters of the text, the special pieces"
                f"{' and the 256 bytes of config.data.byte_fallback' if byte_fallback else ''} alone need {low[1]}; set "
                f"config.data.vocab_size to {low[1]} or more, or lower config.data.character_coverage"
            ) from None
        raise
    return SentencePieceTokenizer(model.getvalue())


def _sample(sentences: Iterable[str], size: int) -> list[str]:
    """Reservoir sampling (Vitter's algorithm R) whose draws are hashes of the positions; holds at most `size`."""
    kept: list[str] = []
    for i, (sentence, draw) in enumerate(zip(sentences, _draws(), strict=False)):
        if i < size:
            kept.append(sentence)
        elif (slot := draw % (i + 1)) < size:
            kept[slot] = sentence
    return kept


def _draws() -> Iterator[int]:
    start = 0
    while True:
        yield from mix(np.arange(start, start + 4096, dtype=np.uint64)).tolist()
        start += 4096
