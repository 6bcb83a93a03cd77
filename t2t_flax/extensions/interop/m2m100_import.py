"""Import of models of Hugging Face's M2M-100 architecture: M2M-100 and NLLB.

It reads config.json, the weights, and a SentencePiece model or tokenizer.json. Norms come before
the sub-layers, and positions are fairseq's sinusoids.
"""

import difflib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from t2t_flax.config import Model
from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError, first_line
from t2t_flax.extensions.interop import marian_import
from t2t_flax.extensions.interop.imported import (
    ImportedModel,
    NamedArrays,
    Vocabulary,
    import_config,
    move_to_jax,
    renumbered,
)
from t2t_flax.extensions.interop.json_settings import read_json
from t2t_flax.extensions.interop.layer_names import MARIAN, Positions, recognize_positions
from t2t_flax.extensions.interop.m2m100_tokenizer import M2M100Tokenizer
from t2t_flax.extensions.shared.directions import SEVERAL

NAME = "Hugging Face M2M-100"
SENTENCEPIECE, FAST = "sentencepiece.bpe.model", "tokenizer.json"
_EXPECTED = "M2M-100's encoder and decoder"
_FIRST = ("<s>", "<pad>", "</s>", "<unk>")
"""fairseq's tokens 0 to 3."""
_CODE = re.compile(r"__([a-z]{2,3})__|([a-z]{3}_[A-Z][a-z]{3})")
LISTS = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl"
        " gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml"
        " mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl"
        " tn tr uk ur uz vi wo xh yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}
"""Languages by language_codes of tokenizer_config.json, in the order of their ids."""
_DEFAULTS = {
    "vocab_size": 128112, "max_position_embeddings": 1024, "d_model": 1024,
    "encoder_layers": 12, "encoder_ffn_dim": 4096, "encoder_attention_heads": 16,
    "decoder_layers": 12, "decoder_ffn_dim": 4096, "decoder_attention_heads": 16,
    "activation_function": "relu", "scale_embedding": True, "dropout": 0.1,
    "attention_dropout": 0.1, "activation_dropout": 0.0, "pad_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 2,
}  # fmt: skip
"""Values of the class in transformers; config.json may leave them out."""
_ADDED = "added_tokens_decoder"
"""Key of tokenizer_config.json: languages and others by their ids."""
_TOKENIZER_TYPES = {
    "src_lang": str, "legacy_behaviour": bool, "language_codes": str, _ADDED: dict,
}  # fmt: skip
_SPECIAL = {
    "special": True, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False,
}  # fmt: skip


def read(
    weights: Path,
    *,
    num_heads: int,
    languages: tuple[str, str],
    new_languages: Mapping[str, str] = MappingProxyType({}),
) -> ImportedModel:
    """Read the model whose weights are in a file, or in the shards that an index file lists.

    Raises UserError as `marian_import.read`, and for a new language that the model has or that
    names one that it lacks.

    Args:
        new_languages: codes to add, each with the language whose rows its token starts from.
    """
    folder = weights.parent
    config, generation = marian_import.read_settings(
        folder, num_heads, fixed={}, defaults=_DEFAULTS
    )
    tokenizer, vocabulary = _tokenizer(folder, config, new_languages)
    arrays = NamedArrays(weights, marian_import.read_arrays(weights), _EXPECTED)
    model = marian_import.model_of(folder, config, norm_placement="pre", pad_vocab_to_multiple=128)
    _check_positions(arrays, model)
    if not config.get("tie_word_embeddings", True):
        separate = "model.encoder.embed_tokens.weight" in arrays
        config["share_encoder_decoder_embeddings"] = not separate
        if separate:
            arrays.ignore("model.shared.weight")
    params, keys = marian_import.tables(arrays, config, model, (vocabulary, vocabulary))
    move_to_jax(params)  # before the layers are read
    params |= marian_import.layers(arrays, model)
    for stack in ("encoder", "decoder"):
        params[f"{stack}_norm"] = MARIAN.read_norm(arrays, f"model.{stack}.layer_norm", model)
    arrays.refuse_unused()
    model = Model(**vars(model) | keys | dict(position="sinusoid_halves", position_offset=2))
    pair = TokenizerPair(tokenizer, tokenizer)
    own = languages[0] or tokenizer.settings.get("src_lang") or SEVERAL
    for side, code in (("source", own), ("target", languages[1])):
        if code not in ("", SEVERAL, *tokenizer.languages):
            raise UserError(f"--{side}-language={code} is no language of the model in {folder}.")
    decode = marian_import.decode_keys(config, generation)
    # One token of max_length is the target language, which is none of the text.
    decode["max_length_offset"] = max(1, decode["max_length_offset"] - 1)
    resolved = import_config(
        model,
        pair,
        (own, languages[1] or SEVERAL),
        folder,
        source_eos=not tokenizer.source_last,
        decode=decode,
    )
    return ImportedModel(NAME, resolved, params, pair, marian_import.notes(config, generation))


def _check_positions(arrays: NamedArrays, model: Model) -> None:
    """Raise UserError for other vectors of positions than fairseq's; older files hold them."""
    for stack in ("encoder", "decoder"):
        name = f"model.{stack}.embed_positions.weights"
        if name in arrays:
            known = recognize_positions(arrays.take(name, 0, model.d_model)[2:])
            if known != Positions("sinusoid_halves", 2):
                raise UserError(f"{arrays.path}: {name} does not hold fairseq's sinusoids.")


def _tokenizer(
    folder: Path, config: dict[str, Any], new_languages: Mapping[str, str]
) -> tuple[M2M100Tokenizer, Vocabulary]:
    """Return the tokenizer, and its vocabulary with the rows of the model's tables."""
    path = folder / "tokenizer_config.json"
    settings = read_json(path, _TOKENIZER_TYPES) if path.exists() else {}
    kind: dict[str, Any] = {}
    if (folder / SENTENCEPIECE).is_file():
        path = folder / SENTENCEPIECE
        kind["model"], tokens = path.read_bytes(), _sentencepiece_tokens(folder, settings)
    elif (folder / FAST).is_file():
        path = folder / FAST
        kind["json"], tokens = path.read_text(encoding="utf-8"), _fast_tokens(path)
    else:
        raise UserError(f"there is no {folder / SENTENCEPIECE} and no {FAST}: expected one.")
    rows = config["vocab_size"]
    if len(tokens) > rows:
        raise UserError(f"{path} has {len(tokens)} tokens, but {folder / 'config.json'} {rows}.")
    languages = {
        match[1] or match[2]: token for token in tokens if (match := _CODE.fullmatch(token))
    }
    if not languages:
        raise UserError(f"{path}: the vocabulary has no tokens of languages, such as eng_Latn.")
    # A new token has the row of another language: the first ids after the tokens of the file.
    new = {
        _new_token(code, like, languages): tokens.index(languages[like])
        for code, like in new_languages.items()
    }
    if new:
        first, known = tokens.index(next(iter(languages.values()))), len(tokens)
        tokens += new
        languages |= dict(zip(new_languages, new, strict=True))
        entries = {i: {"content": tokens[i], **_SPECIAL} for i in range(first, len(tokens))}
        if "json" in kind:
            content = read_json(path)
            added = [{"id": i, **entries[i]} for i in range(known, len(tokens))]
            content["added_tokens"] = [*(content.get("added_tokens") or []), *added]
            kind["json"] = json.dumps(content, ensure_ascii=False)
        else:
            settings[_ADDED] = {str(i): entry for i, entry in entries.items()}
    # Rows that pad the tables are tokens of the other program, too.
    names = (name for n in range(rows) if (name := f"madeupword{n}") not in tokens)
    padding = [next(names) for _ in range(rows - len(tokens))]
    special = {PAD: _FIRST[1], EOS: _FIRST[2], UNK: _FIRST[3]}
    for token, key in ((special[PAD], "pad_token_id"), (special[EOS], "eos_token_id")):
        if [*tokens, *padding].index(token) != config[key]:
            raise UserError(f"{folder / 'config.json'}: {key} = {config[key]} is not {token}.")
    vocabulary = renumbered([*tokens, *padding], special, path)
    copied = [
        new.get(token, row) for token, row in zip(vocabulary.tokens, vocabulary.rows, strict=True)
    ]
    vocabulary = Vocabulary(vocabulary.tokens, np.array(copied), of_file=rows)
    without_text = [t for t in tokens if t in ("<s>", "<mask>")] + padding
    try:
        tokenizer = M2M100Tokenizer.of(
            vocabulary.tokens[3:],
            languages,
            without_text,
            first=vocabulary.rows[:3].tolist(),
            source_last=bool(settings.get("legacy_behaviour")),
            settings=settings,
            **kind,
        )
        tokenizer.decode(tokenizer.encode_text("a"))
    except UserError:
        raise
    except Exception as error:  # the libraries raise any error
        raise UserError(f"{path} is not a tokenizer: {first_line(error)}") from None
    return tokenizer, vocabulary


def _new_token(code: str, like: str, languages: Mapping[str, str]) -> str:
    """Return the token of a new language, in the form of the token of another one."""
    flag = f"--new-language={code}={like}"
    if like not in languages:
        near = ", ".join(difflib.get_close_matches(like, languages, cutoff=0.0))
        raise UserError(f"{flag}: the model has no language {like!r}; near: {near}.")
    if code in languages:
        raise UserError(f"{flag}: the model has {code} already.")
    token = languages[like].replace(like, code)
    match = _CODE.fullmatch(token)
    if not match or code not in match.groups():
        raise UserError(f"{flag}: {code!r} is not a code in the form of {like!r}.")
    return token


def _sentencepiece_tokens(folder: Path, settings: dict[str, Any]) -> list[str]:
    """Return the tokens by their ids.

    These are fairseq's own four and the pieces, or the pieces of vocab.json if it is there; then
    the tokens that `added_tokens_decoder` has for the next ids, or else the languages, and <mask>
    if there is no vocab.json.
    """
    from sentencepiece import SentencePieceProcessor

    try:
        model = SentencePieceProcessor(model_proto=(folder / SENTENCEPIECE).read_bytes())
    except RuntimeError:
        raise UserError(f"{folder / SENTENCEPIECE} is not a SentencePiece model.") from None
    if numbered := (folder / "vocab.json").is_file():
        ids = read_json(folder / "vocab.json")
        if sorted(ids.values(), key=str) != sorted(range(len(ids)), key=str):
            raise UserError(f"{folder / 'vocab.json'} does not number its pieces 0, 1, 2, ...")
        tokens = sorted(ids, key=ids.__getitem__)
    else:
        tokens = [*_FIRST, *(model.id_to_piece(i) for i in range(3, len(model)))]
    added = settings.get(_ADDED) or {}
    if str(len(tokens)) not in added:
        return [*tokens, *_language_tokens(folder, settings), *([] if numbered else ["<mask>"])]
    while isinstance(entry := added.get(str(len(tokens))), dict):
        tokens.append(str(entry.get("content")))
    return tokens


def _language_tokens(folder: Path, settings: dict[str, Any]) -> list[str]:
    """Return the tokens of the languages in the order of their ids."""
    more = [settings]
    for name in ("special_tokens_map.json", FAST):
        more += [read_json(folder / name)] if (folder / name).is_file() else []
    for content in more:
        for key in ("additional_special_tokens", "extra_special_tokens", "added_tokens"):
            entries = content.get(key) or []
            tokens = [one["content"] if isinstance(one, dict) else one for one in entries]
            if found := [token for token in tokens if _CODE.fullmatch(str(token))]:
                return found
    codes = LISTS.get(settings.get("language_codes", ""), "")
    return [f"__{code}__" for code in codes.split()]


def _fast_tokens(path: Path) -> list[str]:
    """Return the tokens of a tokenizer.json in the order of their ids."""
    content = read_json(path, {"model": dict, "added_tokens": list})
    vocab = (content.get("model") or {}).get("vocab") or {}
    try:
        ids = (
            {piece: i for i, (piece, _) in enumerate(vocab)}
            if isinstance(vocab, list)
            else dict(vocab)
        )
        ids |= {one["content"]: one["id"] for one in content.get("added_tokens") or []}
        numbered = sorted(ids.values()) == list(range(len(ids)))
    except (TypeError, KeyError, ValueError):
        numbered = False
    if not numbered:
        raise UserError(f"{path} does not number its tokens 0, 1, 2, ...")
    return sorted(ids, key=ids.__getitem__)
