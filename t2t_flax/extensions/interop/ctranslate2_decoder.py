"""CTranslate2 on the CPU as an engine (decode.engine = ctranslate2), for settings under which it follows the same rules as the
JAX search.
"""

import dataclasses
import functools
import os
from pathlib import Path
from typing import Any

import jax

from t2t_flax.config import Config
from t2t_flax.errors import UserError, install_hint
from t2t_flax.evaluation import jax_engine
from t2t_flax.evaluation.engine import Engine, RestoredRun
from t2t_flax.extensions.interop import ctranslate2_export, ctranslate2_translator
from t2t_flax.extensions.interop.exported_cache import digest_of, open_exported
from t2t_flax.extensions.interop.keys import CTranslate2

FOLDER = "~/.cache/t2t_flax/ctranslate2"
"""Where exported models are kept: never in a run's folder, which is untrusted input and could bring another model."""


def obstacle(config: Config) -> str | None:
    """Why CTranslate2 cannot decode for a run of this config as the JAX search does; None if it can."""
    search, model = config.decode, config.model
    different = ctranslate2_translator.search_difference(search) or ctranslate2_translator.length_difference(
        search, model
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


def make_engine(run: RestoredRun) -> Engine:
    """CTranslate2 with the run's parameters. Raises UserError if they are divided among several processes."""
    if any(device.process_index != jax.process_index() for device in run.mesh.devices.flat):
        raise UserError(
            "config.decode.engine = ctranslate2: the parameters are divided among several processes; use one."
        )
    config, kind = run.config, CTranslate2.of(run.config).quantization
    params, exported = run.opened.get(kind, (None, None))
    if params is not run.params:
        exported = _exported(run, kind)
        run.opened[kind] = (run.params, exported)
    jax_translate = jax_engine.make_engine(run).translate
    translator = ctranslate2_translator.CTranslate2Translator(
        exported,
        run.tokenizers,
        config.model,
        config.decode,
        lambda lines, prefixes, starts: jax_translate(lines, prefixes=prefixes, starts=starts),
        source_eos=config.data.source_eos,
    )
    return Engine("ctranslate2", installed_version() or "", kind, translator.translate)


def _exported(run: RestoredRun, kind: str) -> Any:
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
    return open_exported(Path(FOLDER).expanduser(), f"{kind}-{name}", write, functools.partial(_open, kind=kind))


def _open(folder: Path, kind: str) -> Any:
    """A search on each core of this process, each with one thread: faster than several threads for a search, and its results do
    not depend on the number of cores.
    """
    import ctranslate2

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ctranslate2.Translator(str(folder), compute_type=kind, inter_threads=cores, intra_threads=1)
