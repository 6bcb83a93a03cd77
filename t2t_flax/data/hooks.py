"""Hooks by which extensions change data: `hook(config)` of the modules in `registry.DATA_HOOKS`."""

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from t2t_flax.config import Config
from t2t_flax.data.batching.batch_sampler import BatchSampler, MakeSampler
from t2t_flax.data.batching.layouts import MakeStream, plain_stream
from t2t_flax.data.batching.window_layouts import Draw
from t2t_flax.data.preprocess import PairFilter
from t2t_flax.data.sources import Source
from t2t_flax.data.token_store import TokenStore
from t2t_flax.data.tokenizer_text import TokenizerText
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.registry import DATA_HOOKS

if TYPE_CHECKING:
    from t2t_flax.data.dataset import Corpus


class DataHook:
    """Changes of an extension to the data of a run, called in the order of registration."""

    def config_of_set(self, config: Config, name: str) -> Config:
        """The config with which a source of data.train, a validation or a test set is read and scored, by its name."""
        return config

    def transform(self, split: str, name: str, source: Source) -> Source:
        """A source of data.train, data.valid or data.test ("train" | "valid" | "test"), by its name, in place of `source`."""
        return source

    def symbols(self) -> Mapping[str, str]:
        """The control symbols that the source tokenizer must have, and the config key that asks for each."""
        return {}

    def tokenizer_text(self, text: TokenizerText) -> TokenizerText:
        """The text on which a tokenizer is trained, in place of `text`. One hook may change it."""
        return text

    def check_tokenizers(self, tokenizers: TokenizerPair) -> None:
        """Raises UserError if they lack something, before anything is written."""

    draws = False
    """True if `draw` draws the pairs anew in each pass; their store then keeps the texts."""

    def draw(self, store: TokenStore, tokenizers: TokenizerPair) -> Draw | None:
        """Return a `Draw` of the training pairs, which replaces the stored ids."""
        return None

    def filters(self) -> Sequence[PairFilter]:
        """Filters of the training pairs."""
        return ()

    def make_sampler(self) -> MakeSampler | None:
        """A function that makes the sampler of a store's updates, in place of `BatchSampler`."""
        return None

    def make_stream(self, make: MakeStream) -> MakeStream:
        """A function that makes the stream of the training pairs, from `make` of the hooks before this one."""
        return make

    def trained_tokens(self) -> int | None:
        """Tokens of a side that a run trains on at most; None for data.batch_tokens in each update."""
        return None

    def explain(self) -> Sequence[str]:
        """Lines of `explain` on the training data."""
        return ()

    def describe(self, corpus: "Corpus") -> Sequence[str]:
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
    """Return whether training pairs are drawn anew in each pass, which needs their texts."""
    return any(hook.draws for hook in data_hooks(config))


def drawn_pairs(config: Config, store: TokenStore, tokenizers: TokenizerPair) -> Draw | None:
    """Return the hook's `Draw` of the training store; None without one."""
    return next((hook.draw(store, tokenizers) for hook in data_hooks(config) if hook.draws), None)


def training_stream(config: Config, tokenizers: TokenizerPair | None = None) -> MakeStream:
    """The function that makes the stream of a run's training pairs. tokenizers: needed where `draws_pairs`."""
    hooks = data_hooks(config)
    sampler = next(filter(None, (hook.make_sampler() for hook in hooks)), BatchSampler)

    def draw(store: TokenStore) -> Draw | None:
        return drawn_pairs(config, store, tokenizers) if tokenizers else None

    make: MakeStream = functools.partial(plain_stream, make_sampler=sampler, make_draw=draw)
    for hook in hooks:
        make = hook.make_stream(make)
    return make
