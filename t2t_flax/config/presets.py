"""Sources of a config: a Python file, the config.json of a run, or a preset.

The presets are the paper's, and others that extensions add. A preset lists the keys whose values
differ from the defaults of `schema`, the paper's base model.
`explain --diff=NAME` compares a config with a preset.
"""

import dataclasses
import difflib
import functools
import importlib.machinery
import inspect
import operator
import traceback
import types
from collections.abc import Container
from pathlib import Path
from typing import Any

import ml_collections

from t2t_flax.config.keys import Values, hint, show
from t2t_flax.config.overrides import (
    check_evaluation,
    check_lost,
    default_config,
    from_elsewhere,
    from_json,
    override,
    resolve,
    to_config_dict,
)
from t2t_flax.config.schema import Config
from t2t_flax.errors import UserError
from t2t_flax.registry import GROUPS, load_extensions

Keys = Values


@dataclasses.dataclass(frozen=True)
class Preset:
    """Named values of keys.

    Args:
        source: origin of the values.
        keys: values by dotted key.
        published: result that the source reports, and how it was scored.
    """

    source: str
    keys: Keys
    published: str = ""


WMT14_ENDE = {
    "data.corpus": "WMT14 English-German",
    "data.train": "tfds:wmt14_translate/de-en:train",
    "data.valid": "tfds:wmt14_translate/de-en:validation",
    "data.test": "tfds:wmt14_translate/de-en:test",
    "eval.decode_every_steps": 10_000,
    "eval.decode_sentences": 500,
}
BASE = WMT14_ENDE | {"checkpoint.average_last": 5}
BIG_SHAPE = {"model.d_model": 1024, "model.d_ff": 4096, "model.num_heads": 16}
_BIG = WMT14_ENDE | BIG_SHAPE | {
    "model.dropout": 0.3,
    "train.steps": 300_000,
    "checkpoint.every_steps": 600,
    "checkpoint.keep_last": 20,
    "checkpoint.average_last": 20,
}  # fmt: skip
_ENFR = {
    "data.corpus": "WMT14 English-French",
    "data.train": "tfds:wmt14_translate/fr-en:train",
    "data.valid": "tfds:wmt14_translate/fr-en:validation",
    "data.test": "tfds:wmt14_translate/fr-en:test",
    "data.target_language": "fr",
    "data.vocab_size": 32_000,
}

_TOY = {
    "data.train": "toy:train",
    "data.valid": "toy:valid",
    "data.test": "toy:test",
    "data.vocab_size": 2000,
    "data.byte_fallback": False,
    "data.split_digits": True,
    "data.max_length": 64,
    "data.pack_length": 64,
    "data.batch_tokens": 896,
    "model.num_encoder_layers": 2,
    "model.num_decoder_layers": 2,
    "model.d_model": 128,
    "model.d_ff": 512,
    "model.num_heads": 4,
    "model.dropout": 0.0,
    "optimizer.schedule": "inverse_sqrt",
    "optimizer.peak_lr": 3e-3,
    "optimizer.warmup_steps": 300,
    "train.steps": 1800,
    "eval.every_steps": 450,
    "checkpoint.every_steps": 450,
    "checkpoint.keep_last": 3,
    "log.every_steps": 50,
    "mesh.cpu_devices": 2,
}
_TEXT = {
    "data.vocab_size": 4000,
    "data.max_length": 64,
    "data.pack_length": 64,
    "data.batch_tokens": 3000,
    "model.num_encoder_layers": 3,
    "model.num_decoder_layers": 3,
    "model.d_model": 128,
    "model.d_ff": 256,
    "model.num_heads": 4,
    "model.dropout": 0.15,
    "model.pad_vocab_to_multiple": 8,
    "optimizer.schedule": "inverse_sqrt",
    "optimizer.peak_lr": 4e-3,
    "optimizer.warmup_steps": 500,
    "train.steps": 4500,
    "eval.every_steps": 250,
    "checkpoint.every_steps": 100,
    "checkpoint.keep_last": 8,
    "checkpoint.average_last": 8,
    "log.every_steps": 50,
    "mesh.cpu_devices": 2,
}

PRESETS: dict[str, Preset] = {
    "toy": Preset("this project's built-in English-German corpus with a small model", _TOY),
    "text": Preset(
        "your own text with a small model; set data.train, data.valid, data.test", _TEXT
    ),
    "aiayn_base": Preset("the paper, 5 and 6.1", BASE, "27.3 paper BLEU on newstest2014 (Table 2)"),
    "aiayn_big": Preset("the paper, 5 and 6.1", _BIG, "28.4 paper BLEU on newstest2014 (Table 2)"),
    "aiayn_base_enfr": Preset(
        "the paper, 5 and 6.1", BASE | _ENFR, "38.1 paper BLEU on newstest2014 (Table 2)"
    ),
    "aiayn_big_enfr": Preset(
        "the paper, 5.4 and 6.1",
        _BIG | _ENFR | {"model.dropout": 0.1},
        "41.0 paper BLEU on newstest2014 (Table 2; 41.8 in later versions)",
    ),
}


def preset(name: str) -> ml_collections.ConfigDict:
    """Return a preset as a locked `ConfigDict` that a config file can edit further.

    Raises UserError for an unknown name.
    """
    config = default_config()
    for key, value in find(name).keys.items():
        group, item = key.split(".")
        if group not in config:
            raise UserError(f"preset {name} sets config.{key}, which is unknown.")
        config[group][item] = value
    return config


def presets() -> dict[str, Preset]:
    """Return all presets: first the paper's, then those from extensions."""
    load_extensions()
    added = (group.presets() for group in GROUPS.values())
    return functools.reduce(operator.or_, added, PRESETS)


def find(name: str) -> Preset:
    """Return the preset with this name.

    Raises UserError that suggests the nearest name.
    """
    if name in PRESETS:
        return PRESETS[name]
    known = presets()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.3)
        raise UserError(f"there is no preset {name!r}.{hint(near)} Presets: {', '.join(known)}.")
    return known[name]


def load_config(path: str, *overrides: dict[str, str]) -> Config:
    """Return the checked, frozen config of a file or preset.

    `path` is `FILE.py[:variant]`, a run's `config.json` or a preset's name. A `get_config` with a
    parameter `overrides` gets the overrides, and can choose values by them. Raises UserError for a
    missing file, an unknown preset, variant or key, a wrong type, an impossible combination, and
    for a config.json that names a program or code to run (`overrides.from_elsewhere`).

    Args:
        overrides: such as `{"model.dropout": "0.2"}`; later ones act on the result of earlier ones.
    """
    given: dict[str, str] = functools.reduce(operator.or_, overrides, {})
    values = functools.reduce(override, overrides, _read(path, given))
    config = resolve(values)
    check_evaluation(config)
    return config


def _read(path: str, given: dict[str, str]) -> Any:
    file, _ = split_variant(path)
    if path.endswith(".json") and Path(path).is_file():
        return _stored(path, given)
    if not Path(file).is_file():
        if "/" not in path and not file.endswith((".py", ".json")):
            return preset(path)
        name = Path(file).stem if Path(file).stem in presets() else "toy"
        raise UserError(
            f"--config={path}: no file {file!r}. Give a Python file that defines get_config(), or a"
            f" preset, such as --config={name}; `explain --presets` lists them."
        )
    config = from_python_file("--config", path, "get_config", "configs/toy.py", overrides=given)
    if not isinstance(config, ml_collections.ConfigDict | dict):
        raise UserError(
            f"--config={path}: get_config() returned {show(config)}. Return default_config(),"
            " edited."
        )
    return config


def _stored(path: str, given: Container[str]) -> ml_collections.ConfigDict:
    try:
        config, lost = from_elsewhere(from_json(Path(path).read_text()), given)
        check_lost(lost)
        return to_config_dict(config)
    except (ValueError, OSError) as error:
        raise UserError(f"--config={path} cannot be read: {error}.") from None
    except UserError as error:
        raise UserError(f"--config={path}: {error}") from None


def split_variant(path: str) -> tuple[str, str]:
    """Return the file and the variant of `FILE.py` or `FILE.py:VARIANT`.

    Both may contain colons.
    """
    parts = path.split(":")
    names = [":".join(parts[:count]) for count in range(len(parts), 0, -1)]
    files = [name for name in names if Path(name).is_file()] or [
        name for name in names if name.endswith(".py")
    ]
    file = (files or names[-1:])[0]
    return file, path[len(file) + 1 :]


def from_python_file(flag: str, path: str, function: str, example: str, **optional: Any) -> Any:
    """Call `function()` of a Python file and return the result.

    Calls `function(VARIANT)` if `path` is FILE.py:VARIANT. Raises UserError for a missing file or
    function, and for any error in it.

    Args:
        flag: name of the flag, for the message.
        example: file with an example, for the message.
        optional: arguments that are passed if the function has parameters of their names.
    """
    file, variant = split_variant(path)
    if not Path(file).is_file():
        raise UserError(
            f"{flag}={path}: no file {file!r}. Give a Python file that defines {function}()."
        )
    try:
        module = _module(file, Path(file).stat().st_mtime_ns)
        if not hasattr(module, function):
            raise UserError(
                f"{flag}={path}: {file} does not define {function}(). See {example} for an example."
            )
        called = getattr(module, function)
        known = inspect.signature(called).parameters
        named = {name: value for name, value in optional.items() if name in known}
        return called(*([variant] if variant else []), **named)
    except UserError:
        raise
    except SyntaxError as error:
        raise UserError(f"{flag}={path}: {file} line {error.lineno}: {error.msg}.") from None
    except (Exception, SystemExit) as error:  # any error in the user's file
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == file
        ]
        location = f"{file} line {lines[-1]}" if lines else f"{function}()"
        raise UserError(f"{flag}={path}: {location}: {type(error).__name__}: {error}") from error


@functools.lru_cache(32)  # a sweep reads its config for each trial
def _module(file: str, changed: int) -> types.ModuleType:
    """Execute a Python file and return it as a module. `changed` is its time of change."""
    loader = importlib.machinery.SourceFileLoader(f"t2t_flax_{Path(file).stem}", file)
    module = types.ModuleType(loader.name)
    module.__file__ = file
    loader.exec_module(module)
    return module
