"""What extensions change in the data of a run: `registry.DATA_HOOKS` names modules, whose `hook(config)` makes one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from t2t_flax.config import Config
from t2t_flax.config.directions import language_token, target_languages
from t2t_flax.data.batching.layouts import MakeStream, plain_stream
from t2t_flax.data.encoding import PairFilter, Segmentation
from t2t_flax.data.sources.base import Source
from t2t_flax.registry import DATA_HOOKS

if TYPE_CHECKING:
    from t2t_flax.data.dataset import Corpus


class DataHook:
    """What an extension changes in the data of a run; every method may be left out. Called in the order of registration."""

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

    def make_stream(self, make: MakeStream) -> MakeStream:
        """A function that makes the stream of the training pairs, from `make` of the hooks before this one."""
        return make

    def explain(self) -> Sequence[str]:
        """Lines of `explain` on the training data."""
        return ()

    def describe(self, corpus: "Corpus") -> Sequence[str]:
        """Lines on the prepared data, which `prepare` and `train` print."""
        return ()


def data_hooks(config: Config) -> list[DataHook]:
    """The hooks of a run."""
    return [module.hook(config) for module in DATA_HOOKS.of(config)]


def symbols_of(config: Config) -> tuple[list[str], list[str]]:
    """(control symbols, to which no text is encoded; words that are found in the text) of a tokenizer for this config. Where
    languages have control symbols, the words of extensions are some, too.
    """
    control = [language_token(language) for language in target_languages(config.data)]
    words = sorted({word for hook in data_hooks(config) for word in hook.symbols()})
    return ([*control, *words], []) if control else ([], words)


def training_stream(config: Config) -> MakeStream:
    """The function that makes the stream of a run's training pairs."""
    make = plain_stream
    for hook in data_hooks(config):
        make = hook.make_stream(make)
    return make
