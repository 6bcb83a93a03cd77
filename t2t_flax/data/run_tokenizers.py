"""Tokenizers of a run: given or trained, and checked against its config and text."""

import difflib
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Mapping, Sequence

from etils import epath

from t2t_flax.config import Config
from t2t_flax.data.hooks import control_symbols, data_hooks, training_policies, training_stream
from t2t_flax.data.progress import Report
from t2t_flax.data.sources import Source
from t2t_flax.data.splits import DataTask
from t2t_flax.data.tokenizer_text import TokenizerText
from t2t_flax.data.tokenizers import Tokenizer, TokenizerPair, languages_of
from t2t_flax.errors import UserError
from t2t_flax.locks import exclusive_writer
from t2t_flax.registry import TOKENIZERS

log = logging.getLogger("t2t_flax")
_CHECKED_TARGETS = 2000
"""Targets that `prepare` checks for text that the tokenizer cannot write."""
_SHOWN = 20
"""Characters shown before and after the place that cannot be written."""
_TOKENIZER_KEYS = (
    "task tokenizer vocab_size joint_vocabulary tokenizer_sentences character_coverage"
    " byte_fallback normalization split_digits max_length on_too_long"
).split()


def tokenizers_of_run(
    task: DataTask,
    folder: epath.Path,
    cache: epath.Path,
    source: Source,
    held_out: Sequence[Source],
    report: Report,
) -> TokenizerPair:
    """Return the tokenizers of a run: given, of another run, or trained on its text.

    Raises UserError if `folder` has other ones, or they do not fit the config or the text.

    Args:
        folder: tokenizers of the run, written if missing.
        cache: folder with tokenizers that were trained before.
        held_out: sources of the validation and test sets.
    """
    config, data = task.config, task.config.data
    stored = TokenizerPair.load(folder) if TokenizerPair.is_complete(folder) else None
    initial = next(filter(None, (hook.tokenizer_folder() for hook in data_hooks(config))), None)
    if initial:  # a resumed run needs only its own folder: the other one may have been deleted
        pair = stored or TokenizerPair.load(initial)
    elif data.tokenizer_model and not TOKENIZERS.load(data.tokenizer).inputs(data):
        model_file = epath.Path(data.root or ".") / data.tokenizer_model
        pair = stored if stored and not model_file.exists() else TokenizerPair.load(model_file)
    else:
        if stored and stored.source.target_languages.keys() != languages_of(
            control_symbols(config)
        ):
            raise _other_tokenizer(folder)  # fail before one is trained
        pair = _trained_tokenizers(task, cache, source, report)
    if data.tokenizer_model and not initial:
        _check_vocab_size(pair, config)
    _check_symbols(pair.source, control_symbols(config))
    training_stream(config, pair)  # report errors of the tokenizers before tokenizing
    for one in (source, *held_out):
        _check_languages(pair.source, one)
    if not stored:
        pair.save(folder)
    elif stored.digest != pair.digest:
        raise _other_tokenizer(folder)
    _warn_of_unwritable(pair.target, source)
    return pair


def _check_symbols(tokenizer: Tokenizer, symbols: Mapping[str, str]) -> None:
    """Raise UserError if the tokenizer lacks a symbol, which it would spell as text."""
    for symbol, key in symbols.items():
        if symbol not in tokenizer.control_symbols:
            near = ", ".join(difflib.get_close_matches(symbol, tokenizer.control_symbols))
            raise UserError(
                f"config.{key}: the source tokenizer has no control symbol {symbol}"
                f"{near and f' (near: {near})'}. A tokenizer"
                " that a run trains has it; one in config.data.tokenizer_model must be a"
                f" SentencePiece model trained with --control_symbols={','.join(symbols)}, and that"
                " of another run must have been made for them."
            )


def _check_languages(tokenizer: Tokenizer, source: Source) -> None:
    """Raise UserError if a part's first text lacks the symbol of its target language."""
    for part in source.parts if tokenizer.target_languages else ():
        first = next((text for text, _ in part.pairs() if text.strip()), "")
        if tokenizer.lacks_language(first):
            languages = list(tokenizer.target_languages)
            more = f" and {len(languages) - 20} more" if len(languages) > 20 else ""
            raise UserError(
                f"{part.spec}: the tokenizer has symbols of the languages to write"
                f" ({', '.join(languages[:20])}{more}), such as"
                f" <2{languages[0]}>, with one of which each source sentence"
                f" must begin: {first!r}"
            )


def _warn_of_unwritable(tokenizer: Tokenizer, source: Source) -> None:
    """Warn about parts with targets that the tokenizer cannot write.

    The warning gives their share among the part's first targets.
    """
    for part in source.parts:
        rows = itertools.islice(
            enumerate(part.rows()), max(20, _CHECKED_TARGETS // len(source.parts))
        )
        targets = [(i, row[1]) for i, row in rows if not isinstance(row, str)]
        if changed := [(i, text) for i, text in targets if tokenizer.changes(text)]:
            i, text = changed[0]
            written = tokenizer.decode(tokenizer.encode_text(text))
            near = slice(max(0, len(os.path.commonprefix([text, written])) - _SHOWN), None)
            log.warning(
                "%s: the tokenizer cannot write %.3g%% of the first %d targets. At %s it turns %r"
                " into %r: see config.data.normalization and, for unknown characters,"
                " data.byte_fallback and data.character_coverage.",
                part.spec, 100 * len(changed) / len(targets), len(targets), part.where(i),
                text[near][: 2 * _SHOWN], written[near][: 2 * _SHOWN],
            )  # fmt: skip


def _other_tokenizer(folder: epath.Path) -> UserError:
    return UserError(
        f"{folder} is not the tokenizer of this config and data: the training text, or a tokenizer"
        " key, has changed since the run began. Use another --workdir."
    )


def _trained_tokenizers(
    task: DataTask, cache: epath.Path, source: Source, report: Report
) -> TokenizerPair:
    data, symbols = task.config.data, list(control_symbols(task.config))
    plain = TokenizerText(source, training_policies(task.config), report)
    text: Source = plain
    for hook in data_hooks(task.config):
        text = hook.transform("tokenizer", "train", text)
    settings = {key: getattr(data, key) for key in _TOKENIZER_KEYS} | TOKENIZERS.load(
        data.tokenizer
    ).inputs(data)
    settings |= {"filters": [one.as_stored() for one in plain.filters]}
    settings |= {key: task.config.value(key) for key in task.tokenizer_keys}
    settings |= {"control_symbols": symbols, "tags": [part.tag for part in source.parts]}
    cached = cache / f"tokenizer-{_digest(text.fingerprint(), settings)}"
    if not TokenizerPair.is_complete(cached):
        with exclusive_writer(cached, "prepare"):
            if not TokenizerPair.is_complete(cached):  # still missing after the wait
                task.train_tokenizers(text).save(cached)
    return TokenizerPair.load(cached)


def _check_vocab_size(pair: TokenizerPair, config: Config) -> None:
    for side in ("source", "target"):
        size = getattr(pair, side).vocab_size
        if size > config.data.vocab_size:
            raise UserError(
                f"config.data.vocab_size = {config.data.vocab_size} is smaller than the {size}"
                f" pieces of the {side} tokenizer in config.data.tokenizer_model ="
                f" {config.data.tokenizer_model}: set it to {size}."
            )
    if config.data.joint_vocabulary and pair.source.digest != pair.target.digest:
        raise UserError(
            f"config.data.tokenizer_model = {config.data.tokenizer_model} has two tokenizers: set "
            "config.data.joint_vocabulary = false and config.model.tie_embeddings = decoder."
        )


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
