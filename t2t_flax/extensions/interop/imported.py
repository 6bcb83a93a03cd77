"""A model read from another program's files, and what the readers share."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from t2t_flax.config import Config, Data, Model, resolve
from t2t_flax.config.special_tokens import UNK
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.data.tokenizers.marian import MarianTokenizer
from t2t_flax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from t2t_flax.errors import UserError

IMPROBABLE = -100.0
"""Bias of a token that the other program never predicts: without probability, but finite in a loss over all classes."""


@dataclasses.dataclass(frozen=True)
class ImportedModel:
    """kind: the program it comes from. params: a tree of float32 arrays. notes: what was not taken over. step: the updates
    of its training where they are known.
    """

    kind: str
    config: Config
    params: dict[str, Any]
    tokenizers: TokenizerPair
    notes: tuple[str, ...] = ()
    step: int = 0


def import_config(
    model: Model,
    tokenizers: TokenizerPair,
    languages: tuple[str, str],
    where: Path,
    *,
    source_eos: bool = True,
    decode: dict[str, Any] | None = None,
) -> Config:
    """The config of a run of this model; keys that its files do not determine have their defaults. Raises UserError if a
    language is "".
    """
    for side, language in zip(("source", "target"), languages, strict=True):
        if not language:
            raise UserError(f"{where} does not say the {side} language of the model: give --{side}-language=CODE.")
    pieces = [t.pieces(range(t.vocab_size)) for t in (tokenizers.source, tokenizers.target)]
    data = {
        "source_language": languages[0],
        "target_language": languages[1],
        "vocab_size": max(tokenizers.vocab_sizes),
        "joint_vocabulary": pieces[0] == pieces[1],
        "source_eos": source_eos,
        "max_length": min(Data.max_length, model.max_positions),
    }
    return resolve({"model": dataclasses.asdict(model), "data": data, "decode": decode or {}})


def sentencepiece_pair(folder: Path, source: list[str], target: list[str]) -> TokenizerPair | None:
    """The tokenizers of source.spm and target.spm in a folder, whose pieces have the ids of these vocabularies; None if there
    are no such files. Raises UserError for damaged ones.

    A model that numbers its own pieces like the vocabulary is taken as it is.
    """
    paths = [folder / name for name in ("source.spm", "target.spm")]
    if not all(path.is_file() for path in paths):
        return None
    models = [path.read_bytes() for path in paths]
    plain = []
    for path, model, tokens in zip(paths, models, (source, target), strict=True):
        if not SentencePieceTokenizer.recognizes(model):
            raise UserError(f"{path} is not a SentencePiece model.")
        tokenizer = SentencePieceTokenizer(model)
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        plain.append(tokenizer if pieces[UNK:] == tokens[UNK:] else None)
    if all(plain):
        return TokenizerPair(plain[0], plain[0] if models[0] == models[1] else plain[1])
    sides = [MarianTokenizer.of(model, tokens[3:]) for model, tokens in zip(models, (source, target), strict=True)]
    return TokenizerPair(sides[0], sides[0] if sides[0].digest == sides[1].digest else sides[1])


def json_file(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object. Raises UserError for any other file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no {path}.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object.")
    return content
