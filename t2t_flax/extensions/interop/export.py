"""Export of a trained model as a folder for other programs.

The folder holds the model, its tokenizers, and a README that says how to use them.
"""

import contextlib
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from t2t_flax.config import Config
from t2t_flax.config.keys import TRANSLATIONS
from t2t_flax.config.schema import fields, keys_that_change
from t2t_flax.data.tokenizers import SentencePieceTokenizer, TokenizerPair
from t2t_flax.decoding.batches import step_changes
from t2t_flax.errors import UserError
from t2t_flax.extensions.interop import (
    ctranslate2_export,
    m2m100_export,
    m2m100_import,
    marian_export,
    safetensors_file,
)
from t2t_flax.extensions.interop.m2m100_tokenizer import M2M100Tokenizer
from t2t_flax.extensions.interop.marian_export import marian_token
from t2t_flax.extensions.interop.marian_tokenizer import MarianTokenizer
from t2t_flax.extensions.interop.model_card import Score, front_matter, sections
from t2t_flax.extensions.interop.model_folder import MODEL_FILE, write_model
from t2t_flax.extensions.interop.safetensors_file import check_representable
from t2t_flax.extensions.shared.directions import Direction, codes_of, model_directions
from t2t_flax.extensions.shared.list_tokenizer import SymbolTokenizer
from t2t_flax.files import atomic_directory, refuse_existing
from t2t_flax.locks import exclusive_writer
from t2t_flax.training.parametrization import parametrization_of

FORMATS = {
    "ctranslate2": ctranslate2_export.QUANTIZATIONS,
    "huggingface": safetensors_file.DTYPES,
    "safetensors": safetensors_file.DTYPES,
}
"""Export formats, and the values of --quantization for each."""


def check_export(config: Config, kind: str, quantization: str | None) -> None:
    """Raise UserError if a model of this config cannot be exported to this format."""
    if quantization is not None and quantization not in FORMATS[kind]:
        raise UserError(
            f"--quantization={quantization} is not a type of --format={kind}: expected"
            f" {', '.join(FORMATS[kind])}."
        )
    if config.data.task != "translation" and kind != "safetensors":
        raise UserError(
            f"data.task = {config.data.task} can be exported with --format=safetensors only."
        )
    if kind == "ctranslate2":
        ctranslate2_export.check_exportable(config.model)
    elif kind == "huggingface":
        _hugging_face(config).check_exportable(config)


def _hugging_face(config: Config) -> Any:
    """Return the module that writes a model as Hugging Face's Marian or M2M-100."""
    return m2m100_export if config.model.position_offset == 2 else marian_export


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
) -> list[str]:
    """Write a new folder, whole or not at all.

    Returns the parts of the model that the format cannot hold, as sentences that the README has,
    too. Raises UserError as `check_export`, for parameters that the type of the weights cannot
    hold, if the folder exists (also if another process makes it meanwhile), for tokenizers that the
    format cannot hold, and if its package is not installed.

    Args:
        params: a tree of arrays, the mean of the checkpoints `steps`.
        origin: run and checkpoint, for the README.
        scores: its evaluations, for the README.
        license: its licence, for the README.
    """
    check_export(config, kind, quantization)
    dtype = quantization or "float32"
    trained, zero_shot = model_directions(config, tokenizers.source)
    codes = codes_of([*trained, *zero_shot])
    check_representable(safetensors_file.flatten(params), dtype)
    with contextlib.ExitStack() as stack:
        # Removes leftovers of a killed export.
        stack.enter_context(exclusive_writer(folder, "export"))
        refuse_existing(folder, "--output")
        path = Path(stack.enter_context(atomic_directory(folder, replace=False)))
        if kind == "ctranslate2":
            vocabularies = tuple(
                t.pieces(range(t.vocab_size)) for t in (tokenizers.source, tokenizers.target)
            )
            ctranslate2_export.write_ctranslate2(
                path,
                config.model,
                params,
                vocabularies,
                source_eos=config.data.source_eos,
                quantization=quantization,
                languages=dict(zip(("source_language", "target_language"), codes, strict=True)),
            )
        elif kind == "huggingface":
            _hugging_face(config).write_model(path, config, params, tokenizers, dtype=dtype)
        else:
            merged = parametrization_of(config).merged_config(config)
            write_model(
                path, merged, params, dtype=dtype, steps=tuple(steps), tokenizer=tokenizers.digest
            )
        if kind != "huggingface":
            tokenizers.save(path / "tokenizer")
        if kind == "ctranslate2" and isinstance(tokenizers.source, MarianTokenizer):
            marian_export.write_sentencepiece(path, tokenizers)
        if kind == "ctranslate2" and isinstance(tokenizers.source, M2M100Tokenizer):
            m2m100_export.write_tokenizer(path, tokenizers.source)
        usage = {
            "ctranslate2": _ctranslate2,
            "huggingface": _huggingface,
            "safetensors": _safetensors,
        }[kind]
        heading = f"# {codes} model, {kind} {dtype}"
        parts = [
            heading,
            f"Exported by t2t_flax{f' from {origin}' if origin else ''}.",
        ]
        parts.append(usage(tokenizers, config))
        if tokenizers.source.target_languages:
            parts.append(_directions(tokenizers, trained, zero_shot, kind))
        if lost := _NOT_CARRIED[kind](config):
            parts.append(
                "## What this format does not hold\n\n" + "\n".join(f"- {note}" for note in lost)
            )
        parts += sections(config, trained, scores, dtype)
        head = front_matter(config, [*trained, *zero_shot], kind, license)
        (path / "README.md").write_text(head + "\n\n".join(parts) + "\n", encoding="utf-8")
    return lost


_NOT_CARRIED: dict[str, Callable[[Config], list[str]]] = {
    "ctranslate2": lambda config: ctranslate2_export.not_carried(config) + _own_rules(config),
    "huggingface": lambda config: marian_export.not_carried(config) + _own_rules(config),
    "safetensors": lambda config: [],
}


def _own_rules(config: Config) -> list[str]:
    """Return the rules that only t2t_flax has, one sentence each.

    They apply to source lines and to the search.
    """
    notes, changing = [], step_changes(config)
    if config.decode.strategy not in ("beam", "greedy", "sample"):
        notes.append(
            f"decode.strategy = {config.decode.strategy}: there is plain beam search, greedy search"
            " or sampling."
        )
    notes += [
        f"{name} = {value}: a rule of t2t_flax alone."
        for name in keys_that_change(TRANSLATIONS)
        if name.partition(".")[0] in changing
        and (value := config.value(name)) != fields()[name].default
    ]
    return notes


def _directions(
    tokenizers: TokenizerPair,
    trained: Sequence[Direction],
    zero_shot: Sequence[Direction],
    kind: str,
) -> str:
    """Return the paragraph on a model's directions and the choice of the target language."""
    if isinstance(tokenizers.source, M2M100Tokenizer):
        tokens = " ".join(f"`{token}`" for token in tokenizers.source.languages.values())
        return (
            "## Languages\n\nA token beside the source tells its language, and the translation"
            f" begins with the token of its own, as above. The tokens: {tokens}."
        )
    text = f"## Directions\n\nTrained: {', '.join(map(str, trained))}."
    if zero_shot:
        text += f" Without training text (zero-shot): {', '.join(map(str, zero_shot))}."
    token_of = functools.partial(_token, tokenizers, kind)
    languages = list(tokenizers.source.target_languages)
    first = languages[0]
    how = {
        "huggingface": (
            f"A token before the source text chooses the target language: `{token_of(first)} ...`."
            " The tokenizer takes it as one piece at the beginning of a text, also of a text that"
            " has it by chance."
        ),
        "ctranslate2": (
            f"The first source token chooses the target language: `{token_of(first)}`. No text is"
            " tokenized to it, so it is put before the pieces of the text, as above."
        ),
        "safetensors": (
            f"`{token_of(first)}` before a line chooses the target language: a control symbol of"
            " the tokenizer."
        ),
    }[kind]
    known = " ".join(f"`{token_of(language)}`" for language in languages)
    return f"{text} {how} The tokens: {known}."


def _token(tokenizers: TokenizerPair, kind: str, language: str) -> str:
    """Return the token of a target language in an exported vocabulary."""
    (piece,) = tokenizers.source.pieces([tokenizers.source.target_languages[language]])
    return marian_token(language) if kind == "huggingface" else piece


def _example_language(tokenizers: TokenizerPair) -> str | None:
    return next(iter(tokenizers.source.target_languages), None)


def _safetensors(tokenizers: TokenizerPair, config: Config) -> str:
    language = _example_language(tokenizers)
    symbol = f"{_token(tokenizers, 'safetensors', language)} " if language else ""
    return (
        f"`{MODEL_FILE}` holds the parameters by their paths; its metadata holds the config. This"
        " folder is a `--workdir` "
        "for every command of t2t_flax that reads a run:\n\n"
        f'```\necho "{symbol}..." | python -m t2t_flax translate --workdir=FOLDER\n```\n\nWithout'
        " JAX:\n\n"
        "```python\nfrom safetensors.numpy import load_file\n\n"
        f'params = load_file("{MODEL_FILE}")  # {{"encoder_0/feed_forward/Einsum_0/kernel": array,'
        " ...}\n```"
    )


def _huggingface(tokenizers: TokenizerPair, config: Config) -> str:
    if isinstance(tokenizers.source, M2M100Tokenizer):
        source, target = _two_languages(tokenizers.source, config)
        return (
            "```python\nfrom transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n\n"
            f'tokenizer = AutoTokenizer.from_pretrained(".", src_lang="{source}")\n'
            'model = AutoModelForSeq2SeqLM.from_pretrained(".")\n'
            'batch = tokenizer(["It is late."], return_tensors="pt", padding=True)\n'
            "language = tokenizer.convert_tokens_to_ids("
            f'"{tokenizers.source.languages[target]}")\n'
            "ids = model.generate(**batch, forced_bos_token_id=language)\n"
            "print(tokenizer.batch_decode(ids, skip_special_tokens=True))\n```"
        )
    language = _example_language(tokenizers)
    start = f"{marian_token(language)} " if language else ""
    return (
        "```python\nfrom transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n\n"
        'tokenizer, model = AutoTokenizer.from_pretrained("."),'
        ' AutoModelForSeq2SeqLM.from_pretrained(".")\n'
        f'batch = tokenizer(["{start}It is late."], return_tensors="pt", padding=True)\n'
        "print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))\n```\n\n"
        "The order of the model's features is Marian's: sines before cosines. Padding has no"
        " probability."
    )


def _two_languages(tokenizer: M2M100Tokenizer, config: Config) -> tuple[str, str]:
    """Return a source and another language for an example."""
    # transformers knows M2M-100's own codes alone.
    listed = m2m100_import.LISTS.get(tokenizer.settings.get("language_codes", ""))
    codes = listed.split() if listed else list(tokenizer.languages)
    source = config.data.source_language if config.data.source_language in codes else codes[0]
    return source, next((code for code in codes if code != source), source)


def _m2m100_in_ctranslate2(tokenizer: M2M100Tokenizer, config: Config, search: str) -> str:
    source, target = map(tokenizer.languages.get, _two_languages(tokenizer, config))
    tokens = f'*pieces, "</s>", "{source}"' if tokenizer.source_last else f'"{source}", *pieces'
    load = (
        "import ctranslate2, sentencepiece\n\n"
        'tokenizer = sentencepiece.SentencePieceProcessor("sentencepiece.bpe.model")\n'
        'pieces = tokenizer.encode("It is late.", out_type=str)\n'
    )
    decode = "tokenizer.decode(found)"
    if tokenizer.json:
        load = (
            "import ctranslate2, tokenizers\n\n"
            'tokenizer = tokenizers.Tokenizer.from_file("tokenizer.json")\n'
            'pieces = tokenizer.encode("It is late.", add_special_tokens=False).tokens\n'
        )
        decode = "tokenizer.decode([tokenizer.token_to_id(piece) for piece in found])"
    return (
        f"```python\n{load}"
        'translator = ctranslate2.Translator(".")\n'
        f'result = translator.translate_batch([[{tokens}]], target_prefix=[["{target}"]],'
        f" {search})\n"
        f"found = result[0].hypotheses[0][1:]\nprint({decode})\n```"
    )


def _ctranslate2(tokenizers: TokenizerPair, config: Config) -> str:
    d = config.decode
    options: dict[str, Any] = {"beam_size": d.beam_size if d.strategy == "beam" else 1}
    if options["beam_size"] > 1:
        options["length_penalty"] = 0.0 if d.length_penalty == "none" else d.alpha
    if d.strategy == "sample":
        options |= {
            "sampling_topk": d.top_k,
            "sampling_topp": d.top_p,
            "sampling_temperature": d.temperature,
        }
    limit = ctranslate2_export.position_limit(config.model)
    longest = 256 if d.max_length_ratio else d.max_length_offset  # 256 is CTranslate2's default
    if not d.max_length_ratio or limit < longest:
        options["max_decoding_length"] = max(1, min(longest, limit))
    options["max_input_length"] = min(d.max_source_length, limit)
    options["suppress_sequences"] = [[tokenizers.target.pieces([0])[0]]]
    search = ", ".join(f"{name}={json.dumps(value)}" for name, value in options.items())
    if isinstance(tokenizers.source, M2M100Tokenizer):
        return _m2m100_in_ctranslate2(tokenizers.source, config, search)
    source, target = ("tokenizer/tokenizer.model",) * 2
    if not tokenizers.joint:
        source, target = "tokenizer/source.model", "tokenizer/target.model"
    if isinstance(tokenizers.source, MarianTokenizer):
        source, target = "source.spm", "target.spm"
    language = _example_language(tokenizers)
    start = f'["{_token(tokenizers, "ctranslate2", language)}"] + ' if language else ""
    if isinstance(tokenizers.source, SentencePieceTokenizer | MarianTokenizer):
        code = (
            "import ctranslate2, sentencepiece\n\n"
            f'source = sentencepiece.SentencePieceProcessor("{source}")\n'
            f'target = sentencepiece.SentencePieceProcessor("{target}")\n'
            'translator = ctranslate2.Translator(".")\n'
            f'result = translator.translate_batch([{start}source.encode("It is late.",'
            " out_type=str)], "
            f"{search})\n"
            "print(target.decode(result[0].hypotheses[0]))"
        )
        return f"```python\n{code}\n```"
    kind = "symbols" if isinstance(tokenizers.source, SymbolTokenizer) else "pieces"
    code = (
        'import ctranslate2\n\ntranslator = ctranslate2.Translator(".")\n'
        f'result = translator.translate_batch([["a", "sentence", "as", "{kind}"]], {search})'
    )
    return f"Tokens are {kind}; the tokenizer's JSON file lists them.\n\n```python\n{code}\n```"
