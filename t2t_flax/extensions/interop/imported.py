"""A model read from another program's files, and what the readers share."""

import dataclasses
from pathlib import Path
from typing import Any

from t2t_flax.config import Config, Data, Model, resolve
from t2t_flax.config.data_keys import UNK
from t2t_flax.config.keys import keys_of
from t2t_flax.data.hooks import SEVERAL
from t2t_flax.data.tokenizers import SentencePieceTokenizer, TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.extensions.interop.marian_tokenizer import MarianTokenizer, language_of

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
    pair: tuple[str, str],
    where: Path,
    *,
    source_eos: bool = True,
    decode: dict[str, Any] | None = None,
) -> Config:
    """The config of a run of this model; keys that its files do not determine have their defaults. pair: codes of the source
    and the target language, "" where the files do not say them. Raises UserError for a source without, and for a target
    without where the tokenizer has no symbols of target languages.
    """
    if languages := list(tokenizers.source.target_languages):
        pair = pair[0], pair[1] or (languages[0] if len(languages) == 1 else SEVERAL)
    for side, language in zip(("source", "target"), pair, strict=True):
        if not language:
            raise UserError(f"{where} does not say the {side} language of the model: give --{side}-language=CODE.")
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
    return resolve({"model": keys, "data": data, "decode": decode or {}})


def sentencepiece_pair(folder: Path, source: list[str], target: list[str]) -> TokenizerPair | None:
    """The tokenizers of source.spm and target.spm in a folder, whose pieces have the ids of these vocabularies; None if there
    are no such files. Raises UserError for damaged ones.

    A model that numbers its own pieces like the vocabulary is taken as it is; its tokens of target languages may be written
    in another way there.
    """
    paths = [folder / name for name in ("source.spm", "target.spm")]
    if not all(path.is_file() for path in paths):
        return None
    models = [path.read_bytes() for path in paths]
    plain = []
    for path, model, tokens in zip(paths, models, (source, target), strict=True):
        try:
            tokenizer = SentencePieceTokenizer(model)
        except (RuntimeError, ValueError):
            raise UserError(f"{path} is not a SentencePiece model.") from None
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        same = [language_of(t) or t for t in pieces[UNK:]] == [language_of(t) or t for t in tokens[UNK:]]
        plain.append(tokenizer if same else None)
    if all(plain):
        return TokenizerPair(plain[0], plain[0] if models[0] == models[1] else plain[1])
    tags = [token for token in source[3:] if token.startswith(">>") and language_of(token)]
    # A text for a model with one tag may begin with it or not: nothing says that it must.
    symbols = tags if len(tags) > 1 else []
    sides = [
        MarianTokenizer.of(model, tokens[3:], symbols if tokens == source else ())
        for model, tokens in zip(models, (source, target), strict=True)
    ]
    return TokenizerPair(sides[0], sides[0] if sides[0].digest == sides[1].digest else sides[1])
