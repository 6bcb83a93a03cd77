"""What decodes for a trained model: the row of `registry.DECODERS` that config.decode.engine names."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from t2t_flax.config import Config
from t2t_flax.decoding.translator import Translation, Translator
from t2t_flax.registry import DECODERS

if TYPE_CHECKING:
    from t2t_flax.evaluation.restore import TrainedModel


class Decoder:
    """A class made from a trained model. name: as in decode.engine. version: of its package. dtype: of its matrices. Records
    name all three.
    """

    name: str
    version: str
    dtype: str

    @staticmethod
    def check(config: Config) -> None:
        """Raises UserError if it cannot decode for a run of this config on this machine."""

    def translate(
        self,
        lines: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        starts: Sequence[Sequence[int]] | None = None,
        first_line: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Translation]:
        """One Translation per line, in order; arguments as of `Translator.translate`."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.name} {self.version}, {self.dtype}"


class JaxDecoder(Decoder):
    """Beam search, greedy search and sampling on the devices of the model's mesh."""

    name, version = "jax", jax.__version__

    def __init__(self, model: "TrainedModel"):
        config = model.config
        self.dtype, self._params = np.dtype(model.model.dtype).name, model.params
        self._translator = Translator(
            model.model, model.tokenizers, model.mesh, config.decode, source_eos=config.data.source_eos
        )

    def translate(self, lines, **options) -> list[Translation]:
        """See `Decoder`."""
        return self._translator.translate(self._params, lines, **options)

    def compile(self, shape: tuple[int, int, int]) -> None:
        """See `Translator.compile`."""
        self._translator.compile(self._params, shape)


def check_decoder(config: Config) -> None:
    """Raises UserError if the decoder of this config cannot be had."""
    DECODERS.load(config.decode.engine).check(config)


def make_decoder(model: "TrainedModel") -> Decoder:
    """The decoder of a trained model. Raises UserError if it cannot be had."""
    check_decoder(model.config)
    return DECODERS.load(model.config.decode.engine)(model)
