"""Data hooks of extensions; see `registry.Group.data_hook`."""

from collections.abc import Mapping, Sequence

from etils import epath

from t2t_flax.config import Config
from t2t_flax.data.batching.updates import MakeStream, plain_stream
from t2t_flax.data.preprocess import PairFilter, Policies
from t2t_flax.data.sources import Source
from t2t_flax.data.token_store import TokenStore
from t2t_flax.data.tokenizers import TokenizerPair


class DataHook:
    """Changes of an extension to the data of a run.

    Hooks run in the order of registration.
    """

    def config_of_set(self, config: Config, name: str) -> Config:
        """Return the config for reading and scoring one data set.

        Args:
            name: name of a source of data.train, of a validation set or of a test set.
        """
        return config

    def transform(self, split: str, name: str, source: Source) -> Source:
        """Return the source to use in place of `source`.

        Args:
            split: "train", "valid" or "test"; "tokenizer" for the text that trains a tokenizer.
            name: name of the source in data.train, data.valid or data.test.
            source: for "tokenizer", a `TokenizerText`.
        """
        return source

    def filters(self) -> Sequence[PairFilter]:
        """Return filters of the training pairs."""
        return ()

    def symbols(self) -> Mapping[str, str]:
        """Return the control symbols that the source tokenizer needs.

        The values are the config keys that ask for them.
        """
        return {}

    def tokenizer_folder(self) -> epath.Path | None:
        """Return a folder whose tokenizers a new run uses, or None for its own tokenizers."""
        return None

    reads_texts = False
    """True if the stream reads the texts of the pairs, which the store then keeps."""

    def stream(self, make: MakeStream, tokenizers: TokenizerPair) -> MakeStream:
        """Return the function that makes the stream of the training pairs.

        Raises UserError, before anything is written, if the tokenizers lack something.

        Args:
            make: the function from the hooks before this one.
        """
        return make

    def trained_tokens(self) -> int | None:
        """Return the maximum number of tokens per side that a run trains on.

        None stands for data.batch_tokens in each update.
        """
        return None

    def describe(self, store: TokenStore | None) -> Sequence[str]:
        """Return lines about the training data.

        Args:
            store: the prepared data, for `prepare` and `train`; None for `explain`.
        """
        return ()

    def record(self, name: str) -> dict[str, object]:
        """Return entries about the data for the record of a validation or test set."""
        return {}


def data_hooks(config: Config) -> list[DataHook]:
    """Return the hooks of a config, in the order of registration."""
    hooks = (group.data_hook(config) for group in config.extension_groups.values())
    return [hook for hook in hooks if hook]


def config_of_set(config: Config, name: str) -> Config:
    """Return the config for reading and scoring one data set, see `DataHook.config_of_set`."""
    for hook in data_hooks(config):
        config = hook.config_of_set(config, name)
    return config


def trained_tokens(config: Config) -> int:
    """Return the maximum number of tokens per side that a run trains on."""
    tokens = next(filter(None, (hook.trained_tokens() for hook in data_hooks(config))), None)
    return tokens or config.train.steps * config.data.batch_tokens


def control_symbols(config: Config) -> dict[str, str]:
    """Return the control symbols that the source tokenizer needs, sorted.

    The values are the config keys that ask for them.
    """
    symbols = {symbol: key for hook in data_hooks(config) for symbol, key in hook.symbols().items()}
    return dict(sorted(symbols.items()))


def training_policies(config: Config) -> Policies:
    """Return the policies for data.train. Other splits keep every pair."""
    d = config.data
    filters = tuple(pair_filter for hook in data_hooks(config) for pair_filter in hook.filters())
    texts = any(hook.reads_texts for hook in data_hooks(config))
    return Policies(d.max_length, d.on_too_long, "drop", d.source_eos, filters, keep_texts=texts)


def training_stream(config: Config, tokenizers: TokenizerPair) -> MakeStream:
    """Return the function that makes the stream of a run's training pairs."""
    make: MakeStream = plain_stream
    for hook in data_hooks(config):
        make = hook.stream(make, tokenizers)
    return make
