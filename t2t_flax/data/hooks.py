"""What extensions change in the data of a run: `registry.DATA_HOOKS` names modules, whose `hook(config)` makes one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from t2t_flax.config import Config
from t2t_flax.data.batching.layouts import MakeStream, plain_stream
from t2t_flax.data.batching.mixture import mixed_stream
from t2t_flax.data.preprocess import Segmentation
from t2t_flax.registry import DATA_HOOKS

if TYPE_CHECKING:
    from t2t_flax.data.dataset import Corpus


class DataHook:
    """What an extension changes in the data of a run; every method may be left out. Called in the order of registration."""

    def segmentations(self) -> Sequence[Segmentation]:
        """Ways to tokenize the training pairs, each a token store, in place of the tokenizers' own; none to keep that."""
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


def training_stream(config: Config) -> MakeStream:
    """The function that makes the stream of a run's training pairs."""
    make = mixed_stream(plain_stream)
    for hook in data_hooks(config):
        make = hook.make_stream(make)
    return make
