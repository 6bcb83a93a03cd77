"""A model without its run, see `t2t_flax.model_forms`.

It is the folder that `export --format=safetensors` writes, or `pretrained:NAME` of this package.
"""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.errors import UserError
from t2t_flax.extensions.interop.safetensors_file import (
    DTYPES,
    flatten,
    read_metadata,
    read_safetensors,
    write_safetensors,
)
from t2t_flax.files import is_remote

if TYPE_CHECKING:  # configs are read without JAX
    import jax

MODEL_FILE = "model.safetensors"
_PRETRAINED = Path(__file__).parent / "pretrained"
"""Folders of trained models that ship with the package (docs/interop.md).

Each has the evaluation record of its weights.
"""


@dataclasses.dataclass(frozen=True)
class ModelFolder:
    """A folder with a model.

    Args:
        config: config of the run that the model comes from.
        steps: updates whose parameters are averaged, newest first.
        tokenizer: digest of its tokenizers.
        dtype: type of the weights in the file, "float32" or "float16".
    """

    path: epath.Path
    config: Config
    steps: tuple[int, ...]
    tokenizer: str
    dtype: str

    def params(self, abstract: Any) -> Any:
        """Return the parameters in float32, with the shardings of the abstract ones.

        Raises UserError if their names or shapes differ.
        """
        file = self.path / MODEL_FILE
        tree, _ = read_safetensors(Path(file))
        expected = {name: x.shape for name, x in _leaves(abstract).items()}
        given = {name: x.shape for name, x in flatten(tree).items()}
        if given != expected:
            name = min(
                name
                for name in given.keys() | expected.keys()
                if given.get(name) != expected.get(name)
            )
            raise UserError(
                f"{file} does not hold the model of its config: {name} has shape {given.get(name)},"
                f" expected {expected.get(name)}."
            )
        import jax

        return jax.tree.map(_on_devices, tree, abstract)


def _leaves(abstract: Any) -> "dict[str, jax.ShapeDtypeStruct]":
    """Return the leaves by the names that `flatten` gives to arrays."""
    import jax

    leaves = jax.tree.leaves_with_path(abstract)
    return {"/".join(entry.key for entry in path): leaf for path, leaf in leaves}


def _on_devices(array: np.ndarray, leaf: "jax.ShapeDtypeStruct") -> "jax.Array":
    array = array.astype(leaf.dtype)
    import jax

    return jax.make_array_from_callback(array.shape, leaf.sharding, lambda index: array[index])


def folder_of(name: str) -> epath.Path:
    """Return the folder of `pretrained:NAME`, a model of this package.

    Raises UserError for an unknown NAME.
    """
    models = {
        f"pretrained:{path.parent.name}": path.parent
        for path in _PRETRAINED.glob(f"*/{MODEL_FILE}")
    }
    if name not in models:
        raise UserError(f"there is no {name}: the package has {', '.join(sorted(models))}.")
    return epath.Path(models[name])


def open_model(path: epath.Path) -> ModelFolder:
    """Open the model in a folder with `MODEL_FILE`.

    Raises UserError for a file that cannot be read, or in an object store.
    """
    if is_remote(path):
        raise UserError(
            f"{path / MODEL_FILE} is in an object store: copy the folder to a disk, and name that."
        )
    config, checkpoint = read_metadata(Path(path / MODEL_FILE))
    steps, tokenizer, dtype = _checked(path / MODEL_FILE, checkpoint)
    try:
        return ModelFolder(path, config_lib.from_json(json.dumps(config)), steps, tokenizer, dtype)
    except UserError as error:
        raise UserError(f"{path / MODEL_FILE}: {error}") from None


def _checked(file: epath.Path, checkpoint: dict[str, Any]) -> tuple[tuple[int, ...], str, str]:
    """Return the steps, which records are named after, the digest and the type.

    Raises UserError if one is missing or invalid.
    """

    def is_steps(x):
        return isinstance(x, list) and x and all(type(step) is int and step >= 0 for step in x)

    expected = {
        "steps": (is_steps, "whole numbers from 0 on"),
        "tokenizer": (lambda x: isinstance(x, str), "a digest"),
        "dtype": (lambda x: x in DTYPES, " or ".join(DTYPES)),
    }
    for key, (fits, what) in expected.items():
        if key not in checkpoint:
            raise UserError(f"{file} lacks {key!r} in its metadata: export it again.")
        if not fits(checkpoint[key]):
            value = repr(checkpoint[key])[:100]
            raise UserError(
                f"{file} has {key} = {value} in its metadata; expected {what}: export it again."
            )
    return tuple(checkpoint["steps"]), checkpoint["tokenizer"], checkpoint["dtype"]


def write_model(
    folder: Path, config: Config, params: Any, *, dtype: str, steps: tuple[int, ...], tokenizer: str
) -> None:
    """Write the parameter file that `open_model` reads.

    The tokenizers belong beside it, in tokenizer/.
    """
    checkpoint = {"steps": list(steps), "tokenizer": tokenizer, "dtype": dtype}
    write_safetensors(
        folder / MODEL_FILE, params, config_lib.as_json(config), dtype=dtype, checkpoint=checkpoint
    )
