"""Trained models that ship with the package: `pretrained:NAME` names one wherever the workdir of a run is read.

NAME/ is what `export --format=safetensors` writes, with the evaluation record of those weights (docs/toy.md).
"""

import os
from pathlib import Path

from etils import epath

from t2t_flax.errors import UserError

PREFIX = "pretrained:"
_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The models of this package, for example ["toy"]."""
    return sorted(path.parent.name for path in _FOLDER.glob("*/model.safetensors"))


def is_pretrained(workdir: epath.PathLike) -> bool:
    """Whether it is `pretrained:NAME`, a model that can only be read."""
    return os.fspath(workdir).startswith(PREFIX)


def run_folder(workdir: epath.PathLike) -> epath.Path:
    """The folder that a workdir names: of `pretrained:NAME` the one in this package, of anything else the path itself.
    Raises UserError for an unknown NAME.
    """
    if not is_pretrained(workdir):
        return epath.Path(workdir)
    name = os.fspath(workdir).removeprefix(PREFIX)
    if name not in names():
        known = ", ".join(PREFIX + other for other in names())
        raise UserError(f"there is no {PREFIX}{name}: the package has {known}.")
    return epath.Path(_FOLDER / name)


def check_writable(workdir: epath.PathLike, remedy: str) -> None:
    """Raises UserError, ending with the remedy, for `pretrained:NAME`."""
    if is_pretrained(workdir):
        raise UserError(f"{workdir} is part of the package, where nothing is written: {remedy}.")
