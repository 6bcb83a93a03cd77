"""Writer of models in CTranslate2's format, which decodes without JAX.

It runs on CPUs and GPUs. The paper's model is exported unchanged: post-norm, no biases in
attention, sinusoids as explicit vectors, a zero start vector.
"""

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t2t_flax.config import Config, Model
from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.errors import UserError, install_hint
from t2t_flax.extensions.interop.layer_names import CTRANSLATE2, require_supported
from t2t_flax.models.embeddings import sinusoid_halves, sinusoid_interleaved

QUANTIZATIONS = (
    "int8",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
    "int16",
    "float16",
    "bfloat16",
    "float32",
)
POSITIONS = 2048
"""Rows of the sinusoid table: maximum tokens of a source or translation."""
_NEVER = -1e4  # bias of a class that the model lacks, representable in float16


def check_exportable(config: Model) -> None:
    """Raise UserError, naming the key, for a model that CTranslate2 cannot express."""
    supported = {
        "mixer": ("attention",),
        "attention_score": ("scaled_dot", "dot"),
        "position": ("sinusoid_interleaved", "sinusoid_halves", "learned", "none"),
        "final_norm": (
            ("auto", "none") if config.norm_placement == "post" else ("auto", "both", "none")
        ),
    }
    advice = "--format=safetensors exports every model."
    require_supported(config, supported, "CTranslate2", advice)
    if not config.num_encoder_layers:
        raise UserError(
            "model.num_encoder_layers = 0 cannot be exported to CTranslate2, which reads layer 0."
            f" {advice}"
        )


def position_limit(config: Model) -> int:
    """Return how many tokens of a side the exported model has positions for."""
    return config.max_positions if config.position == "learned" else POSITIONS


def not_carried(config: Config) -> list[str]:
    """Return the decoding rules of a run that CTranslate2 lacks, one sentence each.

    The others are options of its `translate_batch`, not of its files.
    """
    d, notes = config.decode, []
    if d.strategy == "beam" and d.beam_size > 1 and d.length_penalty == "gnmt" and d.alpha:
        notes.append(
            f"decode.length_penalty = gnmt, the divisor ((5 + length) / 6)^{d.alpha:g}: CTranslate2"
            " divides by length^length_penalty, which favours longer translations, as"
            " --config.decode.length_penalty=power does here."
        )
    if d.strategy == "beam" and d.beam_size > 1 and d.early_stopping != "beam_full":
        notes.append(
            f"decode.early_stopping = {d.early_stopping}: CTranslate2 stops once beam_size"
            " hypotheses have finished, as --config.decode.early_stopping=beam_full does here."
        )
    if d.max_length_ratio:
        notes.append(
            f"decode.max_length_ratio = {d.max_length_ratio:g}: max_decoding_length does not depend"
            " on the length of the source."
        )
    if d.strategy == "sample" and d.epsilon:
        notes.append(
            f"decode.epsilon = {d.epsilon:g}: CTranslate2 samples from tokens of any probability."
        )
    return notes


def write_ctranslate2(
    folder: Path,
    config: Model,
    params: Any,
    vocabularies: Sequence[Sequence[str]],
    *,
    source_eos: bool,
    quantization: str | None = None,
    languages: dict[str, Any] | None = None,
) -> None:
    """Write model.bin, config.json and the vocabularies to an existing folder.

    Raises UserError if CTranslate2 is not installed or cannot express the model.

    Args:
        params: float32 arrays.
        vocabularies: token of each source and target id, without the rows that pad the tables.
        languages: keys for config.json, which CTranslate2 does not read but `import` does.
    """
    check_exportable(config)
    try:
        import ctranslate2
        from ctranslate2.specs import TransformerSpec
    except ModuleNotFoundError:
        raise UserError(
            f"--format=ctranslate2 needs the package ctranslate2: {install_hint('ctranslate2')}."
        ) from None
    activations = ctranslate2.specs.Activation
    spec = TransformerSpec.from_config(
        (config.num_encoder_layers, config.num_decoder_layers),
        config.num_heads,
        pre_norm=config.norm_placement == "pre",
        no_final_norm=config.norm_placement == "post" or config.final_norm == "none",
        activation={
            "relu": activations.RELU,
            "gelu": activations.GELUTanh,
            "swish": activations.SWISH,
        }[config.activation],
        ffn_glu=config.feed_forward == "gated",
        rms_norm=config.norm_type == "rmsnorm",
    )
    spec.config.layer_norm_epsilon = config.norm_eps
    spec.config.add_source_eos = source_eos
    spec.config.unk_token = vocabularies[1][UNK]
    spec.config.eos_token = vocabularies[1][EOS]
    for key, value in (languages or {}).items():
        spec.config.add_attribute(key, value)
    target = _set_tables(spec, config, params, *vocabularies)
    for side, stack in (("source", spec.encoder), ("target", spec.decoder)):
        stack.scale_embeddings = config.embed_scale == "sqrt_d"
        stack.position_encodings.encodings = _positions(config, params, side)
    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        for i, layer in enumerate(stack.layer):
            _set_layer(layer, config, params[f"{name}_{i}"])
        if f"{name}_norm" in params:
            _set_norm(stack.layer_norm, params[f"{name}_norm"])
    spec.register_source_vocabulary(list(vocabularies[0]))
    spec.register_target_vocabulary(target)
    spec.validate()
    spec.optimize(None if quantization == "float32" else quantization)
    spec.save(str(folder))


def _set_tables(
    spec: Any, config: Model, params: Any, source: Sequence[str], target: Sequence[str]
) -> list[str]:
    """Set embeddings, projection and start token; return the target vocabulary."""
    names = {
        "all": ("shared_embedding",) * 3,
        "decoder": ("source_embedding", "target_embedding", "target_embedding"),
        "none": ("source_embedding", "target_embedding", "output_embedding"),
    }[config.tie_embeddings]
    tables = [_float32(params[name]["table"]) for name in names]
    table, projection = tables[1][: len(target)], tables[2][: len(target)]
    if config.logit_scale == "rsqrt_d":
        projection = projection * np.float32(config.d_model**-0.5)
    bias = _float32(params["output_bias"])[: len(target)] if config.output_bias else None
    target, start = list(target), _new_token(target)
    if config.decoder_start_token == "bos":  # a separate token, never predicted
        row = _float32(params["decoder_start_token"]["bos"])
        table, projection = np.vstack([table, row]), np.vstack([projection, np.zeros_like(row)])
        bias = np.append(
            np.zeros(len(target), np.float32) if bias is None else bias, np.float32(_NEVER)
        )
        target.append(start)
    spec.encoder.embeddings[0].weight = tables[0][: len(source)]
    spec.decoder.embeddings.weight, spec.decoder.projection.weight = table, projection
    if bias is not None:
        spec.decoder.projection.bias = bias
    tokens = {"eos": target[EOS], "pad": target[PAD], "bos": start}
    spec.config.bos_token = start
    spec.config.decoder_start_token = tokens.get(config.decoder_start_token, target[EOS])
    spec.decoder.start_from_zero_embedding = config.decoder_start_token == "zeros"
    return target


def _new_token(vocabulary: Sequence[str]) -> str:
    """Return <s>, <s1>, ...: the first that the vocabulary lacks."""
    names = (f"<s{number or ''}>" for number in itertools.count())
    return next(name for name in names if name not in vocabulary)


def _positions(config: Model, params: Any, side: str) -> np.ndarray:
    """Return float32 [positions, D], added to the embeddings of one side."""
    if config.position == "learned":
        return _float32(params[f"{side}_positions"]["table"])
    if config.position == "none":
        return np.zeros((POSITIONS, config.d_model), np.float32)
    vectors = {"sinusoid_interleaved": sinusoid_interleaved, "sinusoid_halves": sinusoid_halves}[
        config.position
    ]
    return _float32(vectors(np.arange(POSITIONS) + config.position_offset, config.d_model))


def _set_layer(layer: Any, config: Model, params: Any) -> None:
    for name, array in CTRANSLATE2.write(params):
        *path, attribute = name.split("/")
        setattr(functools.reduce(_part, path, layer), attribute, array)
    if config.attention_score == "dot":
        for attention in ("self_attention", "attention"):
            if hasattr(layer, attention):
                getattr(layer, attention).queries_scale = np.float32(1)


def _part(spec: Any, name: str) -> Any:
    """Return the part of a specification that a file calls `name`.

    linear_0 may be the first of a list `linear`.
    """
    kind, _, number = name.rpartition("_")
    return getattr(spec, name) if hasattr(spec, name) else getattr(spec, kind)[int(number)]


def _set_norm(norm: Any, params: Any) -> None:
    norm.gamma = _float32(params["scale"])
    if "bias" in params:
        norm.beta = _float32(params["bias"])


def _float32(x: Any) -> np.ndarray:
    return np.array(x, np.float32)  # a copy: quantization scales it in place
