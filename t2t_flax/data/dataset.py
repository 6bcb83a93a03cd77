"""The data of a run: its tokenizers and token stores, prepared once and identified by digest."""

import dataclasses
import functools
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from etils import epath

from t2t_flax.config import Config, parse_test_sets, parse_train_sources
from t2t_flax.config.mixture_keys import parse_limits, parse_tags
from t2t_flax.config.named_sources import FORM
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.preprocess import Policies, ProgressCallback, prepare_split, recipe_of
from t2t_flax.data.sources.base import Source
from t2t_flax.data.sources.joined import JoinedSource, SourcePart
from t2t_flax.data.store.remote import find_store
from t2t_flax.data.store.token_store import TokenStore
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.data.tokenizers.segmentations import Segmentation
from t2t_flax.data.tokenizers.subword_nmt import read_codes, with_vocabulary
from t2t_flax.errors import UserError
from t2t_flax.filesystem import check_reachable
from t2t_flax.pretrained import run_folder

log = logging.getLogger("t2t_flax")


class DataTask(Protocol):
    """The part of a task (`t2t_flax.tasks`) that this package uses."""

    config: Config

    def open_source(self, spec: str, *, seed: int, key: str) -> Source: ...

    def train_tokenizers(self, source: Source) -> TokenizerPair: ...


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Tokenizers, the training store, and the validation store if the config names validation data."""

    tokenizers: TokenizerPair
    train: TokenStore
    valid: TokenStore | None
    samples: tuple[TokenStore, ...] = ()
    """With data.bpe_dropout, the training pairs in further segmentations."""


class ProcessGroup(Protocol):
    """The part of `distributed.coordination.ProcessGroup` that this module uses."""

    index: int
    count: int

    def broadcast(self, name: str, value: str = "", seconds: float = 0.0) -> str:
        """Process 0's `value`, in all processes; waits up to `seconds`."""


_PREPARATION_TIMEOUT = 7 * 24 * 3600.0
"""Seconds that other processes wait for process 0. Its failure ends their wait earlier."""


def prepare_corpus(
    task: DataTask,
    workdir: str | epath.Path,
    progress: Callable[[str], ProgressCallback] | None = None,
    group: ProcessGroup | None = None,
) -> Corpus:
    """Tokenizers (trained, given, or those of `train.init_from`) and token stores; existing ones are reused.

    `progress(split)` gives a callback `(pairs done, pairs in total or None)`. All processes of a `group` must call this:
    process 0 prepares with all its cores while the others wait, then all open the same stores. Raises UserError for
    every error in the data: missing or malformed files, too little text for the vocabulary, no pair left.
    """
    workdir = epath.Path(workdir)
    train, valid, *samples = _prepared_by_lead(group, lambda: _prepare(task, workdir, progress))
    return Corpus(TokenizerPair.load(workdir / "tokenizer"), train, valid, tuple(samples))


def _prepare(task: DataTask, workdir: epath.Path, progress) -> list[TokenStore | None]:
    config = task.config
    if not config.data.train:
        raise UserError(
            "config.data.train is empty: give --config.data.train=SRC,TGT (files), tfds:NAME:SPLIT or toy:train."
        )
    check_reachable(_cache(config, workdir))
    source = split_source(task, "train")
    source.fingerprint = functools.cache(source.fingerprint)  # it reads the whole corpus
    tokenizers = _tokenizers(task, workdir, source)
    train, *samples = (
        _split_store(task, workdir, "train", tokenizers, progress, segmentation, source)
        for segmentation in segmentations(config)
    )
    # Caches the update counts, which every start needs.
    Batches(train, config.data, seed=config.seed.data, samples=samples)
    valid = _split_store(task, workdir, "valid", tokenizers, progress) if config.data.valid else None
    return [train, valid, *samples]


def segmentations(config: Config) -> list[Segmentation | None]:
    """Those in which the training pairs are stored; None = the tokenizer's own."""
    d = config.data
    if not d.bpe_dropout:
        return [None]
    return [Segmentation(d.bpe_dropout, config.seed.data, number) for number in range(d.bpe_dropout_samples)]


def _prepared_by_lead(
    group: ProcessGroup | None, prepare: Callable[[], list[TokenStore | None]]
) -> list[TokenStore | None]:
    """Calls `prepare` on process 0 and returns its stores; the other processes wait and open the same ones."""
    if group is None or group.count == 1:
        return prepare()
    stores = prepare() if group.index == 0 else None
    folders = [store and (str(store.origin), store.digest) for store in stores or ()]
    prepared = json.loads(group.broadcast("prepared data", json.dumps(folders), _PREPARATION_TIMEOUT))
    return stores or [store and _open_prepared(*store) for store in prepared]


def _open_prepared(folder: str, digest: str) -> TokenStore:
    store = find_store(folder, digest)
    if store is None:
        raise UserError(
            f"{folder} was prepared by process 0 and is not visible here: config.data.cache, or the workdir, must be a "
            "folder that all hosts share, or an object store (gs://...)."
        )
    return store


def sets_of(config: Config, split: str) -> list[str]:
    """The sets that `split` selects, by the names that `split_source` accepts: `valid`, all test sets for `test`, or the
    one test set of that name. Raises UserError if there is none.
    """
    if split == "test" and (names := list(parse_test_sets(config.data.test))):
        return names
    _spec(config, split)
    return [split]


def split_source(task: DataTask, split: str) -> Source:
    """The source that config.data.train, .valid or .test names, for training all its sources joined; of several test sets the
    one named `split`. Raises UserError if there is none, or for training text with several references.
    """
    if split == "train":
        return _training_source(task)
    key, spec = _spec(task.config, split)
    try:
        return task.open_source(spec, seed=task.config.seed.data, key=key)
    except UserError as error:
        if key.startswith("config.data.test") and ";" in spec:
            raise UserError(f"{error}. Several test sets need names: --config.data.test='{FORM}'.") from None
        if split != "test" and key.startswith("config.data.test"):
            hint = f"{split!r} is read as the name of a test set; write a path that begins this way as ./{split}=..."
            raise UserError(f"{error}. ({hint})") from None
        raise


def _training_source(task: DataTask) -> Source:
    key, spec = _spec(task.config, "train")
    data = task.config.data
    tags, limits, parts = parse_tags(data), parse_limits(data), []
    for name, one in parse_train_sources(spec).items():
        source = task.open_source(one, seed=task.config.seed.data, key=key)
        if source.reference_count > 1:
            raise UserError(
                f"{key} = {one!r} names {source.reference_count} targets, but training text is SRC,TGT. Several "
                "references are for config.data.valid and config.data.test."
            )
        changed = name in tags or name in limits
        parts.append(SourcePart(source, tag=tags.get(name, ""), limit=limits.get(name, 0)) if changed else source)
    return parts[0] if len(parts) == 1 else JoinedSource(spec, parts)


def _spec(config: Config, split: str) -> tuple[str, str]:
    """(The config key, the source that it names) of a split or a named test set."""
    if split in ("train", "valid"):
        key, spec = f"config.data.{split}", getattr(config.data, split)
        if not spec:
            raise UserError(f"{key} is empty: give --{key}=SRC,TGT or another source.")
        return key, spec
    test_sets = parse_test_sets(config.data.test)
    if split in test_sets:
        return "config.data.test" + ("" if split == "test" else f" ({split})"), test_sets[split]
    if split == "test" and test_sets:
        raise UserError(f"config.data.test names the test sets {', '.join(test_sets)}: choose one of them.")
    if split == "test":
        raise UserError("config.data.test is empty: give --config.data.test=SRC,TGT or another source.")
    known = ", ".join(test_sets) if set(test_sets) - {"test"} else "no named test sets"
    raise UserError(f"there is no test set {split!r}: config.data.test has {known}.")


def check_sources(task: DataTask, splits: Sequence[str] = ("train", "valid", "test")) -> None:
    """Opens the sources of these splits and reads the first pair of each, so that errors are reported before training.
    Raises UserError for a source that is missing, unreadable, empty or malformed.
    """
    for split in splits:
        for name in sets_of(task.config, split) if getattr(task.config.data, split).strip() else ():
            for part in split_source(task, name).parts:
                first_pair(part, f"config.data.{split}")


def first_pair(source: Source, key: str) -> tuple[str, str]:
    """The first pair of a source. Raises UserError if there is none, or the files cannot be read."""
    try:
        return next(source.pairs())
    except OSError as error:
        raise UserError(f"{key} = {source.spec!r} cannot be read: {error}.") from None


def split_store(
    task: DataTask, workdir: epath.Path, split: str, tokenizers: TokenizerPair, group: ProcessGroup | None = None
) -> TokenStore:
    """The token store of a split. Pairs of `valid` and of test sets are neither dropped nor truncated. All processes of
    a `group` must call this.
    """
    (store,) = _prepared_by_lead(group, lambda: [_split_store(task, workdir, split, tokenizers)])
    return store


def training_policies(config: Config) -> Policies:
    """How pairs of data.train are handled; those of other splits are kept as they are."""
    d = config.data
    return Policies(d.max_length, d.on_too_long, d.empty_lines, d.source_eos, d.max_length_ratio, d.drop_duplicates)


def _split_store(
    task: DataTask,
    workdir: epath.Path,
    split: str,
    tokenizers: TokenizerPair,
    progress=None,
    segmentation: Segmentation | None = None,
    source: Source | None = None,
) -> TokenStore:
    config, source = task.config, source or split_source(task, split)
    data = config.data
    policies = Policies(2**31 - 1, "keep", "keep", data.source_eos)
    fingerprints = [source.fingerprint()]
    if split == "train":
        policies = training_policies(config)
        fingerprints += source.earlier_fingerprints
    kind = split if split in ("train", "valid") else "test"
    cache = epath.Path(_cache(config, workdir))
    parts = tokenizers.digest, policies.as_stored(), *([dataclasses.asdict(segmentation)] if segmentation else [])
    folders = [cache / f"{kind}-{_digest(fingerprint, *parts)}" for fingerprint in fingerprints]
    for folder, fingerprint in zip(folders, fingerprints, strict=True):
        if store := find_store(folder, recipe_of(fingerprint, tokenizers, policies, segmentation)[1]):
            return store
    report = progress(split) if progress else None
    options = dict(num_workers=data.num_workers, progress=report, segmentation=segmentation)
    return prepare_split(source, tokenizers, folders[0], policies, **options)


_TOKENIZER_KEYS = (
    "task tokenizer vocab_size joint_vocabulary tokenizer_sentences character_coverage byte_fallback normalization "
    "split_digits"
).split()


def _tokenizers(task: DataTask, workdir: epath.Path, source: Source) -> TokenizerPair:
    config = task.config
    data, folder = config.data, workdir / "tokenizer"
    cache = epath.Path(_cache(config, workdir))
    if config.train.init_from and config.train.init_vocabulary == "same":
        # A resumed run needs only its own folder: the run that it was initialized from may have been deleted.
        initial = run_folder(config.train.init_from) / "tokenizer"
        pair = TokenizerPair.load(folder if TokenizerPair.is_complete(folder) else initial)
    elif data.tokenizer == "subword_nmt":
        codes = read_codes(epath.Path(data.root or ".") / data.tokenizer_model)
        cached = cache / f"tokenizer-{_digest(source.fingerprint(), codes, data.joint_vocabulary)}"
        if not TokenizerPair.is_complete(cached):
            _subword_pair(codes, source, data.joint_vocabulary).save(cached)
        pair = TokenizerPair.load(cached)
        _check_vocab_size(pair, config)
    elif data.tokenizer_model:
        model_file = epath.Path(data.root or ".") / data.tokenizer_model
        was_deleted = TokenizerPair.is_complete(folder) and not model_file.exists()
        pair = TokenizerPair.load(folder if was_deleted else model_file)
        _check_vocab_size(pair, config)
    else:
        pair = _trained_tokenizers(task, folder, cache, source)
    if not TokenizerPair.is_complete(folder):
        pair.save(folder)
    elif TokenizerPair.load(folder).digest != pair.digest:
        raise UserError(
            f"{folder} is not the tokenizer of this config and data: the training text, or a tokenizer key, has changed "
            "since the run began. Use another --workdir."
        )
    return pair


def _trained_tokenizers(task: DataTask, folder: epath.Path, cache: epath.Path, source: Source) -> TokenizerPair:
    settings = {key: getattr(task.config.data, key) for key in _TOKENIZER_KEYS}
    fingerprints = source.fingerprint(), *source.earlier_fingerprints
    cached, *earlier = (cache / f"tokenizer-{_digest(fingerprint, settings)}" for fingerprint in fingerprints)
    if TokenizerPair.is_complete(folder):  # a run that an earlier version started
        digest = TokenizerPair.load(folder).digest
        for candidate in earlier:
            if TokenizerPair.is_complete(candidate) and TokenizerPair.load(candidate).digest == digest:
                return TokenizerPair.load(folder)
    if not TokenizerPair.is_complete(cached):
        log.info("training the tokenizer on %s", source.spec)
        task.train_tokenizers(source).save(cached)
    return TokenizerPair.load(cached)


def _subword_pair(codes: str, source: Source, joint: bool) -> TokenizerPair:
    if joint:
        joint_tokenizer = with_vocabulary(codes, itertools.chain.from_iterable(source.pairs()))
        return TokenizerPair(joint_tokenizer, joint_tokenizer)
    return TokenizerPair(*(with_vocabulary(codes, (pair[side] for pair in source.pairs())) for side in (0, 1)))


def _check_vocab_size(pair: TokenizerPair, config: Config) -> None:
    for side in ("source", "target"):
        size = getattr(pair, side).vocab_size
        if size > config.data.vocab_size:
            raise UserError(
                f"config.data.vocab_size = {config.data.vocab_size} is smaller than the {size} pieces of the {side} "
                f"tokenizer in config.data.tokenizer_model = {config.data.tokenizer_model}: set it to {size}."
            )
    if config.data.joint_vocabulary and pair.source.digest != pair.target.digest:
        raise UserError(
            f"config.data.tokenizer_model = {config.data.tokenizer_model} has two tokenizers: set "
            "config.data.joint_vocabulary = false and config.model.tie_embeddings = decoder."
        )


def _cache(config: Config, workdir: epath.Path) -> str:
    return config.data.cache or str(workdir / "data")


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
