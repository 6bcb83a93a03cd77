"""The engine that decodes for a restored run (config.decode.engine): the JAX search, or CTranslate2 on the CPU."""

import dataclasses
import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from t2t_flax.config import Config
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.decoding.translator import Translation, Translator
from t2t_flax.errors import UserError, install_hint
from t2t_flax.interop import ctranslate2_export, ctranslate2_translator
from t2t_flax.interop.exported_cache import digest_of, open_exported

log = logging.getLogger("t2t_flax")
FOLDER = "~/.cache/t2t_flax/ctranslate2"
"""Where exported models are kept: never in a run's folder, which is untrusted input and could bring another model."""


class RestoredRun(Protocol):
    """What an engine needs of a run. opened: keeps exported models, with their parameters, by their type of matrices."""

    config: Config
    model: Any
    params: Any
    mesh: jax.sharding.Mesh
    tokenizers: TokenizerPair
    opened: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Engine:
    """name: "jax" or "ctranslate2". version: of its package. type: of its matrices. translate: as `Translator.translate`, with
    the run's parameters. compile: as `Translator.compile`, likewise. reason: why decode.engine = auto chose JAX.
    """

    name: str
    version: str
    type: str
    translate: Callable[..., list[Translation]]
    reason: str = ""
    compile: Callable[[tuple[int, int, int]], None] = lambda shape: None

    def as_json(self) -> dict[str, str]:
        """The entry of an evaluation record."""
        return {"name": self.name, "version": self.version, "type": self.type}

    def __str__(self) -> str:
        return f"{self.name} {self.version}, {self.type}" + (f" ({self.reason})" if self.reason else "")


def make_engine(run: RestoredRun) -> Engine:
    """The engine of a restored run. Raises UserError if decode.engine = ctranslate2 cannot be had."""
    config = run.config
    translator = Translator(run.model, run.tokenizers, run.mesh, config.decode, source_eos=config.data.source_eos)
    translate = functools.partial(translator.translate, run.params)
    compile_shape = functools.partial(translator.compile, run.params)
    by_jax = Engine("jax", jax.__version__, np.dtype(run.model.dtype).name, translate, compile=compile_shape)
    if config.decode.engine == "jax":
        return by_jax
    check_engine(config)
    reason = obstacle(config) or _obstacle_here(run)
    if reason is None:
        return _ctranslate2(run, translate)
    if config.decode.engine == "ctranslate2":
        raise UserError(f"config.decode.engine = ctranslate2: {reason}.")
    log.info("config.decode.engine = auto: JAX instead of CTranslate2: %s", reason)
    return dataclasses.replace(by_jax, reason=f"not CTranslate2: {reason}")


def check_engine(config: Config) -> None:
    """Raises UserError if decode.engine = ctranslate2 cannot be had for a run of this config."""
    reason = obstacle(config) if config.decode.engine == "ctranslate2" else None
    if reason:
        raise UserError(f"config.decode.engine = ctranslate2: {reason}.")


def is_current(record: dict[str, Any], config: Config) -> bool:
    """Whether a run of this config would be decoded by the engine, in the same version, that an evaluation record names."""
    wanted, stored = config.decode.engine, record.get("engine") or {"name": "jax"}
    if stored["name"] == "ctranslate2":
        return wanted != "jax" and stored["version"] == installed_version()
    return wanted == "jax" or wanted == "auto" and bool(obstacle(config) or record["hardware"]["device"] != "cpu")


def obstacle(config: Config) -> str | None:
    """Why CTranslate2 cannot decode for a run of this config as the JAX search does; None if it can."""
    search, model = config.decode, config.model
    different = ctranslate2_translator.search_difference(search) or ctranslate2_translator.length_difference(
        search, model
    )
    if different:
        return different
    if search.engine == "auto" and search.precision == "bfloat16":
        return "its products are in float32, those of config.decode.precision = bfloat16 are not"
    try:
        ctranslate2_export.check_exportable(config.model)
    except UserError as error:
        return str(error).rstrip(".")
    if installed_version() is None:
        return f"the package ctranslate2 is not installed: {install_hint('ctranslate2')}"
    return None


def _obstacle_here(run: RestoredRun) -> str | None:
    """Why CTranslate2 cannot decode for this run on this machine."""
    if any(device.process_index != jax.process_index() for device in run.mesh.devices.flat):
        return "the parameters are divided among several processes; use one"
    device = run.mesh.devices.flat[0]
    if run.config.decode.engine == "auto" and device.platform != "cpu":
        return f"JAX decodes on {device.device_kind}"
    return None


def installed_version() -> str | None:
    """Of the package ctranslate2; None if it is not installed."""
    try:
        import ctranslate2  # an installed package may still fail to load

        return ctranslate2.__version__
    except ImportError:
        return None


def _ctranslate2(run: RestoredRun, jax_translate: Callable[..., list[Translation]]) -> Engine:
    config, kind = run.config, run.config.decode.quantization
    params, exported = run.opened.get(kind, (None, None))
    if params is not run.params:
        exported = _exported(run, kind)
        run.opened[kind] = (run.params, exported)
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
