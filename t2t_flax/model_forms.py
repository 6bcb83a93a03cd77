"""Models that --workdir can name in place of a run; extensions open them."""

import dataclasses
import importlib
import os
from typing import TYPE_CHECKING, Any, Protocol

from etils import epath

from t2t_flax.errors import UserError
from t2t_flax.registry import Table, load_extensions

if TYPE_CHECKING:
    from t2t_flax.config import Config


class StoredModel(Protocol):
    """A model without its run.

    Attributes:
        config: config of the run that it comes from.
        steps: updates whose mean the parameters are, newest first.
        tokenizer: digest of its tokenizers, which are in `tokenizer/` of its folder.
        dtype: type to which the parameters were rounded.
    """

    config: "Config"
    steps: tuple[int, ...]
    tokenizer: str
    dtype: str

    def params(self, abstract: Any) -> Any:
        """Return the parameters in float32, with the shardings of the abstract ones.

        Raises UserError for other names or shapes.
        """
        ...


@dataclasses.dataclass(frozen=True)
class ModelForm:
    """Form of a model that --workdir may name in place of a run.

    Attributes:
        shown: text for help.
        module: module with `folder_of(name)` and `open_model(folder)`, which return what
            `run_folder` and `open_model` do.
        prefix: start of names in this form, with the colon.
        file: name of a file in each folder with such a model.
    """

    shown: str
    module: str
    prefix: str
    file: str


MODEL_FORMS: Table[ModelForm] = Table()
"""Forms that extensions add."""


def open_model(folder: epath.PathLike) -> StoredModel | None:
    """Return the model in a folder; None for the workdir of a run or any other folder.

    Raises UserError for a model that cannot be read.
    """
    load_extensions()
    path = epath.Path(folder)
    if (path / "config.json").exists():
        return None
    form = next((form for form in MODEL_FORMS.values() if (path / form.file).exists()), None)
    return importlib.import_module(form.module).open_model(path) if form else None


def is_name(workdir: epath.PathLike) -> bool:
    """Return whether a workdir is a model's name, `PREFIX:NAME`, not a path."""
    return _form_of_name(workdir) is not None


def run_folder(workdir: epath.PathLike) -> epath.Path:
    """Return the folder of a model's name, or the path itself.

    Raises UserError for an unknown name.
    """
    form = _form_of_name(workdir)
    return (
        importlib.import_module(form.module).folder_of(os.fspath(workdir))
        if form
        else epath.Path(workdir)
    )


def check_writable(workdir: epath.PathLike, remedy: str) -> None:
    """Raise UserError, ending with the remedy, for the name of a model.

    Such models can only be read.
    """
    if is_name(workdir):
        raise UserError(f"{workdir} can only be read: {remedy}.")


def _form_of_name(workdir: epath.PathLike) -> ModelForm | None:
    load_extensions()
    name = os.fspath(workdir)
    return next((form for form in MODEL_FORMS.values() if name.startswith(form.prefix)), None)
