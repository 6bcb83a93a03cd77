"""The engine that decodes for a restored run: the row of `registry.DECODERS` that config.decode.engine names."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax

from t2t_flax.config import Config
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.decoding.translator import Translation
from t2t_flax.errors import UserError
from t2t_flax.registry import DECODERS


class RestoredRun(Protocol):
    """What an engine needs of a run. opened: what an engine has made of the parameters, kept by a key of its own."""

    config: Config
    model: Any
    params: Any
    mesh: jax.sharding.Mesh
    tokenizers: TokenizerPair
    opened: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Engine:
    """name: as in decode.engine. version: of its package. type: of its matrices. translate: as `Translator.translate`, with
    the run's parameters. compile: as `Translator.compile`, likewise; nothing for an engine that does not compile.
    """

    name: str
    version: str
    type: str
    translate: Callable[..., list[Translation]]
    compile: Callable[[tuple[int, int, int]], None] = lambda shape: None

    def as_json(self) -> dict[str, str]:
        """The entry of an evaluation record."""
        return {"name": self.name, "version": self.version, "type": self.type}

    def __str__(self) -> str:
        return f"{self.name} {self.version}, {self.type}"


def make_engine(run: RestoredRun) -> Engine:
    """The engine of a restored run. Raises UserError if it cannot decode for this run on this machine."""
    check_engine(run.config)
    return DECODERS.load(run.config.decode.engine).make_engine(run)


def check_engine(config: Config) -> None:
    """Raises UserError if the engine cannot decode for a run of this config."""
    name = config.decode.engine
    if reason := DECODERS.load(name).obstacle(config):
        raise UserError(f"config.decode.engine = {name}: {reason}.")
