"""A trained model as a folder for other programs: the model, its tokenizers, and a README that says how to use them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t2t_flax.config import Config
from t2t_flax.config.directions import (
    language_pair,
    language_token,
    target_languages,
    trained_directions,
    untrained_directions,
)
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.data.tokenizers.marian import MarianTokenizer
from t2t_flax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from t2t_flax.data.tokenizers.subword_nmt import SubwordNmtTokenizer
from t2t_flax.errors import UserError
from t2t_flax.extensions.interop import ctranslate2_export, marian_export, safetensors_file
from t2t_flax.extensions.interop.marian_export import marian_token
from t2t_flax.extensions.interop.model_card import Score, front_matter, sections
from t2t_flax.filesystem import atomic_directory, refuse_existing
from t2t_flax.training.model_folder import MODEL_FILE, write_model

FORMATS = {
    "ctranslate2": ctranslate2_export.QUANTIZATIONS,
    "huggingface": safetensors_file.DTYPES,
    "safetensors": safetensors_file.DTYPES,
}
"""The formats, and what --quantization may be for each."""


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
    elif kind == "huggingface":
        marian_export.check_exportable(config)


def export(
    folder: str | Path,
    kind: str,
    config: Config,
    params: Any,
    tokenizers: TokenizerPair,
    *,
    steps: Sequence[int],
    quantization: str | None = None,
    origin: str = "",
    scores: Sequence[Score] = (),
    license: str = "",
    command: str = "",
) -> None:
    """Writes a new folder, whole or not at all. params: a tree of arrays, the mean of the checkpoints `steps`.
    origin, scores, license, command: the checkpoint, its evaluations and more for the README.

    Raises UserError as `check_export`, if the folder exists (also if another process makes it meanwhile), for tokenizers that
    the format cannot hold, and if its package is not installed.
    """
    check_export(config, kind, quantization)
    dtype = quantization or "float32"
    refuse_existing(folder, "--output")
    with atomic_directory(folder, keep=lambda: refuse_existing(folder, "--output")) as path:
        path = Path(path)
        if kind == "ctranslate2":
            vocabularies = tuple(t.pieces(range(t.vocab_size)) for t in (tokenizers.source, tokenizers.target))
            ctranslate2_export.write_ctranslate2(
                path,
                config.model,
                params,
                vocabularies,
                source_eos=config.data.source_eos,
                quantization=quantization,
                languages=language_pair(config.data),
            )
        elif kind == "huggingface":
            marian_export.write_marian(path, config, params, tokenizers, dtype=dtype)
        else:
            write_model(path, config, params, dtype=dtype, steps=tuple(steps), tokenizer=tokenizers.digest)
        if kind != "huggingface":
            tokenizers.save(path / "tokenizer")
        if kind == "ctranslate2" and isinstance(tokenizers.source, MarianTokenizer):
            marian_export.write_sentencepiece(path, tokenizers)
        usage = {"ctranslate2": _ctranslate2, "huggingface": _huggingface, "safetensors": _safetensors}[kind]
        heading = f"# {'-'.join(language_pair(config.data))} model, {kind} {dtype}"
        parts = [heading, f"Exported from {origin} by t2t_flax." if origin else "Exported by t2t_flax."]
        parts.append(usage(tokenizers, config))
        parts += _directions(config, kind)
        parts += sections(config, scores, command, dtype)
        head = front_matter(config, kind, path.name.partition(".partial-")[0], scores, license)
        (path / "README.md").write_text(head + "\n\n".join(parts) + "\n", encoding="utf-8")


def _directions(config: Config, kind: str) -> list[str]:
    """The paragraph on the directions of a model and how its target language is chosen; none for a model of one."""
    trained, others = trained_directions(config.data), untrained_directions(config.data)
    if not trained:
        return []
    text = f"## Directions\n\nTrained: {', '.join(map(str, trained))}."
    if others:
        text += f" Without training text (zero-shot): {', '.join(map(str, others))}."
    first = target_languages(config.data)[0]
    how = {
        "huggingface": f"A token before the source text chooses the target language: `{marian_token(first)} ...`. The tokenizer "
        "takes it as one piece at the beginning of a text, also of a text that has it by chance.",
        "ctranslate2": f"The first source token chooses the target language: `{language_token(first)}`. No text is tokenized to "
        "it, so it is put before the pieces of the text, as above.",
        "safetensors": f"`--target-language={first}` chooses the target language. For the model it is the first source token, "
        f"`{language_token(first)}`, a control symbol of the tokenizer.",
    }[kind]
    tokens = marian_token if kind == "huggingface" else language_token
    known = " ".join(f"`{tokens(language)}`" for language in target_languages(config.data))
    return [f"{text} {how} The tokens: {known}."]


def _example_language(config: Config) -> str | None:
    return next(iter(target_languages(config.data)), None)


def _safetensors(tokenizers: TokenizerPair, config: Config) -> str:
    language = _example_language(config)
    chosen = f" --target-language={language}" if language else ""
    return (
        f"`{MODEL_FILE}` holds the parameters by their paths; its metadata holds the config. This folder is a `--workdir` "
        "for every command of t2t_flax that reads a run:\n\n"
        f'```\necho "..." | python -m t2t_flax translate --workdir=FOLDER{chosen}\n```\n\nWithout JAX:\n\n'
        "```python\nfrom safetensors.numpy import load_file\n\n"
        f'params = load_file("{MODEL_FILE}")  # {{"encoder_0/feed_forward/Einsum_0/kernel": array, ...}}\n```'
    )


def _huggingface(tokenizers: TokenizerPair, config: Config) -> str:
    language = _example_language(config)
    start = f"{marian_token(language)} " if language else ""
    return (
        "```python\nfrom transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n\n"
        'tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForSeq2SeqLM.from_pretrained(".")\n'
        f'batch = tokenizer(["{start}It is late."], return_tensors="pt", padding=True)\n'
        "print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))\n```\n\n"
        "The order of the model's features is Marian's: sines before cosines. Its norms have an epsilon of 1e-5 "
        f"(trained with {config.model.norm_eps:g}), and padding has no probability."
    )


def _ctranslate2(tokenizers: TokenizerPair, config: Config) -> str:
    d = config.decode
    search = f'beam_size={d.beam_size}, suppress_sequences=[["{tokenizers.target.pieces([0])[0]}"]]'
    if d.length_penalty != "none":
        search += f", length_penalty={d.alpha}"
    note = (
        "CTranslate2 divides a score by length^alpha and stops once beam_size hypotheses have finished: in t2t_flax that is "
        "decode.length_penalty=power and decode.early_stopping=beam_full."
    )
    source, target = ("tokenizer/tokenizer.model",) * 2
    if not tokenizers.joint:
        source, target = "tokenizer/source.model", "tokenizer/target.model"
    if isinstance(tokenizers.source, MarianTokenizer):
        source, target = "source.spm", "target.spm"
    language = _example_language(config)
    start = f'["{language_token(language)}"] + ' if language else ""
    if isinstance(tokenizers.source, SentencePieceTokenizer | MarianTokenizer):
        code = (
            "import ctranslate2, sentencepiece\n\n"
            f'source = sentencepiece.SentencePieceProcessor("{source}")\n'
            f'target = sentencepiece.SentencePieceProcessor("{target}")\n'
            'translator = ctranslate2.Translator(".")\n'
            f'result = translator.translate_batch([{start}source.encode("It is late.", out_type=str)], '
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
