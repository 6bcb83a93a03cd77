"""Hooks by which extensions change data: `hook(config)` of the modules in `registry.DATA_HOOKS`."""

from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from t2t_flax.config import Config
from t2t_flax.data.batching.layouts import PairReader, StoredPairs
from t2t_flax.data.batching.updates import MakeStream, plain_stream
from t2t_flax.data.corpus import Corpus
from t2t_flax.data.preprocess import PairFilter
from t2t_flax.data.sources import Source
from t2t_flax.data.token_store import TokenStore
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.registry import DATA_HOOKS


class DataHook:
    """Changes of an extension to the data of a run, called in the order of registration."""

    def config_of_set(self, config: Config, name: str) -> Config:
        """The config with which a source of data.train, a validation or a test set is read and scored, by its name."""
        return config

    def transform(self, split: str, name: str, source: Source) -> Source:
        """Return a source of data.train, data.valid or data.test ("train" | "valid" | "test"), by its name, in place of `source`;
        for "tokenizer", the `TokenizerText` on which a tokenizer is trained.
        """
        return source

    def symbols(self) -> Mapping[str, str]:
        """The control symbols that the source tokenizer must have, and the config key that asks for each."""
        return {}

    def tokenizer_folder(self) -> epath.Path | None:
        """Return a folder whose tokenizers a new run takes; None for its own."""
        return None

    draws = False
    """True if `draw` reads the pairs in place of the store, which then keeps their texts."""

    def draw(self, store: TokenStore | None, tokenizers: TokenizerPair) -> PairReader | None:
        """Return a reader of the training pairs, or None before there is a store. Raises UserError for tokenizers that lack
        something, before anything is written.
        """
        return None

    def filters(self) -> Sequence[PairFilter]:
        """Filters of the training pairs."""
        return ()

    def stream(self, make: MakeStream) -> MakeStream:
        """Return the function that makes the stream of the training pairs, given that of the hooks before this one."""
        return make

    def trained_tokens(self) -> int | None:
        """Tokens of a side that a run trains on at most; None for data.batch_tokens in each update."""
        return None

    def explain(self) -> Sequence[str]:
        """Lines of `explain` on the training data."""
        return ()

    def describe(self, corpus: Corpus) -> Sequence[str]:
        """Lines on the prepared data, which `prepare` and `train` print."""
        return ()

    def record(self, name: str, predictions: Any) -> dict[str, Any]:
        """Entries on the data in the record of a validation or test set; predictions: its `tasks.Predictions`."""
        return {}


def data_hooks(config: Config) -> list[DataHook]:
    """The hooks of a run."""
    return [module.hook(config) for module in DATA_HOOKS.of(config)]


def config_of_set(config: Config, name: str) -> Config:
    """The config with which a training source, validation or test set is read and scored."""
    for hook in data_hooks(config):
        config = hook.config_of_set(config, name)
    return config


def trained_tokens(config: Config) -> int:
    """Tokens of a side that a run trains on at most."""
    tokens = next(filter(None, (hook.trained_tokens() for hook in data_hooks(config))), None)
    return tokens or config.train.steps * config.data.batch_tokens


def control_symbols(config: Config) -> dict[str, str]:
    """The control symbols that the source tokenizer of this config must have, sorted, and the config key of each."""
    symbols = {symbol: key for hook in data_hooks(config) for symbol, key in hook.symbols().items()}
    return dict(sorted(symbols.items()))


def draws_pairs(config: Config) -> bool:
    """Return whether training pairs are drawn anew in each epoch, which needs their texts."""
    return any(hook.draws for hook in data_hooks(config))


def training_reader(config: Config, store: TokenStore, tokenizers: TokenizerPair) -> PairReader:
    """Return what reads the training pairs: the hook that draws them, or the store."""
    drawn = (hook.draw(store, tokenizers) for hook in data_hooks(config) if hook.draws)
    return next(drawn, None) or StoredPairs(store)


def training_stream(config: Config) -> MakeStream:
    """Return the function that makes the stream of a run's training pairs."""
    make: MakeStream = plain_stream
    for hook in data_hooks(config):
        make = hook.stream(make)
    return make
