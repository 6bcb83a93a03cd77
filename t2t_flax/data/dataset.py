"""Tokenizers and token stores of a run, prepared once and identified by digest."""

import hashlib
import itertools
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from etils import epath

from t2t_flax.config import Config
from t2t_flax.config.data_keys import FORM, VALID_PREFIX
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.file_hashes import INDEX, hash_files
from t2t_flax.data.hooks import control_symbols, data_hooks, training_stream
from t2t_flax.data.preprocess import Policies, prepare_split, recipe_of
from t2t_flax.data.progress import Report, silent
from t2t_flax.data.sources import JoinedSource, ScoredPairs, Source
from t2t_flax.data.token_store import TokenStore, find_store
from t2t_flax.data.tokenizer_text import TokenizerText
from t2t_flax.data.tokenizers import Tokenizer, TokenizerPair, languages_of
from t2t_flax.errors import UserError
from t2t_flax.files import check_reachable, expand_home
from t2t_flax.locks import exclusive_writer
from t2t_flax.registry import TOKENIZERS

log = logging.getLogger("t2t_flax")
_CHECKED_TARGETS = 2000
"""Targets that `prepare` checks for text that the tokenizer cannot write."""
_SHOWN = 20
"""Characters shown before and after the place that cannot be written."""
_PREPARATION_TIMEOUT = 7 * 24 * 3600.0
"""Seconds that other processes wait for process 0.

Its failure ends the wait earlier.
"""


class DataTask(Protocol):
    """Part of a task (`t2t_flax.tasks`) that this package uses."""

    config: Config
    tokenizer_keys: Sequence[str]

    def of_set(self, name: str) -> "DataTask": ...

    def validate_config(self) -> None: ...

    def open_source(self, spec: str, *, key: str) -> Source: ...

    def train_tokenizers(self, source: Source) -> TokenizerPair: ...


class ProcessGroup(Protocol):
    """Part of `distributed.coordination.ProcessGroup` that this module uses."""

    index: int
    count: int

    def broadcast(self, name: str, value: str = "", seconds: float = 0.0) -> str:
        """Return process 0's `value` in all processes; wait up to `seconds`."""


@dataclass(frozen=True)
class Corpus:
    """Prepared data of a run.

    Attributes:
        valid: stores of the validation sets, by the names of `Data.valid_sets`.
    """

    tokenizers: TokenizerPair
    train: TokenStore
    valid: dict[str, TokenStore]


def prepare_corpus(
    task: DataTask,
    workdir: str | epath.Path,
    report: Report = silent,
    group: ProcessGroup | None = None,
) -> Corpus:
    """Return tokenizers (trained or given) and token stores. Existing ones are reused.

    All processes of a `group` must call this: process 0 prepares with all its cores while the
    others wait, then all open the same stores. Raises UserError for every error in the data:
    missing or malformed files, too little text for the vocabulary, no pair left.
    """
    workdir = epath.Path(workdir)
    stores = _prepared_by_lead(group, lambda: _prepare(task, workdir, report))
    names = list(task.config.data.valid_sets)
    *valid, train = stores
    tokenizers = TokenizerPair.load(workdir / "tokenizer")
    return Corpus(tokenizers, train, dict(zip(names, valid, strict=True)))


def describe_train(config: Config, corpus: Corpus) -> str:
    """Return a line about the training pairs, and the lines of extensions."""
    sources = corpus.train.describe_sources(list(config.data.train_sources))
    lines = [line for hook in data_hooks(config) for line in hook.describe(corpus.train)]
    return "\n".join([corpus.train.describe(), *sources, *lines])


def batches_of(config: Config, corpus: Corpus, *, shards: int = 1) -> Batches:
    """Return the training batches.

    Args:
        shards: number of devices that divide the batches.
    """
    make_stream = training_stream(config, corpus.tokenizers)
    return Batches(
        corpus.train, config.data, seed=config.seed.data, shards=shards, make_stream=make_stream
    )


def _prepare(task: DataTask, workdir: epath.Path, report: Report) -> list[TokenStore]:
    """Return the stores of the validation sets, then the training store."""
    config = task.config
    cache = epath.Path(_cache(config, workdir))
    check_reachable(cache)
    training_policies(config).as_stored()  # report errors before minutes of hashing and training
    source = split_source(task, "train")
    others = [
        split_source(task, name) for split in ("valid", "test") for name in _sets(config)[split]
    ]
    hash_files((file for one in (source, *others) for file in one.files), cache / INDEX, report)
    tokenizers = _tokenizers(task, workdir, source, report)
    _warn_of_unwritable(tokenizers.target, source)
    train = _split_store(task, workdir, "train", tokenizers, report, source)
    report("plan the updates", 0, None, "")  # caches their counts, which every start needs
    _ = batches_of(config, Corpus(tokenizers, train, {})).updates_per_epoch
    sets = config.data.valid_sets
    return [*(_split_store(task, workdir, name, tokenizers, report) for name in sets), train]


def _prepared_by_lead(
    group: ProcessGroup | None, prepare: Callable[[], list[TokenStore]]
) -> list[TokenStore]:
    """Return the stores that `prepare` makes on process 0.

    The other processes wait and open the same ones.
    """
    if group is None or group.count == 1:
        return prepare()
    stores = prepare() if group.index == 0 else None
    folders = [(str(store.origin), store.digest) for store in stores or ()]
    prepared = json.loads(
        group.broadcast("prepared data", json.dumps(folders), _PREPARATION_TIMEOUT)
    )
    return stores or [_open_prepared(*store) for store in prepared]


def _open_prepared(folder: str, digest: str) -> TokenStore:
    store = find_store(folder, digest)
    if store is None:
        raise UserError(
            f"{folder} was prepared by process 0 and is not visible here: config.data.cache, or the"
            " workdir, must be a folder that all hosts share."
        )
    return store


def sets_of(config: Config, split: str) -> list[str]:
    """Return the sets that `split` selects, by the names that `split_source` accepts.

    `valid` selects all validation sets and `test` all test sets. Another name selects one set
    (`valid.NAME` for one of several validation sets). Raises UserError if there is none.
    """
    if split in ("valid", "test") and (names := list(_sets(config)[split])):
        return names
    _spec(config, split)
    return [split]


def split_source(task: DataTask, split: str) -> Source:
    """Return the source that config.data.train, .valid or .test names.

    All training sources are joined. If there are several sets, `split` is a name from `sets_of`.
    Raises UserError if there is none, or for training text with several references.
    """
    if split == "train":
        return _training_source(task)
    key, spec = _spec(task.config, split)
    of = key.partition(" ")[0].removeprefix("config.data.")
    try:
        return _open(task, of, split, spec, key)
    except UserError as error:
        if ";" in spec:
            raise UserError(
                f"{error}. Several sets need names: --config.data.{of}='{FORM}'."
            ) from None
        raise


def _open(task: DataTask, split: str, name: str, spec: str, key: str) -> Source:
    """Open the source `spec` of a split and apply the hooks."""
    source = task.of_set(name).open_source(spec, key=key)
    if split != "train" and source.reasons:
        raise UserError(
            f"{key} = {spec!r} drops pairs {' or '.join(source.reasons.values())}, but all pairs of"
            " validation and test sets are scored: write a file of those that you want."
        )
    if split != "train":
        source = ScoredPairs(source)
    for hook in data_hooks(task.config):
        source = hook.transform(split, name, source)
    return source


def _training_source(task: DataTask) -> Source:
    key, spec = _spec(task.config, "train")
    parts = []
    for name, one in task.config.data.train_sources.items():
        source = _open(task, "train", name, one, key)
        if source.reference_count > 1:
            raise UserError(
                f"{key} = {one!r} names {source.reference_count} targets, but training text is"
                " SRC,TGT. Several references are for config.data.valid and config.data.test."
            )
        parts.append(source)
    return parts[0] if len(parts) == 1 else JoinedSource(spec, parts)


def _sets(config: Config) -> dict[str, dict[str, str]]:
    """Return the sources of each split by set name; training text is one set."""
    d = config.data
    train = {"train": d.train} if d.train else {}
    return {"train": train, "valid": d.valid_sets, "test": d.test_sets}


def _spec(config: Config, split: str) -> tuple[str, str]:
    """Return (config key, source that it names) for a split or a named set."""
    sets = _sets(config)
    for key, specs in sets.items():
        if split in specs:
            name = "" if split == key else f" ({split.removeprefix(VALID_PREFIX)})"
            return f"config.data.{key}{name}", specs[split]
    if split in sets:
        empty = f"is empty: give --config.data.{split}=SRC,TGT or another source"
        several = f"names the sets {', '.join(sets[split])}: choose one of them"
        raise UserError(f"config.data.{split} {several if sets[split] else empty}.")
    known = ", ".join(sets["test"]) if set(sets["test"]) - {"test"} else "no named test sets"
    raise UserError(f"there is no test set {split!r}: config.data.test has {known}.")


def check_sources(task: DataTask, splits: Sequence[str] = ("train", "valid", "test")) -> None:
    """Open the sources of these splits and read the first pair of each.

    Errors are thus reported before training. Raises UserError for settings that the task does not
    support, and for a source that is missing, unreadable, empty or malformed.
    """
    task.validate_config()
    for split in splits:
        for name in sets_of(task.config, split) if getattr(task.config.data, split).strip() else ():
            for part in split_source(task, name).parts:
                try:
                    next(part.pairs())
                except OSError as error:
                    raise UserError(
                        f"config.data.{split} = {part.spec!r} cannot be read: {error}."
                    ) from None


def split_store(
    task: DataTask,
    workdir: epath.Path,
    split: str,
    tokenizers: TokenizerPair,
    group: ProcessGroup | None = None,
) -> TokenStore:
    """Return the token store of a split.

    Pairs of `valid` and of test sets are neither dropped nor truncated. All processes of a `group`
    must call this.
    """
    (store,) = _prepared_by_lead(group, lambda: [_split_store(task, workdir, split, tokenizers)])
    return store


def training_policies(config: Config) -> Policies:
    """Return the policies for data.train. Other splits keep every pair."""
    d = config.data
    filters = tuple(pair_filter for hook in data_hooks(config) for pair_filter in hook.filters())
    texts = any(hook.reads_texts for hook in data_hooks(config))
    return Policies(d.max_length, d.on_too_long, "drop", d.source_eos, filters, keep_texts=texts)


def _split_store(
    task: DataTask,
    workdir: epath.Path,
    split: str,
    tokenizers: TokenizerPair,
    report: Report = silent,
    source: Source | None = None,
) -> TokenStore:
    config, source = task.config, source or split_source(task, split)
    policies = Policies(2**31 - 1, "keep", "keep", config.data.source_eos)
    if split == "train":
        policies = training_policies(config)
    kind = next((key for key, names in _sets(config).items() if split in names), "test")
    digest = recipe_of(source, tokenizers, policies)[1]
    return prepare_split(
        source,
        tokenizers,
        epath.Path(_cache(config, workdir)) / f"{kind}-{digest[:12]}",
        policies,
        num_workers=config.data.num_workers,
        report=report,
        name=split,
    )


_TOKENIZER_KEYS = (
    "task tokenizer vocab_size joint_vocabulary tokenizer_sentences character_coverage"
    " byte_fallback normalization split_digits max_length on_too_long"
).split()


def _tokenizers(
    task: DataTask, workdir: epath.Path, source: Source, report: Report
) -> TokenizerPair:
    config = task.config
    data, folder = config.data, workdir / "tokenizer"
    cache = epath.Path(_cache(config, workdir))
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
    held_out = (name for split in ("valid", "test") for name in _sets(config)[split])
    for one in (source, *(split_source(task, name) for name in held_out)):
        _check_languages(pair.source, one)
    if not stored:
        pair.save(folder)
    elif stored.digest != pair.digest:
        raise _other_tokenizer(folder)
    return pair


def _check_symbols(tokenizer: Tokenizer, symbols: Mapping[str, str]) -> None:
    """Raise UserError if the tokenizer lacks a symbol, which it would spell as text."""
    for symbol, key in symbols.items():
        if symbol not in tokenizer.control_symbols:
            raise UserError(
                f"config.{key}: the source tokenizer has no control symbol {symbol}. A tokenizer"
                " that a run trains has it; one in config.data.tokenizer_model must be a"
                f" SentencePiece model trained with --control_symbols={','.join(symbols)}, and that"
                " of another run must have been made for them."
            )


def _check_languages(tokenizer: Tokenizer, source: Source) -> None:
    """Raise UserError if a part's first text lacks the symbol of its target language."""
    for part in source.parts if tokenizer.target_languages else ():
        first = next((text for text, _ in part.pairs() if text.strip()), "")
        if tokenizer.lacks_language(first):
            raise UserError(
                f"{part.spec}: the tokenizer has symbols of the languages to write"
                f" ({', '.join(tokenizer.target_languages)}), such as"
                f" <2{min(tokenizer.target_languages)}>, with one of which each source sentence"
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


def _cache(config: Config, workdir: epath.Path) -> str:
    return expand_home(config.data.cache, "config.data.cache") or str(workdir / "data")


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
