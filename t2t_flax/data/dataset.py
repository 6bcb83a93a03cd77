"""Tokenizers and token stores of a run, prepared once and identified by digest."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from etils import epath

from t2t_flax.config import Config
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.file_hashes import INDEX, hash_files
from t2t_flax.data.hooks import data_hooks, training_policies, training_stream
from t2t_flax.data.preprocess import Policies, prepare_split, recipe_of
from t2t_flax.data.progress import Report, silent
from t2t_flax.data.run_tokenizers import tokenizers_of_run
from t2t_flax.data.sources import Source
from t2t_flax.data.splits import DataTask, sources_by_split, split_source
from t2t_flax.data.token_store import TokenStore, find_store
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.files import check_reachable, expand_home

_PREPARATION_TIMEOUT = 7 * 24 * 3600.0
"""Seconds that other processes wait for process 0.

Its failure ends the wait earlier.
"""


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
    """Return lines about the training pairs, also from extensions."""
    lines = (line for hook in data_hooks(config) for line in hook.describe(corpus.train))
    return "\n".join([corpus.train.describe(list(config.data.train_sources)), *lines])


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
    cache = _cache(config, workdir)
    check_reachable(cache)
    training_policies(config).as_stored()  # report errors before minutes of hashing and training
    source, sets = split_source(task, "train"), sources_by_split(config)
    held_out = [split_source(task, name) for name in (*sets["valid"], *sets["test"])]
    hash_files((file for one in (source, *held_out) for file in one.files), cache / INDEX, report)
    folder = workdir / "tokenizer"
    tokenizers = tokenizers_of_run(task, folder, cache, source, held_out, report)
    train = _split_store(task, workdir, "train", tokenizers, report, source)
    report("plan the updates", 0, None, "")  # caches their counts, which every start needs
    _ = batches_of(config, Corpus(tokenizers, train, {})).updates_per_epoch
    names = config.data.valid_sets
    return [*(_split_store(task, workdir, name, tokenizers, report) for name in names), train]


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
    kind = next((key for key, names in sources_by_split(config).items() if split in names), "test")
    digest = recipe_of(source, tokenizers, policies)[1]
    return prepare_split(
        source,
        tokenizers,
        _cache(config, workdir) / f"{kind}-{digest[:12]}",
        policies,
        num_workers=config.data.num_workers,
        report=report,
        name=split,
    )


def _cache(config: Config, workdir: epath.Path) -> epath.Path:
    return epath.Path(expand_home(config.data.cache, "config.data.cache") or workdir / "data")
