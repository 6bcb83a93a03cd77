"""CTranslate2 on the CPU as an engine (decode.engine = ctranslate2), for settings under which it follows the same rules as the
JAX search.
"""

import dataclasses
import functools
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from t2t_flax.config import Config
from t2t_flax.decoding.translator import Decoder, JaxDecoder, Translation
from t2t_flax.errors import UserError, install_hint
from t2t_flax.extensions.interop import CTranslate2, ctranslate2_export, ctranslate2_translator
from t2t_flax.extensions.interop.exported_cache import digest_of, open_exported

if TYPE_CHECKING:
    from t2t_flax.evaluation.restore import TrainedModel

FOLDER = "~/.cache/t2t_flax/ctranslate2"
"""Where exported models are kept: never in a run's folder, which is untrusted input and could bring another model."""


_OPEN: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""Models in memory, by the name of their folder: decoders with the same parameters share them."""


class CTranslate2Decoder(Decoder):
    """CTranslate2 with a model's parameters. Raises UserError if they are divided among several processes."""

    name = "ctranslate2"

    def __init__(self, model: "TrainedModel"):
        if any(device.process_index != jax.process_index() for device in model.mesh.devices.flat):
            raise UserError(
                "config.decode.engine = ctranslate2: the parameters are divided among several processes; use one."
            )
        config = model.config
        self.version, self.dtype = installed_version() or "", CTranslate2.of(config).quantization
        jax_translate = JaxDecoder(model).translate
        self._translator = ctranslate2_translator.CTranslate2Translator(
            _exported(model, self.dtype),
            model.tokenizers,
            config.model,
            config.decode,
            lambda lines, prefixes: jax_translate(lines, prefixes=prefixes),
            source_eos=config.data.source_eos,
        )

    @staticmethod
    def check(config: Config) -> None:
        """Raises UserError if CTranslate2 cannot decode for a run of this config as the JAX search does."""
        if reason := _obstacle(config):
            raise UserError(f"config.decode.engine = ctranslate2: {reason}.")

    def translate(self, lines, **options) -> list[Translation]:
        """See `Decoder`."""
        return self._translator.translate(lines, **options)


def _obstacle(config: Config) -> str | None:
    different = ctranslate2_translator.search_difference(config.decode) or ctranslate2_translator.length_difference(
        config.decode, config.model
    )
    if different:
        return different
    try:
        ctranslate2_export.check_exportable(config.model)
    except UserError as error:
        return str(error).rstrip(".")
    if installed_version() is None:
        return f"the package ctranslate2 is not installed: {install_hint('ctranslate2')}"
    return None


def installed_version() -> str | None:
    """Of the package ctranslate2; None if it is not installed."""
    try:
        import ctranslate2  # an installed package may still fail to load

        return ctranslate2.__version__
    except ImportError:
        return None


def _exported(run: "TrainedModel", kind: str) -> Any:
    """The run's model in CTranslate2, from the disk if these parameters were exported before."""
    model, sides = run.config.model, (run.tokenizers.source, run.tokenizers.target)
    vocabularies = tuple([str(i) for i in range(side.vocab_size)] for side in sides)

    def write(folder: Path) -> None:
        ctranslate2_export.write_ctranslate2(
            folder, model, run.params, vocabularies, source_eos=False, quantization=kind
        )  # EOS is among the ids

    exporter = Path(ctranslate2_export.__file__).read_text()
    sizes = list(map(len, vocabularies))
    name = digest_of(run.params, dataclasses.asdict(model), sizes, kind, exporter, installed_version())
    name = f"{kind}-{name}"
    if (opened := _OPEN.get(name)) is None:
        opened = open_exported(Path(FOLDER).expanduser(), name, write, functools.partial(_open, kind=kind))
        _OPEN[name] = opened
    return opened


def _open(folder: Path, kind: str) -> Any:
    """A search on each core of this process, each with one thread: faster than several threads for a search, and its results do
    not depend on the number of cores.
    """
    import ctranslate2

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ctranslate2.Translator(str(folder), compute_type=kind, inter_threads=cores, intra_threads=1)
