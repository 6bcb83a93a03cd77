"""Export of a model as Hugging Face's M2M-100 architecture, with the tokenizer of its import."""

from pathlib import Path
from typing import Any

import numpy as np

from t2t_flax.config import Config
from t2t_flax.config.data_keys import EOS, PAD
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.extensions.interop import marian_export
from t2t_flax.extensions.interop.layer_names import MARIAN, require_supported
from t2t_flax.extensions.interop.m2m100_import import FAST, SENTENCEPIECE
from t2t_flax.extensions.interop.m2m100_tokenizer import M2M100Tokenizer
from t2t_flax.extensions.interop.safetensors_file import save

_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "mixer": ("attention",),
    "attention_score": ("scaled_dot",),
    "norm_placement": ("pre",),
    "final_norm": ("auto", "both"),
    "norm_type": ("layernorm",),
    "feed_forward": ("dense",),
    "position": ("sinusoid_halves",),
    "position_offset": (2,),
    "tie_embeddings": ("all", "none"),
    "logit_scale": ("none",),
    "output_bias": (False,),
    "decoder_start_token": ("eos",),
}


def check_exportable(config: Config) -> None:
    """Raise UserError, naming the key, for a model that M2M-100's files cannot express."""
    advice = "--format=ctranslate2 takes more kinds of models, --format=safetensors all."
    require_supported(config.model, _SUPPORTED, "Hugging Face's M2M-100", advice)


def write_model(
    folder: Path, config: Config, params: Any, tokenizers: TokenizerPair, *, dtype: str = "float32"
) -> None:
    """Write the model and its tokenizer to an existing folder.

    Raises UserError for models and tokenizers of another kind.
    """
    check_exportable(config)
    tokenizer = tokenizers.source
    if not isinstance(tokenizer, M2M100Tokenizer):
        raise UserError(
            f"data.tokenizer = {config.data.tokenizer} cannot be exported to Hugging Face's"
            " M2M-100: expected the tokenizer of an imported model."
        )
    tensors = {
        name: np.ascontiguousarray(x, dtype)
        for name, x in _tensors(config, params, tokenizer).items()
    }
    save(folder / "model.safetensors", tensors, {"format": "pt"})
    ids = {
        "pad_token_id": tokenizer.rows[PAD],
        "eos_token_id": tokenizer.rows[EOS],
        "decoder_start_token_id": tokenizer.rows[EOS],
    }
    content = marian_export.model_keys(config, tokenizer.vocab_size, dtype) | ids
    content |= {
        "architectures": ["M2M100ForConditionalGeneration"],
        "model_type": "m2m_100",
        "max_position_embeddings": config.decode.max_source_length,
        "tie_word_embeddings": config.model.tie_embeddings == "all",
    }
    marian_export.write_json(folder / "config.json", content)
    # One token more, that of the target language.
    search = marian_export.search_keys(config.decode)
    search["max_length"] += 1
    rules = {"bad_words_ids": [[tokenizer.rows[PAD]]]}
    marian_export.write_json(folder / "generation_config.json", search | rules | ids)
    write_tokenizer(folder, tokenizer)


def write_tokenizer(folder: Path, tokenizer: M2M100Tokenizer) -> None:
    """Write the files of the tokenizer that the model was imported with."""
    marian_export.write_json(folder / "tokenizer_config.json", tokenizer.settings)
    if tokenizer.json:
        (folder / FAST).write_text(tokenizer.json, encoding="utf-8")
        return
    (folder / SENTENCEPIECE).write_bytes(tokenizer.sentencepiece_model)
    tokens = list(tokenizer.languages.values())
    marian_export.write_json(
        folder / "special_tokens_map.json", {"additional_special_tokens": tokens}
    )
    if "<mask>" not in tokenizer.ids:  # M2M-100's, whose pieces have numbers of their own
        pieces = tokenizer.pieces(np.argsort(tokenizer.rows).tolist())
        pieces = pieces[: pieces.index(tokens[0])]
        ids = {piece: i for i, piece in enumerate(pieces)}
        marian_export.write_json(folder / "vocab.json", ids)


def _tensors(config: Config, params: Any, tokenizer: M2M100Tokenizer) -> dict[str, np.ndarray]:
    """Return M2M-100's tensors by name; linear weights are [out, in]."""
    ours = np.argsort(tokenizer.rows)
    table = lambda name: np.asarray(params[f"{name}_embedding"]["table"], np.float32)[ours]  # noqa: E731
    if config.model.tie_embeddings == "all":
        out = {"model.shared.weight": table("shared")}
    else:
        out = {
            "model.shared.weight": table("source"),
            "model.encoder.embed_tokens.weight": table("source"),
            "model.decoder.embed_tokens.weight": table("target"),
            "lm_head.weight": table("output"),
        }
    for stack in ("encoder", "decoder"):
        for name, x in (("weight", "scale"), ("bias", "bias")):
            out[f"model.{stack}.layer_norm.{name}"] = np.asarray(params[f"{stack}_norm"][x])
        for i in range(getattr(config.model, f"num_{stack}_layers")):
            layer = MARIAN.write(params[f"{stack}_{i}"], always_bias=True)
            out |= {f"model.{stack}.layers.{i}.{name}": x for name, x in layer}
    return out
