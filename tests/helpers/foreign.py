"""Models and configs as somebody else may send them."""

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.numpy import save_file

from t2t_flax.model_forms import run_folder


def foreign_config(keys: dict[str, Any]) -> str:
    """The stored config of `pretrained:toy` with these keys, as JSON text."""
    return _with(_toy()[1]["config"], keys)


def foreign_model(folder: Path, keys: dict[str, Any]) -> Path:
    """Write the exported model `pretrained:toy`, with these keys in its config, to a folder."""
    shutil.copytree(run_folder("pretrained:toy"), folder)
    arrays, metadata = _toy()
    save_file(
        arrays,
        folder / "model.safetensors",
        metadata=metadata | {"config": _with(metadata["config"], keys)},
    )
    return folder


def _toy() -> tuple[dict[str, Any], dict[str, str]]:
    with safe_open(run_folder("pretrained:toy") / "model.safetensors", framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata())


def _with(config: str, keys: dict[str, Any]) -> str:
    values = json.loads(config)
    for name, value in keys.items():
        group, _, item = name.partition(".")
        values.setdefault(group, {})[item] = value
    return json.dumps(values)
