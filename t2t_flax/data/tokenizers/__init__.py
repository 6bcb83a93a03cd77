"""Tokenizers: the kinds of tokenizer files, and the pair of tokenizers of a run."""

import contextlib
import hashlib
import itertools
from collections.abc import Sequence

from etils import epath

from t2t_flax.config import Data
from t2t_flax.data.sources.base import Source
from t2t_flax.data.starts import Starts, read_starts, start_name, write_starts
from t2t_flax.data.tokenizers.base import Tokenizer
from t2t_flax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from t2t_flax.errors import UserError
from t2t_flax.filesystem import atomic_directory
from t2t_flax.json_file import parse_json
from t2t_flax.registry import TOKENIZER_FILES, TOKENIZERS, absent_extension, load_extensions


def load_tokenizer(path: epath.PathLike) -> Tokenizer:
    """The tokenizer in a file. Raises UserError if there is no such file, or it is not a tokenizer."""
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
        return TOKENIZER_FILES.load(kind)(data) if kind in TOKENIZER_FILES else SentencePieceTokenizer(data)
    except UserError:
        raise
    except Exception as error:  # any error that the library raises for another or a damaged file
        absent = absent_extension("tokenizer files", str(kind))
        raise UserError(
            f"{path} is not a tokenizer; expected a SentencePiece model, or a vocabulary that t2t_flax wrote ({error}).{absent}"
        ) from error


class TokenizerPair:
    """The tokenizers of both sides; with a joint vocabulary they are the same object. starts: tokens before source sentences
    of the model that they belong to, which are stored with them.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer, starts: Starts | None = None):
        self.source, self.target, self.starts = source, target, starts or Starts()
        self.digest = hashlib.sha256(f"{source.digest}\n{target.digest}".encode()).hexdigest()

    @property
    def joint(self) -> bool:
        return self.source is self.target

    def start_ids(self, symbols: Sequence[str]) -> list[int]:
        """Ids of control symbols, which are put before those of a source sentence. Raises UserError for one that the source
        tokenizer does not have.
        """
        ids = [self.starts.ids.get(start_name(symbol) or "") or self.source.control_id(symbol) for symbol in symbols]
        for symbol in [symbol for symbol, i in zip(symbols, ids, strict=True) if i is None]:
            raise UserError(
                f"the tokenizer has no control symbol {symbol}, which comes before source sentences. "
                "A run trains a tokenizer that has it with config.data.tokenizer = bpe or unigram; one in "
                "config.data.tokenizer_model must be a SentencePiece model trained with "
                f"--control_symbols={','.join(symbols)}, and that of another run must have been made for them."
            )
        return [i for i in ids if i is not None]

    def after_start(self, start: Sequence[int], ids: list[int]) -> list[int]:
        """Ids of a source text after those of `start`. A text that itself begins with one of `starts`, as one for Marian's
        multilingual models may, keeps that one and gets no other.
        """
        own = ids and ids[0] in self.starts.ids.values()
        return ids if own or not ids else [*start, *ids]

    def with_starts(self, starts: Starts) -> "TokenizerPair":
        """The same tokenizers for a model with these tokens before source sentences."""
        return TokenizerPair(self.source, self.target, starts)

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """(source, target)."""
        return self.source.vocab_size, self.target.vocab_size

    def save(self, folder: epath.PathLike) -> None:
        """Writes tokenizer.model if joint, else source.model and target.model, and starts.json if there are any. A new folder
        appears complete; in an object store it is complete (`is_complete`) once its last file is there.
        """
        folder = epath.Path(folder)
        files = {"tokenizer.model": self.source}
        if not self.joint:
            files = {"source.model": self.source, "target.model": self.target}
        with contextlib.ExitStack() as stack:
            target = folder if folder.exists() else stack.enter_context(atomic_directory(folder))
            write_starts(target, self.starts)
            for name, tokenizer in files.items():
                tokenizer.save(target / name)
            for name in {"tokenizer.model", "source.model", "target.model"} - files.keys():
                (target / name).unlink(missing_ok=True)

    @staticmethod
    def is_complete(folder: epath.PathLike) -> bool:
        """Whether the folder holds every file that `save` writes."""
        folder = epath.Path(folder)
        joint, *sides = (folder / name for name in ("tokenizer.model", "source.model", "target.model"))
        return joint.exists() or all(side.exists() for side in sides)

    @staticmethod
    def load(path: epath.PathLike) -> "TokenizerPair":
        """Reads what `save` wrote, or one model file as the joint tokenizer. Raises UserError if there is none."""
        path = epath.Path(path)
        joint = path / "tokenizer.model" if path.is_dir() else path
        if joint.exists():
            tokenizer = load_tokenizer(joint)
            return TokenizerPair(tokenizer, tokenizer, read_starts(joint.parent, tokenizer.vocab_size))
        sides = path / "source.model", path / "target.model"
        if not all(side.exists() for side in sides):
            raise UserError(f"no tokenizer in {path}: expected tokenizer.model, or source.model and target.model")
        source, target = map(load_tokenizer, sides)
        return TokenizerPair(source, target, read_starts(path, source.vocab_size))


def train_tokenizers(
    source: Source, data: Data, control_symbols: Sequence[str] = (), words: Sequence[str] = ()
) -> TokenizerPair:
    """Trains one tokenizer on the sentences of both sides (section 5.1) or, without `data.joint_vocabulary`, one for each side,
    of which that of the source has the control symbols. Raises UserError as `sentencepiece.train`.
    """
    train = TOKENIZERS.load(data.tokenizer).train
    if data.joint_vocabulary:
        joint = train(itertools.chain.from_iterable(source.pairs()), data, control_symbols, words)
        return TokenizerPair(joint, joint)
    sides = []
    for i, side in enumerate(("source", "target")):
        try:
            sides.append(train((pair[i] for pair in source.pairs()), data, () if i else control_symbols, words))
        except UserError as error:
            raise UserError(f"{side} side of {source.spec}: {error}") from None
    return TokenizerPair(*sides)
