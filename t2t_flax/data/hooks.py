"""What extensions change in the data of a run: `registry.DATA_HOOKS` names modules, whose `hook(config)` makes one."""

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from t2t_flax.config import Config, parse_test_sets, parse_train_sources, parse_valid_sets
from t2t_flax.data.batching.batch_sampler import BatchSampler, MakeSampler
from t2t_flax.data.batching.layouts import MakeStream, plain_stream
from t2t_flax.data.encoding import PairFilter, Segmentation
from t2t_flax.data.sources.base import Source
from t2t_flax.data.starts import Direction, Starts, start_symbol
from t2t_flax.registry import DATA_HOOKS

if TYPE_CHECKING:
    from t2t_flax.data.dataset import Corpus


class DataHook:
    """What an extension changes in the data of a run; every method may be left out. Called in the order of registration."""

    def direction(self, name: str) -> Direction | None:
        """The languages of a source of data.train, a validation or a test set, by its name, in place of data.source_language and
        data.target_language. Its source sentences then begin with the token of the target language, see `data/starts.py`.
        """
        return None

    def transform(self, name: str, source: Source) -> Source:
        """A source of data.train, by its name (`train` without one), in place of `source`."""
        return source

    def symbols(self) -> Sequence[str]:
        """Words before source sentences, each of which a tokenizer that the run trains keeps as one piece."""
        return ()

    def segmentations(self) -> Sequence[Segmentation]:
        """Ways to tokenize the training pairs, each a token store, in place of the tokenizers' own; none to keep that."""
        return ()

    def filters(self) -> Sequence[PairFilter]:
        """Filters of the training pairs."""
        return ()

    def make_sampler(self) -> MakeSampler | None:
        """A function that makes the sampler of a store's updates, in place of `BatchSampler`."""
        return None

    def make_stream(self, make: MakeStream) -> MakeStream:
        """A function that makes the stream of the training pairs, from `make` of the hooks before this one."""
        return make

    def explain(self) -> Sequence[str]:
        """Lines of `explain` on the training data."""
        return ()

    def describe(self, corpus: "Corpus") -> Sequence[str]:
        """Lines on the prepared data, which `prepare` and `train` print."""
        return ()

    def record(self, name: str, starts: Starts) -> dict[str, Any]:
        """Entries on the data in the record of a validation or test set. starts: of the model."""
        return {}


def data_hooks(config: Config) -> list[DataHook]:
    """The hooks of a run."""
    return [module.hook(config) for module in DATA_HOOKS.of(config)]


def direction_of_set(config: Config, name: str) -> Direction | None:
    """The direction that a hook gives a training source, validation or test set; None for that of config.data."""
    return next(iter(_directions(config, [name])), None)


def _directions(config: Config, names: Iterable[str]) -> list[Direction]:
    hooks = data_hooks(config)
    return list(dict.fromkeys(found for name in names for hook in hooks if (found := hook.direction(name))))


def config_of_set(config: Config, name: str) -> Config:
    """The config with the languages of a training source, validation or test set."""
    direction = direction_of_set(config, name)
    return in_direction(config, direction) if direction else config


def in_direction(config: Config, direction: Direction) -> Config:
    """The config with these languages."""
    return config.with_values({"data.source_language": direction.source, "data.target_language": direction.target})


def trained_directions(config: Config) -> list[Direction]:
    """The directions that hooks give the sources of data.train."""
    return _directions(config, parse_train_sources(config.data.train))


def start_names(config: Config) -> list[str]:
    """The names of the tokens before source sentences with which a run is trained, sorted."""
    return sorted({direction.target for direction in trained_directions(config)})


def all_directions(config: Config, starts: Starts) -> list[Direction]:
    """The directions in which a model is used: those with training text, then others of its config's sets."""
    d = config.data
    if not starts.ids:
        return [Direction(d.source_language, d.target_language)]
    names = *parse_train_sources(d.train), *parse_valid_sets(d.valid), *parse_test_sets(d.test)
    return list(dict.fromkeys([*starts.directions, *_directions(config, names)]))


def symbols_of(config: Config) -> tuple[list[str], list[str]]:
    """(control symbols, to which no text is encoded; words that are found in the text) of a tokenizer for this config. Where
    target languages have control symbols, the words of hooks are some, too.
    """
    control = [start_symbol(name) for name in start_names(config)]
    words = sorted({word for hook in data_hooks(config) for word in hook.symbols()})
    return ([*control, *words], []) if control else ([], words)


def training_stream(config: Config) -> MakeStream:
    """The function that makes the stream of a run's training pairs."""
    hooks = data_hooks(config)
    sampler = next(filter(None, (hook.make_sampler() for hook in hooks)), BatchSampler)
    make: MakeStream = functools.partial(plain_stream, make_sampler=sampler)
    for hook in hooks:
        make = hook.make_stream(make)
    return make
