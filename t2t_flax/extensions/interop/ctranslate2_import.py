"""Import of CTranslate2 encoder-decoder Transformers.

It reads `model.bin`, or a NumPy archive of its arrays, `weights.npz`. CTranslate2's linear weights
are [out, in], ours [in, out], and projections of one input are one matrix; ids are renumbered so
that 0, 1 and 2 are padding, EOS and unknown.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from t2t_flax.config import Model
from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.extensions.interop.ctranslate2_file import (
    read_model_bin,
    read_npz,
    read_tokens,
    vocabulary_file,
)
from t2t_flax.extensions.interop.imported import (
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
    CTRANSLATE2,
    Positions,
    recognize_positions,
    reordered,
    sines_first,
)
from t2t_flax.extensions.shared.list_tokenizer import SymbolTokenizer

NAME = "CTranslate2"
WEIGHTS = ("model.bin", "weights.npz")
PADDING = ("<pad>", "<blank>")
"""Names of the padding token, if a model has one."""
_STACKS = {"source": "encoder", "target": "decoder"}
_ACTIVATIONS = {0: "relu", 1: "gelu", 2: "swish"}
_ACTIVATION_NAMES = (
    "ReLU",
    "GELU (tanh)",
    "swish",
    "GELU (erf)",
    "GELU (sigmoid)",
    "tanh",
    "sigmoid",
)
_TEXTS = ("unk_token", "eos_token", "decoder_start_token", "source_language", "target_language")
_FLAGS = ("add_source_bos", "add_source_eos")
_SETTING_TYPES = (
    dict.fromkeys(_TEXTS, str) | {"layer_norm_epsilon": float} | dict.fromkeys(_FLAGS, bool)
)
_NEVER_PREDICTED = -1e3
_EXPECTED = (
    "an encoder-decoder Transformer with biases in dense feed-forward layers and an output"
    " projection"
)


def read(weights: Path, *, num_heads: int, languages: tuple[str, str]) -> ImportedModel:
    """Read the model of a file of `WEIGHTS` with the tokenizers beside it.

    The tokenizers are a folder `tokenizer` of `export`, or source.spm and target.spm; without them
    tokens are separated by spaces. Raises UserError.

    Args:
        num_heads: 0 if the files say it.
        languages: "" if the files say them.
    """
    folder = weights.parent
    settings = _settings(folder)
    model, params, *vocabularies, marian = read_ctranslate2(weights, num_heads)
    notes = ["vmap.txt is not used"] if (folder / "vmap.txt").exists() else []
    tokenizers = _tokenizers(folder, vocabularies, notes)
    source, target = (
        given or stated_language(settings.get(f"{side}_language"))
        for side, given in zip(_STACKS, languages, strict=True)
    )
    # Marian's sources end with EOS, which Hugging Face's tokenizer adds for CTranslate2.
    source_eos = marian or bool(settings.get("add_source_eos", False))
    config = import_config(model, tokenizers, (source, target), folder, source_eos=source_eos)
    return ImportedModel(NAME, config, params, tokenizers, tuple(notes))


class CTranslate2Model(NamedTuple):
    """A model read from CTranslate2's files.

    Args:
        params: float32 arrays.
        source, target: vocabularies; source[i] is the token of id i.
        marian: whether its sinusoids are in Marian's order of features, unlike other toolkits'.
    """

    model: Model
    params: dict[str, Any]
    source: list[str]
    target: list[str]
    marian: bool


def read_ctranslate2(path: str | Path, num_heads: int = 0) -> CTranslate2Model:
    """Read a CTranslate2 model.

    Raises UserError for missing or unexpected files and arrays, arrays of the wrong shape, and
    parts that this model does not have.

    Args:
        path: a file of `WEIGHTS`, with vocabularies and config.json beside it, or its folder.
        num_heads: number of heads if the weights do not contain it, else 0.
    """
    path = Path(path)
    if path.is_dir():
        path = next(
            (path / name for name in WEIGHTS if (path / name).is_file()),
            path / " or ".join(WEIGHTS),
        )
    folder = path.parent
    if not path.is_file():
        raise UserError(f"there is no {path}: expected the weights of CTranslate2.")
    file = read_npz(path) if path.suffix == ".npz" else read_model_bin(path)
    if file.spec not in ("", "TransformerSpec"):
        raise UserError(
            f"{path} holds a {file.spec}; expected an encoder-decoder Transformer"
            " (TransformerSpec)."
        )
    arrays, settings = NamedArrays(path, file.arrays, _EXPECTED), _settings(folder)
    encoder_table = "encoder/embeddings_0/weight" if "encoder/embeddings_0/weight" in arrays else ""
    tables = {
        "source": arrays.take(encoder_table or "encoder/embeddings/weight", 0, 0),
        "target": arrays.take("decoder/embeddings/weight", 0, 0),
    }
    d_model = tables["source"].shape[1]
    if tables["target"].shape[1] != d_model:
        arrays.take("decoder/embeddings/weight", 0, d_model)
    num_heads = _num_heads(arrays, num_heads, d_model)
    vocabularies = {
        side: _vocabulary(folder, side, settings, len(table)) for side, table in tables.items()
    }
    model, positions = _model(arrays, settings, d_model, num_heads)
    model, params, vocabularies = _tables(arrays, model, tables, vocabularies, settings)
    params |= {f"{side}_positions": {"table": table} for side, table in positions.tables.items()}
    for stack, count in (
        ("encoder", model.num_encoder_layers),
        ("decoder", model.num_decoder_layers),
    ):
        if f"{stack}/layer_norm/gamma" in arrays:
            params[f"{stack}_norm"] = CTRANSLATE2.read_norm(arrays, f"{stack}/layer_norm", model)
        for n in range(count):
            params[f"{stack}_{n}"] = CTRANSLATE2.read(
                arrays, f"{stack}/layer_{n}/", model, cross=stack == "decoder"
            )
    arrays.refuse_unused()
    if positions.scheme.sines_first:
        params = reordered(params, np.argsort(sines_first(d_model)))
    source, target = (vocabulary.tokens for vocabulary in vocabularies.values())
    return CTranslate2Model(model, params, source, target, positions.scheme.sines_first)


def _settings(folder: Path) -> dict[str, Any]:
    """Read config.json, which older models lack.

    Raises UserError for settings that this project does not have.
    """
    path = folder / "config.json"
    settings = read_json(path, _SETTING_TYPES) if path.exists() else {}
    if settings.get("add_source_bos"):
        raise UserError(
            f"{path}: add_source_bos = true is not supported: sources here have no token before"
            " them."
        )
    return {key: value for key, value in settings.items() if value is not None}


def _num_heads(arrays: NamedArrays, given: int, d_model: int) -> int:
    known = [int(arrays.scalar(f"{stack}/num_heads", 0)) for stack in _STACKS.values()]
    if known[0] != known[1]:
        raise UserError(
            f"{arrays.path} has {known[0]} heads in the encoder and {known[1]} in the decoder;"
            " expected one number."
        )
    if given and known[0] and given != known[0]:
        raise UserError(
            f"--num-heads={given}, but {arrays.path} has {known[0]} heads: leave the flag out."
        )
    heads = given or known[0]
    if not heads:
        raise UserError(
            f"{arrays.path} does not say how many attention heads the model has: give"
            " --num-heads=N."
        )
    if heads < 1 or d_model % heads:
        raise UserError(
            f"num_heads = {heads} does not divide the model's width, {d_model} ({arrays.path})."
        )
    return heads


def _vocabulary(folder: Path, side: str, settings: dict[str, Any], rows: int) -> Vocabulary:
    path = vocabulary_file(folder, side)
    tokens, unknown = read_tokens(path), settings.get("unk_token", "<unk>")
    if unknown not in tokens and len(tokens) < rows:
        tokens.append(unknown)  # CTranslate2 appends its row after the last token
    if len(tokens) != rows:
        raise UserError(
            f"{path} has {len(tokens)} tokens including {unknown}, but the embedding has {rows}"
            " rows."
        )
    end = settings.get("eos_token", "</s>")
    if end not in tokens:
        raise UserError(
            f"{path} has no {end}; expected the token that ends a sentence among its tokens."
        )
    pad = next((token for token in PADDING if token in tokens), PADDING[0])
    return renumbered(tokens, {PAD: pad, EOS: end, UNK: unknown}, path)


@dataclasses.dataclass(frozen=True)
class _PositionTables:
    """Tables of learned positions, by side."""

    scheme: Positions
    tables: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


def _model(
    arrays: NamedArrays, settings: dict[str, Any], d_model: int, num_heads: int
) -> tuple[Model, _PositionTables]:
    """Return the config of the layers, and the positions.

    Raises UserError, naming the array or key, for parts that this model does not have.
    """
    flags = {stack: _flags(arrays, stack, d_model) for stack in _STACKS.values()}
    if flags["encoder"] != flags["decoder"]:
        raise UserError(
            f"{arrays.path}: encoder and decoder differ: {flags['encoder']} and {flags['decoder']}."
        )
    pre_norm, activation, scaled, final_norm = flags["encoder"].values()
    if activation not in _ACTIVATIONS:
        name = dict(enumerate(_ACTIVATION_NAMES)).get(activation, f"number {activation}")
        raise UserError(
            f"{arrays.path}: the activation {name} is not one of"
            f" {', '.join(_ACTIVATIONS.values())}."
        )
    for name in ("encoder/multi_query_attention", "decoder/alibi", "decoder/scale_outputs"):
        if arrays.scalar(name, 0):
            raise UserError(f"{arrays.path}: {name} is set, which is not supported.")
    for name in (
        "encoder/embeddings_merge",
        "decoder/alibi_use_positive_positions",
        "decoder/scale_alibi",
        "decoder/alignment_layer",
        "decoder/alignment_heads",
    ):
        arrays.scalar(name, 0)  # they depend on options rejected here, or only name heads
    positions, ffn = _positions(arrays, d_model), "decoder/layer_0/ffn"
    d_ff = arrays.take(f"{ffn}/linear_0/weight", 0, d_model).shape[0]
    norm_type = "layernorm" if f"{ffn}/layer_norm/beta" in arrays else "rmsnorm"
    epsilon = settings.get("layer_norm_epsilon")
    if epsilon is None and norm_type == "rmsnorm":
        raise UserError(
            f"{arrays.path.parent / 'config.json'} has no layer_norm_epsilon, which RMSNorm needs."
        )
    model = Model(
        num_encoder_layers=arrays.count("encoder/layer_"),
        num_decoder_layers=arrays.count("decoder/layer_"),
        d_model=d_model,
        d_ff=d_ff,
        num_heads=num_heads,
        feed_forward="gated" if f"{ffn}/linear_0_noact/weight" in arrays else "dense",
        activation=_ACTIVATIONS[activation],
        attention_score=_attention_score(arrays),
        attention_bias="decoder/layer_0/self_attention/linear_0/bias" in arrays,
        norm_type=norm_type,
        norm_placement="pre" if pre_norm else "post",
        final_norm="auto" if final_norm == pre_norm else "both" if final_norm else "none",
        norm_eps=1e-5 if epsilon is None else float(epsilon),
        position=positions.scheme.position,
        position_offset=positions.scheme.position_offset,
        max_positions=len(next(iter(positions.tables.values()), range(Model.max_positions))),
        embed_scale="sqrt_d" if scaled else "none",
        pad_vocab_to_multiple=1,
    )
    return model, positions


def _flags(arrays: NamedArrays, stack: str, d_model: int) -> dict[str, int | bool]:
    name = f"{stack}/scale_embeddings"
    scale = arrays.scalar(name, 1)
    if not arrays.is_float(name):  # an integer is a flag, a float the factor itself
        scale = math.sqrt(d_model) if scale else 1.0
    scaled = math.isclose(scale, math.sqrt(d_model), rel_tol=1e-5)
    if not scaled and scale != 1:
        raise UserError(
            f"{arrays.path}: {name} = {scale:g}; expected the square root of the width, or none."
        )
    return {
        "pre_norm": bool(arrays.scalar(f"{stack}/pre_norm", 1)),
        "activation": int(arrays.scalar(f"{stack}/activation", 0)),
        "scale_embeddings": scaled,
        "layer_norm": f"{stack}/layer_norm/gamma" in arrays,
    }


def _attention_score(arrays: NamedArrays) -> str:
    names = [f"encoder/layer_{n}/self_attention" for n in range(arrays.count("encoder/layer_"))]
    for n in range(arrays.count("decoder/layer_")):
        names += [f"decoder/layer_{n}/self_attention", f"decoder/layer_{n}/attention"]
    scales = {arrays.scalar(f"{name}/queries_scale", 0) for name in names}
    if scales not in ({0}, {1}):
        shown = ", ".join(f"{scale:g}" for scale in sorted(scales))
        raise UserError(
            f"{arrays.path}: queries_scale is {shown}; expected 1 in every layer, or none."
        )
    return "dot" if scales == {1} else "scaled_dot"


def _positions(arrays: NamedArrays, d_model: int) -> _PositionTables:
    """Return the positions.

    Without explicit vectors, CTranslate2's models have tensor2tensor's sinusoids, whose first
    position is 1.
    """
    names = {side: f"{stack}/position_encodings/encodings" for side, stack in _STACKS.items()}
    present = [name in arrays for name in names.values()]
    if not any(present):
        return _PositionTables(Positions("sinusoid_halves", 1))
    tables = {side: arrays.take(name, 0, d_model) for side, name in names.items()}
    known = [recognize_positions(table) for table in tables.values()]
    if known[0] is not None and known[0] == known[1]:
        return _PositionTables(known[0])
    if len(tables["source"]) != len(tables["target"]):
        raise UserError(
            f"{arrays.path}: {' and '.join(names.values())} have different numbers of positions."
        )
    return _PositionTables(Positions("learned"), tables)


def _tables(
    arrays: NamedArrays,
    model: Model,
    tables: dict[str, np.ndarray],
    vocabularies: dict[str, Vocabulary],
    settings: dict[str, Any],
) -> tuple[Model, dict[str, Any], dict[str, Vocabulary]]:
    """Return (config, parameters, vocabularies) with the tables.

    The parameters include embeddings, projection and start vector.
    """
    width = len(tables["target"])
    projection = arrays.take("decoder/projection/weight", width, model.d_model)
    bias = (
        arrays.take("decoder/projection/bias", width)
        if "decoder/projection/bias" in arrays
        else None
    )
    target = vocabularies["target"]
    start = settings.get("decoder_start_token", "<s>")
    params: dict[str, Any] = {}
    if arrays.scalar("decoder/start_from_zero_embedding", 0):
        kind = "zeros"
    elif start in (target.tokens[EOS], target.tokens[PAD]):
        kind = "eos" if start == target.tokens[EOS] else "pad"
    elif start in target.tokens:
        kind, row = "bos", target.rows[target.tokens.index(start)]
        params["decoder_start_token"] = {"bos": tables["target"][row]}
        # Only an input vector, not an output token.
        if bias is not None and bias[row] <= _NEVER_PREDICTED:
            target = target.without(start)
            bias = bias if np.any(target.take(bias)) else None
    else:
        path = vocabulary_file(arrays.path.parent, "target")
        raise UserError(
            f"{path} has no {start}; expected the token before the first one of a translation."
        )
    source_table = vocabularies["source"].take(tables["source"])
    target_table, output_table = target.take(tables["target"]), target.take(projection)
    if (output_bias := target.take_bias(bias)) is not None:
        params["output_bias"] = output_bias
    one_vocabulary = vocabularies["source"].tokens == target.tokens and np.array_equal(
        source_table, target_table
    )
    if not np.array_equal(target_table, output_table):
        tied, named = (
            "none",
            {"source": source_table, "target": target_table, "output": output_table},
        )
    elif one_vocabulary:
        tied, named = "all", {"shared": target_table}
    else:
        tied, named = "decoder", {"source": source_table, "target": target_table}
    params |= {f"{name}_embedding": {"table": table} for name, table in named.items()}
    model = dataclasses.replace(
        model, tie_embeddings=tied, output_bias="output_bias" in params, decoder_start_token=kind
    )
    return model, params, vocabularies | {"target": target}


def _tokenizers(folder: Path, vocabularies: list[list[str]], notes: list[str]) -> TokenizerPair:
    if (folder / "tokenizer").is_dir():
        pair = TokenizerPair.load(folder / "tokenizer")
        for side, tokenizer, tokens in zip(
            _STACKS, (pair.source, pair.target), vocabularies, strict=True
        ):
            if tokenizer.pieces(range(tokenizer.vocab_size)) != tokens:
                raise UserError(
                    f"{folder / 'tokenizer'} is not the tokenizer of this model: its pieces are not"
                    f" those of {vocabulary_file(folder, side).name}."
                )
        return pair
    if (found := sentencepiece_pair(folder, *vocabularies)) is not None:
        return found
    notes.append(
        "no tokenizer beside the model (tokenizer/, or source.spm and target.spm): tokens are"
        " separated by spaces"
    )
    source, target = (SymbolTokenizer(SymbolTokenizer.write(tokens[3:])) for tokens in vocabularies)
    return TokenizerPair(source, source if vocabularies[0] == vocabularies[1] else target)
