"""Our parameters in one safetensors file, readable without JAX.

Also checks of the numbers of any model's arrays.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - gives NumPy the type bfloat16
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from t2t_flax.errors import UserError
from t2t_flax.json_file import parse_json

DTYPES = ("float32", "float16")
_FORMAT = "t2t_flax"


def flatten(params: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """Return {"encoder_0/feed_forward/Einsum_0/kernel": array} for a tree of dicts."""
    if not hasattr(params, "items"):
        return {prefix: np.asarray(params)}
    return {
        path: x
        for name, tree in params.items()
        for path, x in flatten(tree, f"{prefix}/{name}".strip("/")).items()
    }


def unflatten(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the tree that `flatten` flattened.

    Raises ValueError for a path that is within another one.
    """
    tree: dict[str, Any] = {}
    for path, x in arrays.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ValueError(f"{parent!r} of {path!r} is an array itself")
        if name in node:
            raise ValueError(f"{path!r} is the path of other arrays as well")
        node[name] = x
    return tree


def write_safetensors(
    path: Path,
    params: Any,
    config: dict[str, Any],
    *,
    dtype: str = "float32",
    checkpoint: dict[str, Any] | None = None,
) -> None:
    """Write the parameters by their paths.

    The file's metadata holds `config` and `checkpoint`, the origin of the parameters, as JSON.
    """
    arrays = {name: np.ascontiguousarray(x, dtype) for name, x in flatten(params).items()}
    metadata = {
        "format": _FORMAT,
        "config": json.dumps(config),
        "checkpoint": json.dumps(checkpoint or {}),
    }
    save(path, arrays, metadata)


def save(path: Path, arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Write a file of tensors with the permissions of other new files.

    `save_file` alone makes it readable for its owner only.
    """
    path.touch()
    mode = path.stat().st_mode
    save_file(arrays, path, metadata=metadata)
    path.chmod(mode)


def read_tensors(
    path: Path, *, with_arrays: bool = True
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return (arrays, metadata) of any safetensors file.

    Raises UserError if it cannot be read.
    """
    with _readable(path) as file:
        names = file.keys() if with_arrays else ()
        return {name: file.get_tensor(name) for name in names}, file.metadata() or {}


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[Any]:
    # NumPy lacks some types of tensors that the format has.
    damaged = (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError)
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except damaged as error:
        raise UserError(f"{path} is not a readable safetensors file: {error}") from None


class TensorFile(Mapping[str, np.ndarray]):
    """Arrays of a safetensors file by name, each read when it is asked for.

    Raises UserError if the file cannot be read.
    """

    def __init__(self, path: Path):
        self._path = path
        with _readable(path) as file:
            self._names = tuple(file.keys())

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        with _readable(self._path) as file:  # opened anew, so that no page of it stays in memory
            return file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)


def read_safetensors(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (float32 parameters, config) from a file of `write_safetensors`.

    Raises UserError for any other file.
    """
    arrays, metadata = read_tensors(path)
    config = _object(path, metadata, "config")
    arrays = {name: x.astype(np.float32) for name, x in arrays.items()}
    check_finite(arrays, path)
    try:
        return unflatten(arrays), config
    except ValueError as error:
        raise UserError(f"{path} does not hold parameters of t2t_flax: {error}.") from None


def read_metadata(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (config, checkpoint) from a file of `write_safetensors`.

    The parameters are not read. Raises UserError for any other file.
    """
    _, metadata = read_tensors(path, with_arrays=False)
    return _object(path, metadata, "config"), _object(
        path, {"checkpoint": "{}"} | metadata, "checkpoint"
    )


def _object(path: Path, metadata: dict[str, str], key: str) -> dict[str, Any]:
    """Return the JSON object of a metadata key."""
    if metadata.get("format") != _FORMAT:
        raise UserError(
            f"{path} was not written by `export --format=safetensors`: its metadata lacks the"
            " config."
        )
    try:
        value = parse_json(metadata[key])
    except (KeyError, ValueError):
        value = None
    if not isinstance(value, dict):
        raise UserError(f"{path} has no JSON object as the {key} of its metadata: export it again.")
    return value


def check_finite(arrays: Mapping[str, np.ndarray], file: object) -> None:
    """Raise UserError, naming the file and the array, for a NaN or an infinity."""
    for name, x in arrays.items():
        if x.dtype.kind not in "iub" and not np.isfinite(x).all():
            raise UserError(
                f"{file}: {name!r} {_counted(x)}: the file is damaged, or its training has"
                " diverged."
            )


def _counted(x: np.ndarray) -> str:
    return f"holds {np.count_nonzero(~np.isfinite(x)):,} of {x.size:,} numbers that are not finite"


def check_representable(params: Mapping[str, np.ndarray], dtype: str) -> None:
    """Raise UserError, naming the array, for a number too large for the exported type.

    That is "float16" or "int8_float16"; the other types have the range of float32.
    """
    largest = float(np.finfo(np.float16).max)
    for name, x in params.items() if dtype.endswith("_float16") or dtype == "float16" else ():
        if (most := float(np.max(np.abs(x), initial=0.0))) > largest:
            raise UserError(
                f"--quantization={dtype}: {name} has a number of {most:g}, more than the"
                f" {largest:g} that float16 can hold. Export it in float32 or bfloat16."
            )
