"""Export of a model as Hugging Face's Marian architecture.

The files are config.json, model.safetensors and MarianTokenizer's. Marian's sinusoids have all
sines before all cosines. The features of the residual stream may have any order, so the paper's
interleaved ones are exported with all matrices permuted to it.
"""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from t2t_flax.config import Config, Decode, Model
from t2t_flax.config.data_keys import EOS, PAD
from t2t_flax.data.tokenizers import SentencePieceTokenizer, TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.extensions.interop.layer_names import (
    MARIAN,
    MARIAN_KEYS,
    reordered,
    require_supported,
    sines_first,
)
from t2t_flax.extensions.interop.marian_tokenizer import MarianTokenizer
from t2t_flax.extensions.interop.safetensors_file import save
from t2t_flax.extensions.shared.directions import codes_of, model_directions

POSITIONS = 1024
EPSILON = 1e-5
"""Epsilon of the norms: PyTorch's default.

Marian's architecture does not change it.
"""
_NEVER = -1e4  # bias of padding, which is never predicted; representable in float16
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "mixer": ("attention",),
    "attention_score": ("scaled_dot",),
    "norm_placement": ("post",),
    "final_norm": ("auto", "none"),
    "norm_type": ("layernorm",),
    "feed_forward": ("dense",),
    "position": ("sinusoid_interleaved",),
    "position_offset": (0,),
    "tie_embeddings": ("all",),
    "logit_scale": ("none",),
    "decoder_start_token": ("zeros", "pad", "eos"),
}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu_pytorch_tanh", "swish": "swish"}


def check_exportable(config: Config) -> None:
    """Raise UserError, naming the key, for a model that Marian's files cannot express."""
    advice = "--format=ctranslate2 takes more kinds of models, --format=safetensors all."
    require_supported(config.model, _SUPPORTED, "Hugging Face's Marian", advice)
    if not config.data.source_eos:
        raise UserError(
            "config.data.source_eos = false cannot be exported to Hugging Face's Marian, whose"
            f" tokenizer ends sources with EOS. {advice}"
        )


def marian_token(language: str) -> str:
    """Return the token of a target language before the text.

    MarianTokenizer takes `>>de<<` there as one piece, and no other form.
    """
    return f">>{language}<<"


def write_model(
    folder: Path, config: Config, params: Any, tokenizers: TokenizerPair, *, dtype: str = "float32"
) -> None:
    """Write the model and its tokenizer to an existing folder.

    Raises UserError for models and tokenizers of another kind.
    """
    check_exportable(config)
    if not isinstance(tokenizers.source, SentencePieceTokenizer | MarianTokenizer):
        raise UserError(
            f"data.tokenizer = {config.data.tokenizer} cannot be exported to Hugging Face's Marian,"
            " whose tokenizer is SentencePiece: expected bpe or unigram."
        )
    vocab = tokenizers.target.vocab_size
    tensors = {
        name: np.ascontiguousarray(x, dtype)
        for name, x in _tensors(config.model, params, vocab).items()
    }
    save(folder / "model.safetensors", tensors, {"format": "pt"})
    start = EOS if config.model.decoder_start_token == "eos" else PAD
    ids = {
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": None,
        "decoder_start_token_id": start,
    }
    write_json(folder / "config.json", model_keys(config, vocab, dtype) | ids)
    rules = {"bad_words_ids": [[PAD]], "forced_eos_token_id": None}
    write_json(folder / "generation_config.json", search_keys(config.decode) | rules | ids)
    _write_tokenizer(folder, config, tokenizers)


def not_carried(config: Config) -> list[str]:
    """Return the parts of a model that Marian's files cannot hold, one sentence each.

    They include its decoding.
    """
    m, d = config.model, config.decode
    notes = []
    if m.norm_eps != EPSILON:
        notes.append(
            f"model.norm_eps = {m.norm_eps:g}: Marian's norms have an epsilon of {EPSILON:g}."
        )
    beams = d.strategy == "beam" and d.beam_size > 1
    if beams and d.length_penalty == "gnmt" and d.alpha:
        notes.append(
            f"decode.length_penalty = gnmt, the divisor ((5 + length) / 6)^{d.alpha:g}: Hugging"
            f" Face divides by length^length_penalty, and has length_penalty = {d.alpha:g}, which"
            " favours longer translations."
        )
    if beams and d.early_stopping == "top_finished":
        notes.append(
            'decode.early_stopping = top_finished: Hugging Face has early_stopping = "never", which'
            " is exact."
        )
    if d.max_length_ratio:
        notes.append(
            f"decode.max_length_ratio = {d.max_length_ratio:g}: the longest translation has"
            f" {_longest(d)} tokens there, whatever the length of its source."
        )
    if d.strategy == "sample":
        notes.append("decode.seed: the random numbers of sampling are PyTorch's.")
    if d.strategy == "sample" and d.epsilon and (d.top_k or d.top_p < 1):
        notes.append(
            "decode.epsilon: Hugging Face's probabilities are those among the tokens of"
            " decode.top_k and decode.top_p."
        )
    return notes


def _longest(decode: Decode) -> int:
    """Return the maximum tokens of a translation, EOS included.

    If it depends on the source, the longest source within reason counts.
    """
    sources = min(decode.max_source_length, POSITIONS)
    most = POSITIONS // 2 if decode.max_length_ratio else POSITIONS
    return max(
        1, min(math.floor(decode.max_length_ratio * sources) + decode.max_length_offset, most - 1)
    )


def search_keys(decode: Decode) -> dict[str, Any]:
    """Return decode.* as keys of Hugging Face's generation.

    Its max_length counts the start token.
    """
    limit = {"max_length": _longest(decode) + 1}
    if decode.strategy == "sample":
        # top_k and top_p are filters in the same order in both: top_p applies to the k most likely
        # tokens.
        return limit | {
            "num_beams": 1, "do_sample": True, "temperature": decode.temperature,
            "top_k": decode.top_k, "top_p": decode.top_p,
            **({"epsilon_cutoff": decode.epsilon} if decode.epsilon else {}),
        }  # fmt: skip
    if decode.strategy == "greedy" or decode.beam_size == 1:
        return limit | {"num_beams": 1, "do_sample": False}
    penalty = 0.0 if decode.length_penalty == "none" else decode.alpha
    early = True if decode.early_stopping == "beam_full" else "never"
    return limit | {
        "num_beams": decode.beam_size,
        "do_sample": False,
        "length_penalty": penalty,
        "early_stopping": early,
    }


def model_keys(config: Config, vocab: int, dtype: str) -> dict[str, Any]:
    model = config.model
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": vocab,
        "decoder_vocab_size": vocab,
        **{theirs: getattr(model, ours) for theirs, ours in MARIAN_KEYS.items()},
        "activation_function": _ACTIVATIONS[model.activation],
        "scale_embedding": model.embed_scale == "sqrt_d",
        "max_position_embeddings": POSITIONS,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "forced_eos_token_id": None,
        "dtype": dtype,
    }


def write_sentencepiece(folder: Path, tokenizers: TokenizerPair) -> None:
    """Write source.spm and target.spm."""
    for name, side in (("source", tokenizers.source), ("target", tokenizers.target)):
        (folder / f"{name}.spm").write_bytes(
            side.model if isinstance(side, MarianTokenizer) else side.data
        )


def _write_tokenizer(folder: Path, config: Config, tokenizers: TokenizerPair) -> None:
    write_sentencepiece(folder, tokenizers)
    pieces = tokenizers.target.pieces(range(tokenizers.target.vocab_size))
    tokens = {
        i: marian_token(language) for language, i in tokenizers.source.target_languages.items()
    }
    write_json(folder / "vocab.json", {tokens.get(i, piece): i for i, piece in enumerate(pieces)})
    names = {"pad_token": pieces[PAD], "eos_token": pieces[EOS], "unk_token": "<unk>"}
    codes = codes_of(itertools.chain(*model_directions(config, tokenizers.source)))
    languages = dict(zip(("source_lang", "target_lang"), codes, strict=True))
    longest = min(config.decode.max_source_length, POSITIONS)
    kind = {"tokenizer_class": "MarianTokenizer", "model_max_length": longest}
    write_json(folder / "tokenizer_config.json", kind | languages | names)


def _tensors(config: Model, params: Any, vocab: int) -> dict[str, np.ndarray]:
    """Return Marian's tensors by name; linear weights are [out, in]."""
    params = reordered(params, sines_first(config.d_model))
    table = _float32(params["shared_embedding"]["table"])[:vocab]
    bias = (
        _float32(params["output_bias"])[:vocab]
        if config.output_bias
        else np.zeros(vocab, np.float32)
    )
    bias[PAD] = _NEVER
    if config.decoder_start_token == "zeros":
        table[PAD] = 0  # vector of padding, with which decoding starts
    out = {"model.shared.weight": table, "final_logits_bias": bias[None]}
    for stack, count in (
        ("encoder", config.num_encoder_layers),
        ("decoder", config.num_decoder_layers),
    ):
        for i in range(count):
            layer = MARIAN.write(params[f"{stack}_{i}"], always_bias=True)
            out |= {f"model.{stack}.layers.{i}.{name}": x for name, x in layer}
    return out


def _float32(x: Any) -> np.ndarray:
    return np.array(x, np.float32)


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
