"""A config by the file that makes it, or by the name of a preset."""

import importlib.util
from pathlib import Path

import ml_collections

from t2t_flax.config.presets import preset
from t2t_flax.config.resolve import override, resolve
from t2t_flax.config.schema import Config
from t2t_flax.errors import UserError


def load_config(path: str, overrides: dict[str, str] | None = None) -> Config:
    """Reads `FILE.py[:variant]` or takes the preset of that name, applies `{"model.dropout": "0.2"}` overrides, checks
    and freezes.

    Raises UserError for a missing file, an unknown preset, variant or key, a wrong type or an impossible combination.
    """
    return resolve(override(_read(path), overrides or {}))


def _read(path: str) -> ml_collections.ConfigDict:
    file, _, variant = path.partition(":")
    if not Path(file).is_file():
        if "/" not in path and not file.endswith(".py"):
            return preset(path)
        raise UserError(f"--config={path}: no file {file!r}. Give a Python file that defines get_config().")
    spec = importlib.util.spec_from_file_location(f"t2t_flax_config_{Path(file).stem}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise UserError(f"--config={path}: {file} defines no get_config(). See configs/toy.py for the form.")
    try:
        return module.get_config(variant) if variant else module.get_config()
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f"--config={path}: get_config() failed: {error}") from error
