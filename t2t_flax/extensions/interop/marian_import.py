"""Import of models of Hugging Face's Marian architecture, such as OPUS-MT's.

It reads config.json, the weights, two SentencePiece models and vocab.json. Its linear weights are
[out, in], ours [in, out]; its sinusoids have all sines before all cosines.
"""

import collections
import math
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t2t_flax.config import Decode, Model
from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.errors import UserError, install_hint
from t2t_flax.extensions.interop.imported import (
    IMPROBABLE,
    ImportedModel,
    NamedArrays,
    Vocabulary,
    import_config,
    renumbered,
    sentencepiece_pair,
    stated_language,
)
from t2t_flax.extensions.interop.json_settings import read_json
from t2t_flax.extensions.interop.layer_names import (
    MARIAN,
    MARIAN_KEYS,
    Positions,
    recognize_positions,
    reordered,
    sines_first,
)
from t2t_flax.extensions.interop.marian_export import EPSILON
from t2t_flax.extensions.interop.safetensors_file import TensorFile

NAME = "Hugging Face Marian"
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Files of weights, or lists of the files among which they are divided."""
_SAFE_TORCH = 2, 6
"""First version whose torch.load(weights_only=True) runs no code of the file."""
_EXPECTED = "Marian's encoder and decoder"
_ACTIVATIONS = {
    "relu": "relu",
    "swish": "swish",
    "silu": "swish",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
}
_SIZES = (*(key for key in MARIAN_KEYS if "dropout" not in key), "vocab_size")
# Other values belong to models that Marian's architecture does not have; only some versions wrote
# these keys.
_FIXED_KEYS: dict[str, Any] = {
    "static_position_embeddings": True,
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "add_bias_logits": False,
    "forced_bos_token_id": None,
}
_OTHER_RULES = (
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "repetition_penalty",
    "encoder_repetition_penalty", "num_beam_groups", "diversity_penalty", "do_sample", "min_length",
    "suppress_tokens", "guidance_scale", "penalty_alpha", "min_new_tokens", "max_new_tokens",
    "sequence_bias", "num_return_sequences", "forced_eos_token_id", "forced_bos_token_id",
)  # fmt: skip
"""Decoding rules without a key here."""
_NEUTRAL_AT_1 = (
    "repetition_penalty",
    "encoder_repetition_penalty",
    "num_beam_groups",
    "guidance_scale",
    "num_return_sequences",
)
# Numbers with a range are checked where they are read.
_Types = dict[str, type | tuple[type, ...]]
_GENERATION_TYPES: _Types = {
    "early_stopping": (bool, str),
    "renormalize_logits": bool,
    "bad_words_ids": list,
}
_CONFIG_TYPES: _Types = _GENERATION_TYPES | {
    "scale_embedding": bool, "share_encoder_decoder_embeddings": bool, "tie_word_embeddings": bool,
    "dropout": float, "attention_dropout": float, "activation_dropout": float,
}  # fmt: skip
_TOKENIZER_TYPES: _Types = {"separate_vocabs": bool, "source_lang": str, "target_lang": str}
_CONFIG, _GENERATION, _TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"


def read(weights: Path, *, num_heads: int, languages: tuple[str, str]) -> ImportedModel:
    """Read the model of a file of `WEIGHTS`.

    Raises UserError for missing or unexpected files and arrays, and, naming the key, for parts that
    this model does not have.

    Args:
        num_heads: 0 to take the folder's.
        languages: "" to take the folder's.
    """
    folder = weights.parent
    tokenizer = (
        read_json(folder / _TOKENIZER, _TOKENIZER_TYPES) if (folder / _TOKENIZER).exists() else {}
    )
    config, generation = read_settings(folder, num_heads, fixed=_FIXED_KEYS)
    vocabularies = _vocabularies(folder, config, tokenizer)
    arrays = NamedArrays(weights, read_arrays(weights), _EXPECTED)
    model = model_of(folder, config)
    positions = _positions(arrays, model)
    params, keys = tables(arrays, config, model, vocabularies)
    params |= layers(arrays, model)
    arrays.refuse_unused()
    never_padding = _never_padding(config, generation)
    if never_padding and generation.get("renormalize_logits") and "output_bias" in params:
        params["output_bias"][PAD] = IMPROBABLE
    if positions.sines_first:
        params = reordered(params, np.argsort(sines_first(model.d_model)))
    model = Model(
        **vars(model)
        | keys
        | dict(position=positions.position, position_offset=positions.position_offset)
    )
    pair = sentencepiece_pair(folder, *(vocabulary.tokens for vocabulary in vocabularies))
    if pair is None:
        raise UserError(
            f"there is no {folder / 'source.spm'} and target.spm: expected Marian's SentencePiece"
            " models."
        )
    source, target = (
        given or stated_language(tokenizer.get(f"{side}_lang"))
        for side, given in zip(("source", "target"), languages, strict=True)
    )
    resolved = import_config(
        model, pair, (source, target), folder, decode=decode_keys(config, generation)
    )
    return ImportedModel(NAME, resolved, params, pair, notes(config, generation))


def read_settings(
    folder: Path,
    num_heads: int,
    *,
    fixed: dict[str, Any],
    defaults: dict[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return config.json, and the rules of decoding in it and in generation_config.json.

    Raises UserError, naming the key, for values that this project does not have.

    Args:
        fixed: supported value of keys that have only one.
        defaults: values of keys that config.json may leave out.
    """
    config = (defaults or {}) | read_json(folder / _CONFIG, _CONFIG_TYPES)
    own_rules = (
        read_json(folder / _GENERATION, _GENERATION_TYPES)
        if (folder / _GENERATION).exists()
        else {}
    )
    generation = config | own_rules
    _check(folder / _CONFIG, config, num_heads)
    for file, keys in ((_CONFIG, config), (_GENERATION, generation)):
        _check_fixed(folder / file, keys, fixed)
    _check_search(folder / _GENERATION, generation)
    return config, generation


def layers(arrays: NamedArrays, model: Model) -> dict[str, Any]:
    """Read the parameters of all layers."""
    params = {}
    stacks = (("encoder", model.num_encoder_layers), ("decoder", model.num_decoder_layers))
    for stack, count in stacks:
        for n in range(count):
            name = f"model.{stack}.layers.{n}."
            params[f"{stack}_{n}"] = MARIAN.read(arrays, name, model, cross=stack == "decoder")
    return params


def _check(path: Path, config: dict[str, Any], num_heads: int) -> None:
    for key in _SIZES:
        _whole(path, config, key, 1)
    for key in ("pad_token_id", "eos_token_id"):
        _whole(path, config, key, 0)
    for key in ("decoder_vocab_size", "max_position_embeddings"):
        _whole(path, config, key, 1, optional=True)
    _whole(path, config, "decoder_start_token_id", 0, optional=True)
    for name in ("ffn_dim", "attention_heads"):
        if config[f"encoder_{name}"] != config[f"decoder_{name}"]:
            raise UserError(
                f"{path}: encoder_{name} and decoder_{name} differ; a model here has one number for"
                " both."
            )
    activation = config.get("activation_function")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise UserError(
            f"{path}: activation_function = {activation!r} is not one of {', '.join(_ACTIVATIONS)}."
        )
    if num_heads and num_heads != config["encoder_attention_heads"]:
        raise UserError(
            f"--num-heads={num_heads}, but {path} has encoder_attention_heads ="
            f" {config['encoder_attention_heads']}: leave the flag out."
        )


def _check_fixed(path: Path, settings: dict[str, Any], fixed: dict[str, Any]) -> None:
    for key, value in fixed.items():
        if settings.get(key, value) != value:
            raise UserError(
                f"{path}: {key} = {settings[key]!r} is not supported; expected {value!r}."
            )


def _whole(
    path: Path, settings: dict[str, Any], key: str, least: int, *, optional: bool = False
) -> None:
    """Raise UserError unless the key is a whole number of at least `least`.

    With `optional`, it may be missing or null.
    """
    value = settings.get(key)
    if not (optional and value is None) and (type(value) is not int or value < least):
        raise UserError(f"{path}: {key} = {value!r}; expected a whole number from {least} on.")


def model_of(folder: Path, config: dict[str, Any], **more: Any) -> Model:
    """Return the model without the keys of tables and positions.

    Args:
        more: further keys.
    """
    heads = config["encoder_attention_heads"]
    if config["d_model"] % heads:
        raise UserError(
            f"{folder / _CONFIG}: encoder_attention_heads = {heads} does not divide d_model ="
            f" {config['d_model']}."
        )
    return Model(
        **{ours: config[theirs] for theirs, ours in MARIAN_KEYS.items() if theirs in config},
        activation=_ACTIVATIONS[config["activation_function"]],
        attention_bias=True,
        norm_eps=EPSILON,
        embed_scale="sqrt_d" if config.get("scale_embedding") else "none",
        **{"pad_vocab_to_multiple": 1} | more,
    )


def read_arrays(path: Path) -> Mapping[str, np.ndarray]:
    """Return the arrays of a file of `WEIGHTS`, each read when it is asked for.

    Raises UserError.
    """
    if not path.is_file():
        raise UserError(
            f"there is no {path.name} in {path.parent}: expected {' or '.join(WEIGHTS)}."
        )
    if path.suffix == ".json":
        files = set(read_json(path, {"weight_map": dict}).get("weight_map", {}).values())
        if not files or any(not isinstance(f, str) or Path(f).name != f for f in files):
            raise UserError(f"{path} has no weight_map with names of files beside it.")
        parts = [read_arrays(path.parent / file) for file in sorted(files)]
        return collections.ChainMap(*parts)  # type: ignore[arg-type]  # only read
    if path.suffix == ".safetensors":
        return TensorFile(path)
    try:
        import torch
    except ModuleNotFoundError:
        raise UserError(f"{path} needs the package torch: {install_hint('torch')}.") from None
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < _SAFE_TORCH:
        raise UserError(
            f"{path} is not read with torch {torch.__version__}: before 2.6 the file can run code"
            f" of its own (CVE-2025-32434). Install a newer one: {install_hint('torch')}."
        )
    try:
        # Files of torch before 1.6 cannot be mapped.
        mapped = zipfile.is_zipfile(path)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        return {name: tensor.float().numpy() for name, tensor in state.items()}
    except Exception as error:  # any error that torch raises for a damaged file
        raise UserError(f"{path} cannot be read as PyTorch's weights: {error}") from None


def _vocabularies(
    folder: Path, config: dict[str, Any], tokenizer: dict[str, Any]
) -> tuple[Vocabulary, Vocabulary]:
    """Return the vocabularies of source and target.

    They are the same unless the tokenizer has `separate_vocabs`.
    """
    names = (
        "vocab.json",
        "target_vocab.json" if tokenizer.get("separate_vocabs") else "vocab.json",
    )
    sizes = config["vocab_size"], config.get("decoder_vocab_size") or config["vocab_size"]
    special = {
        PAD: _token(folder, tokenizer, "pad_token", "<pad>"),
        EOS: _token(folder, tokenizer, "eos_token", "</s>"),
        UNK: _token(folder, tokenizer, "unk_token", "<unk>"),
    }
    out = []
    for name, size in zip(names, sizes, strict=True):
        path = folder / name
        ids = read_json(path)
        if any(type(i) is not int for i in ids.values()) or sorted(ids.values(), key=str) != sorted(
            range(len(ids)), key=str
        ):
            raise UserError(f"{path} does not number its pieces 0, 1, 2, ...")
        if len(ids) != size:
            raise UserError(
                f"{path} has {len(ids)} pieces, but the model in {folder / _CONFIG} has {size}."
            )
        for token, key in ((special[PAD], "pad_token_id"), (special[EOS], "eos_token_id")):
            if ids.get(token) != config[key]:
                raise UserError(
                    f"{folder / _CONFIG}: {key} = {config[key]}, but {path} has {token!r} as"
                    f" {ids.get(token)}."
                )
        out.append(renumbered(sorted(ids, key=lambda token: ids[token]), special, path))
    return out[0], out[1]


def _token(folder: Path, tokenizer: dict[str, Any], key: str, default: str) -> str:
    token = tokenizer.get(key) or default
    token = token.get("content") if isinstance(token, dict) else token
    if not isinstance(token, str):
        raise UserError(f"{folder / _TOKENIZER}: {key} = {tokenizer[key]!r}; expected a token.")
    return token


def _positions(arrays: NamedArrays, model: Model) -> Positions:
    """Return the positions; older files hold their vectors."""
    known = set()
    for stack in ("encoder", "decoder"):
        name = f"model.{stack}.embed_positions.weight"
        if name in arrays:
            positions = recognize_positions(arrays.take(name, 0, model.d_model))
            if positions is None:
                raise UserError(
                    f"{arrays.path}: {name} holds no sinusoids; learned positions are not"
                    " supported."
                )
            known.add(positions)
    if len(known) > 1:
        raise UserError(
            f"{arrays.path}: the sinusoids of encoder and decoder differ, which is not supported."
        )
    return known.pop() if known else Positions("sinusoid_interleaved", 0, True)


def tables(
    arrays: NamedArrays,
    config: dict[str, Any],
    model: Model,
    vocabularies: tuple[Vocabulary, Vocabulary],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return embeddings, bias and start vector, and the model keys that describe them."""
    d_model, source, target = model.d_model, *vocabularies
    names = {
        "source": ("model.encoder.embed_tokens.weight", "model.shared.weight"),
        "target": ("model.decoder.embed_tokens.weight", "model.shared.weight"),
        "output": ("lm_head.weight",),
    }
    shared, tied = (
        config.get("share_encoder_decoder_embeddings", True),
        config.get("tie_word_embeddings", True),
    )
    same = (
        [["source", "target", "output"]] if shared and tied else [["source", "target"], ["output"]]
    )
    if not shared:
        same = [["source"], ["target", "output"]] if tied else [["source"], ["target"], ["output"]]
    sizes = {"source": source.count, "target": target.count, "output": target.count}
    found: dict[str, np.ndarray] = {}
    for sides in same:
        named = dict.fromkeys(name for side in sides for name in names[side])
        known = [name for name in named if name in arrays] or [names[sides[0]][-1]]
        table = arrays.take(known[0], sizes[sides[0]], d_model)
        for name in known[1:]:
            if not np.array_equal(arrays.take(name, *table.shape), table):
                raise UserError(
                    f"{arrays.path}: {name} differs from {known[0]}, with which config.json"
                    " ties it."
                )
        found |= dict.fromkeys(sides, table)
    params: dict[str, Any] = {}
    multiple = model.pad_vocab_to_multiple
    if shared and tied:
        params["shared_embedding"] = {"table": target.take(found["target"], multiple)}
    else:
        params["source_embedding"] = {"table": source.take(found["source"], multiple)}
        params["target_embedding"] = {"table": target.take(found["target"], multiple)}
    if not tied:
        params["output_embedding"] = {"table": target.take(found["output"], multiple)}
    bias = (
        arrays.take("final_logits_bias", 1, sizes["output"])[0]
        if "final_logits_bias" in arrays
        else None
    )
    bias = target.take_bias(bias)
    if bias is not None:
        bias[PAD] = max(bias[PAD], IMPROBABLE)
        params["output_bias"] = bias
    start = config.get("decoder_start_token_id")
    start = config["pad_token_id"] if start is None else start
    kind = {config["eos_token_id"]: "eos", config["pad_token_id"]: "pad"}.get(start, "bos")
    if not 0 <= start < target.count:
        raise UserError(
            f"{arrays.path.parent / _CONFIG}: decoder_start_token_id = {start} is not in the"
            " vocabulary."
        )
    if kind == "pad" and not np.any(found["target"][start]):
        kind = "zeros"
    if kind == "bos":
        params["decoder_start_token"] = {"bos": found["target"][start]}
    tie = "none" if not tied else "all" if shared else "decoder"
    return params, dict(
        tie_embeddings=tie, output_bias="output_bias" in params, decoder_start_token=kind
    )


def _check_search(path: Path, generation: dict[str, Any]) -> None:
    for key in ("num_beams", "max_length"):
        _whole(path, generation, key, 1, optional=True)
    penalty = generation.get("length_penalty")
    if penalty is not None and (type(penalty) not in (int, float) or not math.isfinite(penalty)):
        raise UserError(f"{path}: length_penalty = {penalty!r}; expected a number.")


def decode_keys(config: dict[str, Any], generation: dict[str, Any]) -> dict[str, Any]:
    """Return Hugging Face's search in our keys.

    score / length^length_penalty; max_length counts the start token.
    """
    penalty = generation.get("length_penalty")
    beams = generation.get("num_beams") or 1
    limit = (
        generation.get("max_length")
        or config.get("max_position_embeddings")
        or Decode.max_source_length
    )
    return {
        "beam_size": beams,
        "length_penalty": "power",
        "alpha": max(0.0, 1.0 if penalty is None else float(penalty)),
        "early_stopping": "beam_full" if generation.get("early_stopping") is True else "exact",
        "max_length_ratio": 0.0,
        "max_length_offset": max(1, limit - 1),
        "max_source_length": config.get("max_position_embeddings") or Decode.max_source_length,
    }


def _never_padding(config: dict[str, Any], generation: dict[str, Any]) -> bool:
    return [[config["pad_token_id"]]] == generation.get("bad_words_ids")


def notes(config: dict[str, Any], generation: dict[str, Any]) -> tuple[str, ...]:
    """Return the decoding rules that are not imported."""
    rules = {
        key: value for key in _OTHER_RULES if (value := generation.get(key)) not in (None, 0, [])
    }
    rules = {
        key: value
        for key, value in rules.items()
        if value is True or value != 1 or key not in _NEUTRAL_AT_1
    }
    if (generation.get("length_penalty") or 0) < 0:  # our minimum is 0
        rules["length_penalty"] = generation["length_penalty"]
    if generation.get("bad_words_ids") and not _never_padding(config, generation):
        rules["bad_words_ids"] = generation["bad_words_ids"]
    return tuple(
        f"{_GENERATION}: {key} = {value!r} is not taken over"
        for key, value in sorted(rules.items())
    )
