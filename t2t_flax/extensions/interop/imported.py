"""A model read from another program's files, and what the readers share."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from t2t_flax.config import Config, Data, Model, resolve
from t2t_flax.config.data_keys import UNK
from t2t_flax.config.keys import keys_of
from t2t_flax.data.starts import Direction, Starts, codes_of, start_name
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from t2t_flax.errors import UserError
from t2t_flax.extensions.interop.marian_tokenizer import MarianTokenizer

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
    and the target language. Raises UserError if one is "".
    """
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


def with_starts(
    tokenizers: TokenizerPair, pair: tuple[str, str], file: Path, directions: list[Any] | None
) -> tuple[TokenizerPair, tuple[str, str]]:
    """The tokenizers with the target languages of the model, and the codes of source and target, "" where they are unknown.

    The tokens of target languages are those in the source vocabulary, `>>de<<` as Marian has them or `<2de>`. pair: the codes
    that the files say. directions: the value of "directions" in `file`, which `export` writes; without it the model translates
    from the one source language into all. Raises UserError for directions that are none, or whose tokens are missing.
    """
    starts = tokenizers.starts
    if not starts.ids:
        starts = _starts_in_vocabulary(tokenizers, pair[0], file, directions)
    if starts.ids:
        both = codes_of(starts.directions)
        pair = (pair[0] or both[0], pair[1] or both[1])
    return tokenizers.with_starts(starts), pair


def _starts_in_vocabulary(tokenizers: TokenizerPair, source: str, file: Path, directions: list[Any] | None) -> Starts:
    tokens = tokenizers.source.pieces(range(tokenizers.source.vocab_size))
    ids = {code: i for i, token in enumerate(tokens) if i > UNK and (code := start_name(token))}
    if not directions:
        # A text for a model with one such token may begin with it or not: nothing says that it must.
        ids = ids if len(ids) > 1 else {}
        return Starts(tuple(Direction(source, code) for code in sorted(ids)), ids)
    if not all(
        isinstance(d, list) and [type(code) for code in d] == [str, str] and d[0] and d[1] in ids for d in directions
    ):
        raise UserError(
            f"{file}: directions = {json.dumps(directions)[:100]}; expected pairs of language codes, the second with a token in "
            "the vocabulary."
        )
    return Starts(tuple(Direction(*d) for d in directions), {target: ids[target] for _, target in directions})


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
        same = [start_name(t) or t for t in pieces[UNK:]] == [start_name(t) or t for t in tokens[UNK:]]
        plain.append(tokenizer if same else None)
    if all(plain):
        return TokenizerPair(plain[0], plain[0] if models[0] == models[1] else plain[1])
    sides = [MarianTokenizer.of(model, tokens[3:]) for model, tokens in zip(models, (source, target), strict=True)]
    return TokenizerPair(sides[0], sides[0] if sides[0].digest == sides[1].digest else sides[1])
