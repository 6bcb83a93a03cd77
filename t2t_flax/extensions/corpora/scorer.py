"""Filter by a user's function that scores pairs."""

import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import math
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from t2t_flax.errors import UserError, first_line
from t2t_flax.extensions.corpora.rules import Rule
from t2t_flax.files import expand_home


@dataclasses.dataclass(frozen=True)
class Scorer(Rule):
    """Drop pairs that a function scores below `least`.

    The function takes a list of (source, target) and returns a number for each. Each tokenizing
    process calls it with up to some thousand pairs at a time.

    Args:
        spec: value of filters.scorer.
    """

    reason: ClassVar[str] = "scorer"
    shown: ClassVar[str] = "scored too low"
    spec: str
    least: float

    @property
    def rule(self):
        return f"pairs that {self.spec} scores below {self.least:g}"

    def as_stored(self):
        path, _ = loaded(self.spec)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return {"scorer": self.spec.rpartition(":")[2], "scorer_file": digest, "score": self.least}

    def drops(self, pairs):
        return [
            score < self.least
            for score in self._scores([(pair.source, pair.target) for pair in pairs])
        ]

    def _scores(self, texts: list[tuple[str, str]]) -> Sequence[float]:
        path, function = loaded(self.spec)
        if not texts:
            return []
        try:
            # The function may change its list.
            scores = [float(score) for score in function([*texts])]
        except Exception as error:  # noqa: BLE001  (of the user's code)
            raise _failed(self.spec, path, error) from None
        if len(scores) != len(texts):
            raise UserError(
                f"{_shown(self.spec)} returned {len(scores)} scores for {len(texts)} pairs."
            )
        if wrong := [text for text, score in zip(texts, scores, strict=True) if math.isnan(score)]:
            raise UserError(f"{_shown(self.spec)} returned nan, not a number, for {wrong[0]}.")
        return scores


@functools.cache
def loaded(spec: str) -> tuple[Path, Callable[[list[tuple[str, str]]], Any]]:
    """Return the file and the function that a spec names.

    Raises UserError if there is none, or if importing it fails.
    """
    name, _, function = spec.rpartition(":")
    path = _file_of(spec, name)
    try:
        module = _import_file(path) if name.endswith(".py") else importlib.import_module(name)
    except Exception as error:  # noqa: BLE001  (of the user's code)
        raise _failed(spec, path, error) from None
    if not callable(found := getattr(module, function, None)):
        raise UserError(f"{_shown(spec)}: {path} has no function {function}.")
    return path, found


def _file_of(spec: str, name: str) -> Path:
    if name.endswith(".py"):
        path = Path(expand_home(name, _shown(spec)))
        if not path.is_file():
            where = "" if path.is_absolute() else f" (relative to {os.getcwd()})"
            raise UserError(f"{_shown(spec)}: there is no file {path}{where}.")
        return path.resolve()
    try:
        found = importlib.util.find_spec(name)
    except Exception as error:  # noqa: BLE001  (of the packages that hold the module, which are imported)
        if not (isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")):
            raise UserError(
                f"{_shown(spec)}: the package of {name} cannot be imported: {type(error).__name__}:"
                f" {first_line(error)}"
            ) from None
        found = None
    if not (found and found.origin and Path(found.origin).is_file()):
        raise UserError(
            f"{_shown(spec)}: Python finds no module {name}; expected FILE.py:FUNCTION or"
            " PACKAGE.MODULE:FUNCTION."
        )
    return Path(found.origin)


def _import_file(path: Path) -> ModuleType:
    """Return the module of a file.

    It is also in `sys.modules`, for dataclasses and pickle.
    """
    name = f"scorer_{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _failed(spec: str, path: Path, error: Exception) -> UserError:
    """Return an error for a failure in the user's code, with its last line there."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    line = (
        getattr(error, "lineno", None)
        if isinstance(error, SyntaxError)
        else frames[-1].lineno
        if frames
        else None
    )
    where = f"{path} line {line}" if line else str(path)
    return UserError(f"{_shown(spec)}: {where}: {type(error).__name__}: {first_line(error)}")


def _shown(spec: str) -> str:
    return f"config.filters.scorer = {spec!r}"
