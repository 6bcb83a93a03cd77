"""A model read from another program's files, and tools that the readers share.

The tools track arrays by name, each used once, and turn a vocabulary into our numbering.
"""

import dataclasses
import gc
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t2t_flax.config import Config, Data, Model, resolve
from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.config.keys import keys_of
from t2t_flax.data.tokenizers import SentencePieceTokenizer, TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.extensions.interop.marian_tokenizer import MarianTokenizer, language_of
from t2t_flax.extensions.interop.safetensors_file import check_finite
from t2t_flax.extensions.shared.directions import SEVERAL
from t2t_flax.language import Language

_LARGE = 2**26  # bytes
IMPROBABLE = -100.0
"""Bias of a token that the other program never predicts.

It gives no probability, but is finite in a loss over all classes.
"""


@dataclasses.dataclass(frozen=True)
class ImportedModel:
    """Model from another program.

    Args:
        kind: program it comes from.
        params: a tree of float32 arrays of NumPy or JAX.
        notes: parts that were not imported.
        step: updates of its training, if known.
    """

    kind: str
    config: Config
    params: dict[str, Any]
    tokenizers: TokenizerPair
    notes: tuple[str, ...] = ()
    step: int = 0


def move_to_jax(tree: dict[str, Any]) -> None:
    """Replace the NumPy arrays of a tree of dicts by JAX arrays, one after the other.

    Memory holds each array once, where one call for the tree would hold all twice.
    """
    for name in tree:
        if isinstance(tree[name], dict):
            move_to_jax(tree[name])
            continue
        tree[name] = jax.block_until_ready(jax.device_put(tree[name]))
        if tree[name].nbytes > _LARGE:
            gc.collect()  # until then JAX holds the NumPy array, too


def import_config(
    model: Model,
    tokenizers: TokenizerPair,
    pair: tuple[str, str],
    where: Path,
    *,
    source_eos: bool = True,
    decode: dict[str, Any] | None = None,
) -> Config:
    """Return the config of a run of this model.

    Keys that its files do not determine have their defaults. Raises UserError if the source has no
    code, and if the target has none and the tokenizer has no symbols of target languages.

    Args:
        pair: codes of the source and the target language, "" if the files do not say them.
    """
    if languages := list(tokenizers.source.target_languages):
        pair = pair[0], pair[1] or (languages[0] if len(languages) == 1 else SEVERAL)
    for side, language in zip(("source", "target"), pair, strict=True):
        if not language:
            raise UserError(
                f"{where} does not say the {side} language of the model: give"
                f" --{side}-language=CODE."
            )
    pieces = [t.pieces(range(t.vocab_size)) for t in (tokenizers.source, tokenizers.target)]
    data = {
        "source_language": pair[0],
        "target_language": pair[1],
        "vocab_size": max(tokenizers.vocab_sizes),
        "joint_vocabulary": pieces[0] == pieces[1],
        "source_eos": source_eos,
        "max_length": min(Data.max_length, model.max_positions),
    }
    keys = {item.name: getattr(model, item.name) for item in keys_of(model)}
    groups: dict[str, Any] = {"model": keys, "data": data, "decode": decode or {}}
    if tokenizers.source.source_languages:
        groups["languages"] = {"source_symbol": True}  # of texts for fine-tuning
    return resolve(groups)


def stated_language(name: str | None) -> str:
    """Return the language code that a model's files state.

    It is `SEVERAL` for the name of a group, such as ROMANCE.
    """
    return SEVERAL if name and Language.known(name).base == "und" else name or ""


def sentencepiece_pair(folder: Path, source: list[str], target: list[str]) -> TokenizerPair | None:
    """Return the tokenizers of source.spm and target.spm in a folder, or None.

    None if there are no such files. Their pieces have the ids of these vocabularies. Raises
    UserError for damaged files. A model that numbers its pieces like the vocabulary is used
    unchanged; its tokens of target languages may be written in another way there.
    """
    paths = [folder / name for name in ("source.spm", "target.spm")]
    if not all(path.is_file() for path in paths):
        return None
    models = [path.read_bytes() for path in paths]
    plain: list[SentencePieceTokenizer] = []
    for path, model, tokens in zip(paths, models, (source, target), strict=True):
        try:
            tokenizer = SentencePieceTokenizer(model)
        except (RuntimeError, ValueError):
            raise UserError(f"{path} is not a SentencePiece model.") from None
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        same = [language_of(t) or t for t in pieces[UNK:]] == [
            language_of(t) or t for t in tokens[UNK:]
        ]
        if same:
            plain.append(tokenizer)
    if len(plain) == len(models):
        return TokenizerPair(plain[0], plain[0] if models[0] == models[1] else plain[1])
    tags = [token for token in source[3:] if token.startswith(">>") and language_of(token)]
    # A text for a model with one tag may begin with it or not: nothing says that it must.
    symbols = tags if len(tags) > 1 else []
    sides = [
        MarianTokenizer.of(model, tokens[3:], symbols if tokens == source else ())
        for model, tokens in zip(models, (source, target), strict=True)
    ]
    return TokenizerPair(sides[0], sides[0] if sides[0].digest == sides[1].digest else sides[1])


class NamedArrays:
    """Arrays by name that track their use, so that unexpected ones can be reported.

    Args:
        expected: kind of model, for messages.
    """

    def __init__(self, path: Path, arrays: Mapping[str, np.ndarray], expected: str):
        self.path, self._arrays, self._expected = path, arrays, expected
        self._used, self._ignored = set[str](), set[str]()

    def __contains__(self, name: str) -> bool:
        return name in self._arrays and name not in self._ignored

    def ignore(self, name: str) -> None:
        """Pass over an array that has no effect; it is no longer among these arrays."""
        self._ignored.add(name)

    def count(self, prefix: str, separator: str = "/") -> int:
        """Return the number of consecutive PREFIX0, PREFIX1, ...

        It is at least 1, so that `take` reports a missing layer 0.
        """
        has = lambda n: any(name.startswith(f"{prefix}{n}{separator}") for name in self._arrays)  # noqa: E731
        return next(n for n in itertools.count(1) if not has(n))

    def take(self, name: str, *shape: int) -> np.ndarray:
        """Return the float32 array with this name and shape.

        A 0 in the shape accepts any size above 0. Raises UserError.
        """
        if name not in self._arrays:
            raise UserError(f"{self.path} has no array {name!r}; expected {self._expected}.")
        self._used.add(name)
        array = self._arrays[name]
        fits = array.ndim == len(shape) and all(
            size == expected if expected else size > 0
            for size, expected in zip(array.shape, shape, strict=True)
        )
        if not fits:
            expected_shape = ", ".join(str(size) if size else "any" for size in shape)
            raise UserError(
                f"{self.path}: {name!r} has shape {array.shape}, expected ({expected_shape})."
            )
        if array.dtype.kind in "iu":
            raise UserError(
                f"{self.path}: {name!r} is {array.dtype}; expected floating-point, not quantized,"
                " weights."
            )
        try:
            taken = array.astype(np.float32, copy=False)
        except (ValueError, TypeError):
            raise UserError(
                f"{self.path}: {name!r} is {array.dtype}; expected floating-point weights."
            ) from None
        check_finite({name: taken}, self.path)
        return taken

    def scalar(self, name: str, default: float) -> float:
        """Return the single number of this name; `default` if it is missing.

        Raises UserError for anything else.
        """
        if name not in self._arrays:
            return default
        self._used.add(name)
        array = self._arrays[name]
        try:
            value = float(array.reshape(-1)[0])
        except (ValueError, TypeError, IndexError):
            value = math.nan
        if not math.isfinite(value):
            raise UserError(
                f"{self.path}: {name!r} is {array.dtype} of shape {array.shape}; expected a finite"
                " number."
            )
        return value

    def is_float(self, name: str) -> bool:
        """Return True if an array has this name and a floating-point type."""
        return name in self._arrays and self._arrays[name].dtype.kind not in "iub"

    def refuse_unused(self) -> None:
        """Raise UserError, naming unused arrays: the model has a part that ours lacks."""
        unused = sorted(set(self._arrays) - self._used - self._ignored)
        if unused:
            shown = ", ".join(unused[:5]) + (", ..." if len(unused) > 5 else "")
            plural = "s" if len(unused) > 1 else ""
            raise UserError(f"{self.path} has {len(unused)} unexpected array{plural}: {shown}.")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Vocabulary in our numbering.

    Args:
        tokens: token of each of our ids.
        rows: row of each id in the file's tables; -1 if it has none.
        of_file: number of rows in the file's tables; 0 = the ids have them all.
    """

    tokens: list[str]
    rows: np.ndarray
    of_file: int = 0

    @property
    def count(self) -> int:
        """Number of rows of the file's tables."""
        return self.of_file or int(np.sum(self.rows >= 0))

    def take(self, table: np.ndarray, multiple: int = 1) -> np.ndarray:
        """Return the rows of `table` in the order of our ids.

        Ids that the file lacks get zeros.

        Args:
            multiple: rows of zeros make the number of rows a multiple of this.
        """
        count = -(-len(self.rows) // multiple) * multiple
        taken = np.zeros((count, *table.shape[1:]), np.float32)
        rows = taken[: len(self.rows)]
        np.take(table, np.maximum(self.rows, 0), 0, out=rows, mode="clip")
        rows[self.rows < 0] = 0
        return taken

    def take_bias(self, bias: np.ndarray | None) -> np.ndarray | None:
        """Return `bias` [rows] in the order of our ids.

        Ids that the file lacks, and so never predicts, get IMPROBABLE. None if there is neither a
        bias nor such an id.
        """
        if bias is None and np.all(self.rows >= 0):
            return None
        taken = np.zeros(len(self.rows), np.float32) if bias is None else self.take(bias)
        taken[self.rows < 0] = IMPROBABLE
        return taken

    def without(self, token: str) -> "Vocabulary":
        i = self.tokens.index(token)
        return Vocabulary(self.tokens[:i] + self.tokens[i + 1 :], np.delete(self.rows, i))


def renumbered(tokens: Sequence[str], special: Mapping[int, str], path: Path) -> Vocabulary:
    """Return the vocabulary whose first ids are PAD, EOS and UNK.

    `special` gives their names in the file. Missing ones get no row. Raises UserError for a token
    that occurs twice.

    Args:
        path: file, for messages.
    """
    if len(set(tokens)) != len(tokens):
        duplicate = next(token for token in tokens if tokens.count(token) > 1)
        raise UserError(f"{path} has the token {duplicate!r} more than once.")
    names = [special[PAD], special[EOS], special[UNK]]
    first = [tokens.index(name) if name in tokens else -1 for name in names]
    rest = [row for row in range(len(tokens)) if row not in first]
    return Vocabulary(names + [tokens[row] for row in rest], np.array(first + rest))
