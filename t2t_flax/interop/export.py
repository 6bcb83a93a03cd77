"""A trained model as a folder for other programs: the model, its tokenizers, and a README that says how to use them."""

import json
from pathlib import Path
from typing import Any

from t2t_flax.config import Config, to_config_dict
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from t2t_flax.data.tokenizers.subword_nmt import SubwordNmtTokenizer
from t2t_flax.errors import UserError
from t2t_flax.filesystem import atomic_directory
from t2t_flax.interop import ctranslate2_export, safetensors_file

FORMATS = {
    "ctranslate2": ctranslate2_export.QUANTIZATIONS,
    "safetensors": safetensors_file.DTYPES,
}
"""The formats, and what --quantization may be for each."""
MODEL_FILE = "model.safetensors"


def check_export(config: Config, kind: str, quantization: str | None) -> None:
    """Raises UserError if a model of this config cannot be written so."""
    if quantization is not None and quantization not in FORMATS[kind]:
        raise UserError(
            f"--quantization={quantization} is not a type of --format={kind}: expected {', '.join(FORMATS[kind])}."
        )
    if config.data.task != "translation" and kind != "safetensors":
        raise UserError(f"data.task = {config.data.task} can be exported with --format=safetensors only.")
    if kind == "ctranslate2":
        ctranslate2_export.check_exportable(config.model)


def export(
    folder: str | Path,
    kind: str,
    config: Config,
    params: Any,
    tokenizers: TokenizerPair,
    *,
    quantization: str | None = None,
    origin: str = "",
) -> None:
    """Writes a new folder, whole or not at all. params: a tree of arrays. origin: the checkpoint, named in the README.

    Raises UserError as `check_export`, and if the package that the format needs is not installed.
    """
    check_export(config, kind, quantization)
    with atomic_directory(folder) as path:
        path = Path(path)
        if kind == "ctranslate2":
            vocabularies = tuple(t.pieces(range(t.vocab_size)) for t in (tokenizers.source, tokenizers.target))
            ctranslate2_export.write_ctranslate2(
                path, config.model, params, vocabularies, source_eos=config.data.source_eos, quantization=quantization
            )
        else:
            stored = json.loads(json.dumps(to_config_dict(config).to_dict()))
            dtype = quantization or "float32"
            safetensors_file.write_safetensors(path / MODEL_FILE, params, stored, dtype=dtype)
        tokenizers.save(path / "tokenizer")
        (path / "README.md").write_text(_readme(kind, config, tokenizers, quantization, origin), encoding="utf-8")


def _readme(kind: str, config: Config, tokenizers: TokenizerPair, quantization: str | None, origin: str) -> str:
    heading = f"# {config.data.source_language}-{config.data.target_language} model, {kind} {quantization or 'float32'}"
    parts = [heading, f"Exported from {origin} by t2t_flax." if origin else "Exported by t2t_flax."]
    if kind == "safetensors":
        parts.append(
            f"`{MODEL_FILE}` holds the parameters by their paths; its metadata holds the config. `python -m t2t_flax import "
            "--from=THIS_FOLDER --workdir=RUN` makes it a run. Without JAX:"
        )
        parts.append(
            "```python\nfrom safetensors.numpy import load_file\n\n"
            f'params = load_file("{MODEL_FILE}")  # {{"encoder_0/feed_forward/Einsum_0/kernel": array, ...}}\n```'
        )
    else:
        parts.append(_ctranslate2_usage(tokenizers, config))
    return "\n\n".join(parts) + "\n"


def _ctranslate2_usage(tokenizers: TokenizerPair, config: Config) -> str:
    pad = tokenizers.target.pieces([0])[0]
    d = config.decode
    search = f'beam_size={d.beam_size}, suppress_sequences=[["{pad}"]]'
    if d.length_penalty != "none":
        search += f", length_penalty={d.alpha}"
    note = (
        "CTranslate2 divides a score by length^alpha and stops once beam_size hypotheses have finished: in t2t_flax that is "
        "decode.length_penalty=power and decode.early_stopping=beam_full."
    )
    source, target = ("tokenizer/tokenizer.model",) * 2
    if not tokenizers.joint:
        source, target = "tokenizer/source.model", "tokenizer/target.model"
    if isinstance(tokenizers.source, SentencePieceTokenizer):
        code = (
            "import ctranslate2, sentencepiece\n\n"
            f'source = sentencepiece.SentencePieceProcessor("{source}")\n'
            f'target = sentencepiece.SentencePieceProcessor("{target}")\n'
            'translator = ctranslate2.Translator(".")\n'
            'result = translator.translate_batch([source.encode("It is late.", out_type=str)], '
            f"{search})\n"
            "print(target.decode(result[0].hypotheses[0]))"
        )
        return f"```python\n{code}\n```\n\n{note}"
    kind = "subword-nmt pieces" if isinstance(tokenizers.source, SubwordNmtTokenizer) else "symbols"
    code = (
        'import ctranslate2\n\ntranslator = ctranslate2.Translator(".")\n'
        f'result = translator.translate_batch([["a", "sentence", "as", "{kind}"]], {search})'
    )
    return f"Tokens are {kind}; the tokenizer's JSON file lists them.\n\n```python\n{code}\n```\n\n{note}"
