"""SentencePiece tokenizers: plain SentencePiece models, readable by every tool that reads those."""

import io
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from t2t_flax.config import Data
from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.data.hashing import mix
from t2t_flax.data.starts import start_name, start_symbol
from t2t_flax.data.tokenizers.base import Tokenizer
from t2t_flax.errors import UserError

# Part of the model's bytes, and it changes unigram pieces: so a constant, not the number of cores.
_NUM_THREADS = 4
_MAX_SENTENCE_BYTES = 1 << 20


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model. One that was trained with other special ids is renumbered to ours."""

    def __init__(self, data: bytes):
        from sentencepiece import SentencePieceProcessor

        super().__init__(data)
        if not data:  # which would be a model without pieces
            raise ValueError("the file is empty")
        self._processor = SentencePieceProcessor(model_proto=data)
        special, symbols = {self._processor.unk_id()}, {}
        for i in filter(self._processor.is_control, range(len(self._processor))):
            if i in (self._processor.pad_id(), self._processor.bos_id(), self._processor.eos_id()):
                special.add(i)
            else:
                symbols[self._processor.id_to_piece(i)] = i
        if not any(
            name == start_symbol(start_name(name) or "") for name in symbols
        ):  # of other tools, with a meaning that ours do not have
            special, symbols = special | set(symbols.values()), {}
        ordinary = [i for i in range(len(self._processor)) if i not in special]
        self._to_model = [self._processor.pad_id(), self._processor.eos_id(), self._processor.unk_id(), *ordinary]
        renumbered = self._to_model != list(range(len(self._processor)))
        self._from_model = {theirs: ours for ours, theirs in enumerate(self._to_model)} if renumbered else None
        self._symbols = {name: self._from_model[i] if self._from_model else i for name, i in symbols.items()}

    @property
    def vocab_size(self):
        return len(self._to_model)

    def encode(self, text):
        return self.renumbered(self._processor.encode(text))

    def renumbered(self, ids: list[int]) -> list[int]:
        """Our ids of those of the model."""
        return ids if self._from_model is None else [self._from_model[i] for i in ids]

    def control_id(self, symbol):
        return self._symbols.get(symbol)

    def decode(self, ids):
        return self._processor.decode([self._model_id(i) for i in ids if i not in (PAD, EOS)])

    def pieces(self, ids):
        names = {PAD: "<pad>", EOS: "</s>", UNK: "<unk>"}
        return [names.get(int(i)) or self._processor.id_to_piece(self._model_id(i)) for i in ids]

    def _model_id(self, i: int) -> int:
        if not 0 <= i < len(self._to_model):
            raise IndexError(f"token id {i} is outside the vocabulary of {len(self._to_model)}")
        return self._to_model[int(i)]


def inputs(data: Data) -> dict[str, str]:
    """What `train` reads beside the text. Without anything, data.tokenizer_model is an existing tokenizer."""
    return {}


def train(
    sentences: Iterable[str], data: Data, control_symbols: Sequence[str] = (), words: Sequence[str] = ()
) -> SentencePieceTokenizer:
    """Trains a SentencePiece model under the keys of `data`: tokenizer ("bpe" | "unigram"), vocab_size,
    character_coverage, byte_fallback, normalization, split_digits and tokenizer_sentences. The same sentences and keys
    give the same bytes.

    control_symbols: pieces to which no text is encoded. words: pieces that are found in the text, and never divided.
    normalization "identity" also keeps runs of spaces, so that decoding restores the text exactly. Of more than
    `tokenizer_sentences` sentences, a uniform sample fixed by their positions is used. Raises UserError if there is no
    text, or vocab_size is too large or too small for it.
    """
    from sentencepiece import SentencePieceTrainer

    sample = _sample((s for s in sentences if s.strip()), data.tokenizer_sentences)
    if not sample:
        raise UserError("there is no text to train a tokenizer on: every sentence is empty")
    model = io.BytesIO()
    symbols: dict[str, Any] = {"control_symbols": list(control_symbols)} if control_symbols else {}
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            model_type=data.tokenizer,
            vocab_size=data.vocab_size,
            character_coverage=data.character_coverage,
            byte_fallback=data.byte_fallback,
            normalization_rule_name=data.normalization,
            split_digits=data.split_digits,
            user_defined_symbols=list(words),
            remove_extra_whitespaces=data.normalization != "identity",
            pad_id=PAD,
            eos_id=EOS,
            unk_id=UNK,
            bos_id=-1,
            num_threads=_NUM_THREADS,
            max_sentence_length=_MAX_SENTENCE_BYTES,
            minloglevel=2,
            **symbols,
        )
    except RuntimeError as error:
        raise _vocab_size_error(str(error), data, len(sample)) or error from None
    return SentencePieceTokenizer(model.getvalue())


def _vocab_size_error(message: str, data: Data, sentences: int) -> UserError | None:
    if high := re.search(r"too high \(\d+\).*<= (\d+)", message):
        return UserError(
            f"config.data.vocab_size = {data.vocab_size} is too large: {sentences} sentences of text give at most "
            f"{high[1]} {data.tokenizer} pieces; set config.data.vocab_size to {high[1]} or less, or give more text"
        )
    if low := re.search(r"required_chars. \d+ vs (\d+)", message):
        fallback = " and the 256 bytes of config.data.byte_fallback" if data.byte_fallback else ""
        return UserError(
            f"config.data.vocab_size = {data.vocab_size} is too small: the characters of the text, the special pieces"
            f"{fallback} alone need {low[1]}; set config.data.vocab_size to {low[1]} or more, or lower "
            "config.data.character_coverage"
        )
    return None


def _sample(sentences: Iterable[str], size: int) -> list[str]:
    """Reservoir sampling (Vitter's algorithm R) whose draws are hashes of the positions; holds at most `size`."""
    sample: list[str] = []
    for i, (sentence, draw) in enumerate(zip(sentences, _draws(), strict=False)):
        if i < size:
            sample.append(sentence)
        elif (slot := draw % (i + 1)) < size:
            sample[slot] = sentence
    return sample


def _draws() -> Iterator[int]:
    for start in itertools.count(0, 4096):
        yield from mix(np.arange(start, start + 4096, dtype=np.uint64)).tolist()
