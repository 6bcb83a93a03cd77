"""Our own parameters in one safetensors file, readable without JAX."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from t2t_flax.errors import UserError

INSTALL = "pip install -e '.[hf]' (or: pip install safetensors)"
DTYPES = ("float32", "float16")
_FORMAT = "t2t_flax"


def flatten(params: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """{"encoder_0/feed_forward/Einsum_0/kernel": array} of a tree of dicts."""
    if not hasattr(params, "items"):
        return {prefix: np.asarray(params)}
    return {
        path: x for name, tree in params.items() for path, x in flatten(tree, f"{prefix}/{name}".strip("/")).items()
    }


def unflatten(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The tree that `flatten` flattened."""
    tree: dict[str, Any] = {}
    for path, x in arrays.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = x
    return tree


def write_safetensors(path: Path, params: Any, config: dict[str, Any], *, dtype: str = "float32") -> None:
    """Writes the parameters by their paths; the file's metadata holds `config` as JSON.

    Raises UserError if the package safetensors is not installed.
    """
    try:
        from safetensors.numpy import save_file
    except ModuleNotFoundError:
        raise UserError(f"--format=safetensors needs the package safetensors: {INSTALL}") from None
    arrays = {name: np.ascontiguousarray(x, dtype) for name, x in flatten(params).items()}
    save_file(arrays, path, metadata={"format": _FORMAT, "config": json.dumps(config)})


def read_safetensors(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters as float32 arrays, config) of a file of `write_safetensors`. Raises UserError for any other file."""
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError:
        raise UserError(f"{path} needs the package safetensors: {INSTALL}") from None
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise UserError(
                    f"{path} was not written by `export --format=safetensors`: its metadata lacks the config."
                )
            arrays = {name: file.get_tensor(name).astype(np.float32) for name in file.keys()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a readable safetensors file: {error}") from None
    return unflatten(arrays), json.loads(metadata["config"])
