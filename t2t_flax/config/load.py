"""Loads a config from a Python file, by the name of a preset, or from the config.json of a run."""

import importlib.util
import re
import traceback
from pathlib import Path
from typing import Any

import ml_collections

from t2t_flax.config.overrides import from_json, override, resolve, to_config_dict
from t2t_flax.config.presets import preset
from t2t_flax.config.schema import Config
from t2t_flax.config.validation import check_trainable
from t2t_flax.errors import UserError
from t2t_flax.registry import absent_extension


def load_config(path: str, overrides: dict[str, str] | None = None) -> Config:
    """The checked, frozen config of `FILE.py[:variant]`, a run's `config.json` or a preset's name, with overrides such as
    `{"model.dropout": "0.2"}`.

    Raises UserError for a missing file, an unknown preset, variant or key, a wrong type, an impossible combination, or a
    missing evaluation (`check_trainable`).
    """
    config = resolve(override(_read(path), overrides or {}))
    check_trainable(config)
    return config


def _read(path: str) -> ml_collections.ConfigDict:
    file = path.partition(":")[0]
    if path.endswith(".json") and Path(path).is_file():
        return _stored(path)
    if not Path(file).is_file() and "/" not in path and not file.endswith((".py", ".json")):
        return preset(path)
    return from_python_file("--config", path, "get_config", "configs/toy.py")


def _stored(path: str) -> ml_collections.ConfigDict:
    try:
        return to_config_dict(from_json(Path(path).read_text()))
    except (ValueError, OSError) as error:
        raise UserError(f"--config={path} cannot be read: {error}.") from None
    except UserError as error:
        raise UserError(f"--config={path}: {error}") from None


def from_python_file(flag: str, path: str, function: str, example: str) -> Any:
    """Calls `function()` of a Python file and returns the result; with `path` FILE.py:VARIANT, calls `function(VARIANT)`.

    Raises UserError for a missing file or function, and for any error in it; `flag` and `example` are for the message.
    """
    file, _, variant = path.partition(":")
    if not Path(file).is_file():
        raise UserError(f"{flag}={path}: no file {file!r}. Give a Python file that defines {function}().")
    spec = importlib.util.spec_from_file_location(f"t2t_flax_{function}_{Path(file).stem}", file)
    if spec is None or spec.loader is None:
        raise UserError(f"{flag}={path}: {file} is not a Python file. Give one that defines {function}().")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, function):
            raise UserError(f"{flag}={path}: {file} does not define {function}(). See {example} for an example.")
        return getattr(module, function)(*([variant] if variant else []))
    except UserError:
        raise
    except SyntaxError as error:
        raise UserError(f"{flag}={path}: {file} line {error.lineno}: {error.msg}.") from None
    except (Exception, SystemExit) as error:  # any error in the user's file
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == spec.origin]
        location = f"{file} line {lines[-1]}" if lines else f"{function}()"
        absent = "".join(absent_extension("groups", word) for word in re.findall(r"\w+", str(error)))
        raise UserError(f"{flag}={path}: {location}: {type(error).__name__}: {error}{absent}") from error
