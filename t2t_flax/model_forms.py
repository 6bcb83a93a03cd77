"""What --workdir may name beside the workdir of a run: models that extensions open, see `registry.MODEL_FORMS`."""

import importlib
import os
from typing import TYPE_CHECKING, Any, Protocol

from etils import epath

from t2t_flax.errors import UserError
from t2t_flax.registry import MODEL_FORMS, ModelForm, load_extensions

if TYPE_CHECKING:
    from t2t_flax.config import Config


class StoredModel(Protocol):
    """A model without its run. config: of the run that it comes from. steps: the updates that its parameters are the mean of,
    newest first. tokenizer: digest of its tokenizers, which are in `tokenizer/` of its folder. dtype: to which the parameters
    were rounded.
    """

    config: "Config"
    steps: tuple[int, ...]
    tokenizer: str
    dtype: str

    def params(self, abstract: Any) -> Any:
        """The parameters in float32, with the shardings of the abstract ones. Raises UserError for other names or shapes."""
        ...


def open_model(folder: epath.PathLike) -> StoredModel | None:
    """The model in a folder; None for the workdir of a run, and for a folder of something else. Raises UserError for a model
    that cannot be read.
    """
    load_extensions()
    path = epath.Path(folder)
    if (path / "config.json").exists():
        return None
    form = next((form for form in MODEL_FORMS.values() if (path / form.file).exists()), None)
    return importlib.import_module(form.module).open_model(path) if form else None


def is_name(workdir: epath.PathLike) -> bool:
    """Whether a workdir is the name of a model, `PREFIX:NAME`, and not a path."""
    return _form_of_name(workdir) is not None


def run_folder(workdir: epath.PathLike) -> epath.Path:
    """The folder that a workdir names: of the name of a model the model's, of a path the path itself. Raises UserError for an
    unknown name.
    """
    form = _form_of_name(workdir)
    return importlib.import_module(form.module).folder_of(os.fspath(workdir)) if form else epath.Path(workdir)


def check_writable(workdir: epath.PathLike, remedy: str) -> None:
    """Raises UserError, ending with the remedy, for the name of a model, which can only be read."""
    if is_name(workdir):
        raise UserError(f"{workdir} can only be read: {remedy}.")


def _form_of_name(workdir: epath.PathLike) -> ModelForm | None:
    load_extensions()
    name = os.fspath(workdir)
    return next((form for form in MODEL_FORMS.values() if name.startswith(form.prefix)), None)
