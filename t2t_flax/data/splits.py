"""Sources of a run: the training text, and the validation and test sets, by name."""

from collections.abc import Sequence
from typing import Protocol

from t2t_flax.config import Config
from t2t_flax.config.data_keys import FORM, VALID_PREFIX
from t2t_flax.data.hooks import data_hooks
from t2t_flax.data.sources import JoinedSource, ScoredPairs, Source
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError


class DataTask(Protocol):
    """Part of a task (`t2t_flax.tasks`) that this package uses."""

    config: Config
    tokenizer_keys: Sequence[str]

    def of_set(self, name: str) -> "DataTask": ...

    def validate_config(self) -> None: ...

    def open_source(self, spec: str, *, key: str) -> Source: ...

    def train_tokenizers(self, source: Source) -> TokenizerPair: ...


def sets_of(config: Config, split: str) -> list[str]:
    """Return the sets that `split` selects, by the names that `split_source` accepts.

    `valid` selects all validation sets and `test` all test sets. Another name selects one set
    (`valid.NAME` for one of several validation sets). Raises UserError if there is none.
    """
    if split in ("valid", "test") and (names := list(sources_by_split(config)[split])):
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


def sources_by_split(config: Config) -> dict[str, dict[str, str]]:
    """Return the sources of each split by set name; training text is one set."""
    d = config.data
    train = {"train": d.train} if d.train else {}
    return {"train": train, "valid": d.valid_sets, "test": d.test_sets}


def _spec(config: Config, split: str) -> tuple[str, str]:
    """Return (config key, source that it names) for a split or a named set."""
    sets = sources_by_split(config)
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
