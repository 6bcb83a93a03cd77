"""Builds a checked, frozen `Config` from keys and overrides, converts it to and from JSON, and compares two."""

import dataclasses
import difflib
import json
from typing import Any

import ml_collections

from t2t_flax.config import keys, renamed, schema
from t2t_flax.config.directions import directions_of_training
from t2t_flax.config.renamed import SCHEMA_VERSION
from t2t_flax.config.schema import Config
from t2t_flax.config.validation import check_combinations
from t2t_flax.errors import UserError
from t2t_flax.json_file import parse_json

NOT_A_CONFIG = (
    "this is not the config.json of a run; nothing was changed. Name another folder, or restore the file: each checkpoint "
    'holds a copy under "config" in checkpoints/N/meta/metadata'
)
_FIELDS = schema.fields()
_GROUPS = {group.name: group.default_factory for group in dataclasses.fields(Config)}


def default_config() -> ml_collections.ConfigDict:
    """All keys with their defaults, as the locked `ConfigDict` that a config file edits and returns."""
    return to_config_dict(Config())


def to_config_dict(config: Config) -> ml_collections.ConfigDict:
    """The `ConfigDict` of a resolved config, locked: a new key is an error."""
    return _locked({g: _asdict(getattr(config, g)) for g in _GROUPS})


def _locked(groups: dict[str, dict[str, Any]]) -> ml_collections.ConfigDict:
    return ml_collections.ConfigDict({name: renamed.Group(items) for name, items in groups.items()}).lock()


def _asdict(group: Any) -> dict[str, Any]:
    return {f.name: getattr(group, f.name) for f in dataclasses.fields(group)}


def override(config: ml_collections.ConfigDict, overrides: dict[str, str]) -> ml_collections.ConfigDict:
    """A copy of `config` with `overrides`, from dotted key to text, which is parsed by the key's type.

    Raises UserError for an unknown key (the nearest known one is named) and for text that is not of the key's type.
    """
    return _locked(overridden(config, overrides))


def overridden(config: ml_collections.ConfigDict | dict[str, Any], overrides: dict[str, str]) -> dict[str, Any]:
    """As `override`, in unchecked plain dicts. Raises UserError if `config` is not a dict of groups."""
    values = _groups_of(config)
    for name, text in renamed.current_overrides(overrides).items():
        group, item = _known(name).split(".")
        values.setdefault(group, {})[item] = keys.parse_value(name, _FIELDS[name], text)
    return values


def _groups_of(config: Any) -> dict[str, Any]:
    """A copy, two levels deep, by current names. Raises UserError if `config` is not a dict of groups."""
    groups = config.to_dict() if isinstance(config, ml_collections.ConfigDict) else config
    if not isinstance(groups, dict):
        raise UserError(f"expected a config (default_config(), edited), got {keys.show(groups)}.")
    for group, items in groups.items():
        if group not in _GROUPS:
            near = difflib.get_close_matches(str(group), _GROUPS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise UserError(f"config has no group {keys.show(group)}.{hint} Groups: {', '.join(_GROUPS)}.")
        if not isinstance(items, dict):
            raise UserError(f"config.{group} is a group of keys, not a value: got {keys.show(items)}.")
    return {group: renamed.current_items(group, items) for group, items in groups.items()}


def resolve(config: ml_collections.ConfigDict | dict[str, Any]) -> Config:
    """Checks names, types, ranges and combinations, and freezes. Raises UserError, naming the key."""
    values = _groups_of(config)
    for group, items in values.items():
        for item in items:
            _known(f"{group}.{item}")
    groups = {
        group: cls(**{item: _checked(f"{group}.{item}", value) for item, value in values.get(group, {}).items()})
        for group, cls in _GROUPS.items()
    }
    resolved = Config(**groups)
    check_combinations(resolved)
    return resolved


def _checked(name: str, value: Any) -> Any:
    return keys.check_value(name, _FIELDS[name], value)


def to_json(config: Config) -> str:
    """The resolved config with its schema version, as JSON text."""
    return json.dumps({"schema_version": SCHEMA_VERSION} | dataclasses.asdict(config), indent=2) + "\n"


def as_json(config: Config) -> dict[str, Any]:
    """The resolved config with its schema version, as plain JSON values."""
    return json.loads(to_json(config))


def from_json(text: str) -> Config:
    """A resolved config from `to_json`'s text, of this or an older schema version. Raises UserError for any other text."""
    try:
        values = parse_json(text)
    except ValueError as error:
        raise UserError(f"{NOT_A_CONFIG} (not JSON: {error}).") from None
    version = values.get("schema_version") if isinstance(values, dict) else None
    if type(version) is not int:
        raise UserError(f"{NOT_A_CONFIG} (no schema version).")
    if version > SCHEMA_VERSION:
        raise UserError(
            f"the stored config has schema version {version}, this version reads up to {SCHEMA_VERSION}: update t2t_flax."
        )
    values = renamed.upgraded(values)
    del values["schema_version"]
    return resolve(values)


def differences(a: Config, b: Config) -> dict[str, tuple[Any, Any]]:
    """Keys whose values differ, by dotted name, with both values."""
    pairs = {name: tuple(getattr(getattr(c, g), i) for c in (a, b)) for name in _FIELDS for g, i in [name.split(".")]}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def as_resumed(stored: Config, given: Config) -> Config:
    """`given` for going on with the run of `stored`: train.precision = auto is what it was at the run's first start."""
    if given.train.precision != "auto":
        return given
    return dataclasses.replace(given, train=dataclasses.replace(given.train, precision=stored.train.precision))


def immutable_differences(stored: Config, current: Config) -> dict[str, tuple[Any, Any]]:
    """The differences in what a resumed run must not change: immutable keys, and the directions of its training text."""
    changed = differences(stored, as_resumed(stored, current))
    found = {k: v for k, v in changed.items() if not _FIELDS[k].metadata["mutable"]}
    if "data.directions" in changed and directions_of_training(stored.data) != directions_of_training(current.data):
        found["data.directions"] = changed["data.directions"]
    return found


def format_differences(
    differ: dict[str, tuple[Any, Any]], first: str, second: str, *, indent: str = "  "
) -> str:  # fmt: skip
    """A line for each key of `differences`: `model.d_model: 512 in the workdir, 1024 now`, with `in the workdir` as
    `first` and `now` as `second`.
    """
    return "\n".join(f"{indent}{name}: {a!r} {first}, {b!r} {second}" for name, (a, b) in differ.items())


def check_value(name: str, text: str) -> None:
    """Raises UserError if the key is unknown or the text is not one of its values."""
    ((name, text),) = renamed.current_overrides({name: text}).items()
    item = _FIELDS[_known(name)]
    keys.check_value(name, item, keys.parse_value(name, item, text))


def _known(name: str) -> str:
    if name not in _FIELDS:
        last = name.split(".")[-1]
        name = keys.show(name, quote=False)
        near = difflib.get_close_matches(name, _FIELDS, n=1, cutoff=0.75) or [
            k for k in _FIELDS if k.endswith("." + last)
        ]
        near = near or difflib.get_close_matches(name, _FIELDS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UserError(f"unknown config key {name!r}.{hint} `python -m t2t_flax explain --keys` lists all keys.")
    return name
