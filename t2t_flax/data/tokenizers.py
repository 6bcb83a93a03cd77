"""Tokenizers: text to token ids and back, with SentencePiece models.

Ids 0, 1 and 2 are PAD, EOS and UNK in every tokenizer.
"""

import abc
import contextlib
import functools
import hashlib
import io
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from etils import epath

from t2t_flax.config import Data
from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.data.sources import Source
from t2t_flax.errors import UserError
from t2t_flax.files import atomic_directory, atomic_write
from t2t_flax.json_file import half_character, parse_json
from t2t_flax.registry import TOKENIZER_FILES, TOKENIZERS, load_extensions

SPECIAL = ("<pad>", "</s>", "<unk>")
# A constant, not the number of cores: it is in the model's bytes and changes unigram pieces.
_NUM_THREADS = 4
_MAX_SENTENCE_BYTES = 1 << 20
_LANGUAGE = re.compile(r"<(2|from:)([A-Za-z][\w-]*)>")


def languages_of(symbols: Iterable[str], kind: str = "2") -> set[str]:
    """Return the languages that control symbols name: {"de"} for `<2de>`, a target language.

    Args:
        kind: "2", or "from:" for source languages, `<from:de>`.
    """
    matches = filter(None, map(_LANGUAGE.fullmatch, symbols))
    return {match[2] for match in matches if match[1] == kind}


class Frame(NamedTuple):
    """Ids around the text of a pair that stand for the control symbols of its source.

    Args:
        before, after: ids before and after the source text, without the EOS of data.source_eos.
        start: id before the target text, which a search forces at no cost; PAD = none.
    """

    before: list[int]
    after: list[int]
    start: int


class Tokenizer(abc.ABC):
    """Map text to ids in [0, vocab_size) and back.

    Attributes:
        control_symbols: id of each control symbol. A text may begin with one or several, each
            followed by a space or the end of the text; anywhere else they are ordinary text.
        data: content of the tokenizer's file.
    """

    control_symbols: Mapping[str, int] = {}
    READS_ALL: ClassVar[bool] = False
    """True if `train` receives all text.

    Otherwise it receives at most `data.tokenizer_sentences` sentences.
    """

    def __init__(self, data: bytes):
        self.data = data
        self.digest = hashlib.sha256(data).hexdigest()

    @staticmethod
    def inputs(data: Data) -> dict[str, str]:
        """Return further inputs of `train`.

        They are {} if data.tokenizer_model is a finished tokenizer.
        """
        return {}

    @staticmethod
    def train(texts: Iterable[str], data: Data, control_symbols: Sequence[str] = ()) -> "Tokenizer":
        """Train a tokenizer on the texts, under the keys of `data`.

        Raises UserError if there is no text.
        """
        raise NotImplementedError

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int: ...

    @abc.abstractmethod
    def encode_text(self, text: str) -> list[int]:
        """Return the ids of a text without control symbols, without EOS."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a source text, without EOS."""
        symbols, rest = self.split(text)
        before, after, _ = self.frame(symbols)
        return [*before, *self.encode_text(rest), *after]

    def frame(self, symbols: list[int]) -> Frame:
        """Return where the model expects the control symbols of a source text: before it.

        Raises UserError if one is missing that the model needs.
        """
        return Frame(symbols, [], PAD)

    def split(self, text: str) -> tuple[list[int], str]:
        """Return (ids of the control symbols at the start of a text, rest of the text)."""
        symbols, rest = split_symbols(text, self.control_symbols)
        return [self.control_symbols[symbol] for symbol in symbols], rest

    @functools.cached_property
    def target_languages(self) -> dict[str, int]:
        """Ids of control symbols such as `<2de>` by language code.

        They name the language to write (Johnson et al. 2017, section 3). If there are any, source
        texts begin with one.
        """
        return self._languages("2")

    @functools.cached_property
    def source_languages(self) -> dict[str, int]:
        """Ids of control symbols such as `<from:de>` by language code.

        They name the language of the source text. If there are any, source texts begin with one.
        """
        return self._languages("from:")

    def _languages(self, kind: str) -> dict[str, int]:
        codes = sorted(languages_of(self.control_symbols, kind))
        return {code: self.control_symbols[f"<{kind}{code}>"] for code in codes}

    def lacks_symbol(self, text: str, languages: Mapping[str, int]) -> bool:
        """Return whether a source text needs one of these languages' symbols and has none.

        A blank text needs no symbol.
        """
        return bool(languages and text.strip()) and not set(self.split(text)[0]) & set(
            languages.values()
        )

    def lacks_language(self, text: str) -> bool:
        """Return whether a source text lacks a symbol of its source or target language."""
        sides = self.source_languages, self.target_languages
        return any(self.lacks_symbol(text, languages) for languages in sides)

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the ids; PAD, EOS and control symbols have none.

        Raises IndexError for ids outside the vocabulary.
        """

    def changes(self, text: str) -> bool:
        """Return whether decoding the text's ids gives another text, apart from spaces.

        A model can never write such a text. Unicode normalization and unknown characters are the
        causes.
        """
        return self.decode(self.encode_text(text)).split() != text.split()

    @abc.abstractmethod
    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the vocabulary entry of each id, for display."""

    def save(self, path: epath.PathLike) -> None:
        atomic_write(path, self.data)

    def __reduce__(self):
        return _loaded, (type(self), self.data)


@functools.lru_cache(4)
def _loaded(kind: Callable[[bytes], Tokenizer], data: bytes) -> Tokenizer:
    """Return the tokenizer of a pickle.

    Equal tokenizers are one object, so that cached results for it are found again.
    """
    return kind(data)


def split_symbols(text: str, symbols: Iterable[str]) -> tuple[list[str], str]:
    """Return (control symbols at the start of a text, rest of the text)."""
    found: list[str] = []
    while symbols and (first := text.partition(" "))[0] in symbols:
        found.append(first[0])
        text = first[2]
    return found, text


def sentencepiece_encode(processor: Any, text: str, **options: Any) -> list[Any]:
    """Encode a text with a `SentencePieceProcessor`.

    Raises UserError for half of a surrogate pair.
    """
    try:
        return processor.encode(text, **options)
    except RuntimeError as error:
        raise UserError(f"{text[:100]!r}: {half_character(text) or error}.") from None


class SentencePieceTokenizer(Tokenizer):
    """Tokenizer with a SentencePiece model, which every SentencePiece tool can read.

    A model that was trained with other special ids is renumbered to ours.
    """

    def __init__(self, data: bytes):
        from sentencepiece import SentencePieceProcessor

        super().__init__(data)
        if not data:  # an empty file would give a model without pieces
            raise ValueError("the file is empty")
        self._processor = model = SentencePieceProcessor(model_proto=data)
        special = [model.pad_id(), model.eos_id(), model.unk_id(), model.bos_id()]
        self._to_model = [*special[:3], *(i for i in range(len(model)) if i not in special)]
        ours = {theirs: i for i, theirs in enumerate(self._to_model)}
        self._from_model = ours if self._to_model != list(range(len(model))) else None
        self.control_symbols = {
            model.id_to_piece(i): ours[i] for i in self._to_model[3:] if model.is_control(i)
        }

    @property
    def vocab_size(self):
        return len(self._to_model)

    def encode_text(self, text):
        return self.renumbered(sentencepiece_encode(self._processor, text))

    def renumbered(self, ids: list[int]) -> list[int]:
        """Return our ids for ids of the model."""
        return ids if self._from_model is None else [self._from_model[i] for i in ids]

    def decode(self, ids):
        return self._processor.decode([self._model_id(i) for i in ids if i not in (PAD, EOS)])

    def pieces(self, ids):
        return [
            SPECIAL[i] if 0 <= i <= UNK else self._processor.id_to_piece(self._model_id(i))
            for i in ids
        ]

    def _model_id(self, i: int) -> int:
        if not 0 <= i < len(self._to_model):
            raise IndexError(f"token id {i} is outside the vocabulary of {len(self._to_model)}")
        return self._to_model[int(i)]

    @staticmethod
    def train(
        texts: Iterable[str], data: Data, control_symbols: Sequence[str] = ()
    ) -> "SentencePieceTokenizer":
        """Train a SentencePiece model under the keys of `data`.

        The keys are tokenizer ("bpe" | "unigram"), vocab_size, character_coverage, byte_fallback,
        normalization and split_digits. The same texts and keys give the same bytes. Control symbols
        at the beginning of texts are ignored. The normalization "identity" also keeps runs of
        spaces, so that decoding restores the text exactly.

        Raises UserError if there is no text, or vocab_size is too large or too small for it.
        """
        from sentencepiece import SentencePieceTrainer

        sentences = (split_symbols(text, control_symbols)[1] for text in texts)
        sample = [sentence for sentence in sentences if sentence.strip()]
        if not sample:
            raise UserError(
                "there is no text to train a tokenizer on: every sentence is empty, or dropped by"
                " filters"
            )
        model = io.BytesIO()
        symbols: dict[str, Any] = (
            {"control_symbols": list(control_symbols)} if control_symbols else {}
        )
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
            f"config.data.vocab_size = {data.vocab_size} is too large: {sentences} sentences of"
            f" text give at most {high[1]} {data.tokenizer} pieces; set config.data.vocab_size to"
            f" {high[1]} or less, or give more text"
        )
    if low := re.search(r"required_chars. \d+ vs (\d+)", message):
        fallback = " and the 256 bytes of config.data.byte_fallback" if data.byte_fallback else ""
        return UserError(
            f"config.data.vocab_size = {data.vocab_size} is too small: the characters of the text,"
            f" the special pieces{fallback} alone need {low[1]}; set config.data.vocab_size to"
            f" {low[1]} or more, or lower config.data.character_coverage"
        )
    return None


def load_tokenizer(path: epath.PathLike) -> Tokenizer:
    """Return the tokenizer in a file.

    Raises UserError if there is no such file, or it is not a tokenizer.
    """
    path = epath.Path(path)
    if not path.exists():
        raise UserError(f"there is no tokenizer at {path}")
    load_extensions()
    data = path.read_bytes()
    try:
        kind = parse_json(data)["kind"]
    except (ValueError, TypeError, KeyError):
        kind = ""
    try:
        return (
            TOKENIZER_FILES.load(kind)(data)
            if kind in TOKENIZER_FILES
            else SentencePieceTokenizer(data)
        )
    except UserError:
        raise
    except Exception as error:  # the library raises any error for another or a damaged file
        raise UserError(
            f"{path} is not a tokenizer; expected a SentencePiece model, or a vocabulary that"
            f" t2t_flax wrote ({error})."
        ) from error


class TokenizerPair:
    """Tokenizers of both sides. With a joint vocabulary they are the same object."""

    def __init__(self, source: Tokenizer, target: Tokenizer):
        self.source, self.target = source, target
        self.digest = hashlib.sha256(f"{source.digest}\n{target.digest}".encode()).hexdigest()

    @property
    def joint(self) -> bool:
        return self.source is self.target

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """Vocabulary sizes (source, target)."""
        return self.source.vocab_size, self.target.vocab_size

    def save(self, folder: epath.PathLike) -> None:
        """Write tokenizer.model if joint, else source.model and target.model.

        A new folder appears complete. In an object store it is complete (`is_complete`) once its
        last file is there.
        """
        folder = epath.Path(folder)
        files = {"tokenizer.model": self.source}
        if not self.joint:
            files = {"source.model": self.source, "target.model": self.target}
        with contextlib.ExitStack() as stack:
            target = folder if folder.exists() else stack.enter_context(atomic_directory(folder))
            for name, tokenizer in files.items():
                tokenizer.save(target / name)
            for name in {"tokenizer.model", "source.model", "target.model"} - files.keys():
                (target / name).unlink(missing_ok=True)

    @staticmethod
    def is_complete(folder: epath.PathLike) -> bool:
        """Return whether the folder holds every file that `save` writes."""
        folder = epath.Path(folder)
        joint, *sides = (
            folder / name for name in ("tokenizer.model", "source.model", "target.model")
        )
        return joint.exists() or all(side.exists() for side in sides)

    @staticmethod
    def load(path: epath.PathLike) -> "TokenizerPair":
        """Read the files that `save` wrote, or one model file as the joint tokenizer.

        Raises UserError if there is none.
        """
        path = epath.Path(path)
        joint = path / "tokenizer.model" if path.is_dir() else path
        if joint.exists():
            tokenizer = load_tokenizer(joint)
            return TokenizerPair(tokenizer, tokenizer)
        sides = path / "source.model", path / "target.model"
        if not all(side.exists() for side in sides):
            raise UserError(
                f"no tokenizer in {path}: expected tokenizer.model, or source.model and"
                " target.model"
            )
        return TokenizerPair(*map(load_tokenizer, sides))


def train_tokenizers(
    source: Source, data: Data, control_symbols: Sequence[str] = ()
) -> TokenizerPair:
    """Train one tokenizer on both sides (section 5.1), or one for each side.

    Without `data.joint_vocabulary` there is one for each side, and the source's has the control
    symbols. Raises UserError as `Tokenizer.train` does.
    """
    kind, joint = TOKENIZERS.load(data.tokenizer), data.joint_vocabulary
    sample = (
        None
        if kind.READS_ALL
        else source.sample(max(1, data.tokenizer_sentences // (2 if joint else 1)))
    )
    if joint:
        texts = itertools.chain.from_iterable(source.pairs() if sample is None else sample)
        both = kind.train(texts, data, control_symbols)
        return TokenizerPair(both, both)
    sides = []
    for i, side in enumerate(("source", "target")):
        pairs = source.pairs() if sample is None else sample
        try:
            sides.append(
                kind.train((pair[i] for pair in pairs), data, () if i else control_symbols)
            )
        except UserError as error:
            raise UserError(f"{side} side of {source.spec}: {error}") from None
    return TokenizerPair(*sides)
