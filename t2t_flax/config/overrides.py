"""From keys and overrides to a checked, frozen `Config`, and to and from JSON."""

import dataclasses
import difflib
import json
import math
import typing
from typing import Any

import ml_collections

from t2t_flax.config import renamed, schema
from t2t_flax.config.renamed import SCHEMA_VERSION
from t2t_flax.config.schema import Config
from t2t_flax.config.sharding_rules import sharding_rules
from t2t_flax.config.test_sets import parse_test_sets
from t2t_flax.errors import UserError

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
    """A copy of `config` with `overrides`, dotted key to text; the text is parsed by the key's type.

    Raises UserError for an unknown key (the nearest known one is named) and for text that is not of the key's type.
    """
    return _locked(overridden(config, overrides))


def overridden(config: ml_collections.ConfigDict | dict[str, Any], overrides: dict[str, str]) -> dict[str, Any]:
    """As `override`, in plain dicts, whatever else is in them. Raises UserError where `config` is no dict of groups."""
    values = _groups_of(config)
    for name, text in renamed.current_overrides(overrides).items():
        group, item = _known(name).split(".")
        values.setdefault(group, {})[item] = _parse(name, text)
    return values


def _groups_of(config: Any) -> dict[str, Any]:
    """A copy, two levels deep. Raises UserError for what is not groups of keys."""
    given = config.to_dict() if isinstance(config, ml_collections.ConfigDict) else config
    if not isinstance(given, dict):
        raise UserError(f"expected a config (default_config(), edited), got {_shown(given)}.")
    for group, items in given.items():
        if group not in _GROUPS:
            near = difflib.get_close_matches(str(group), _GROUPS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise UserError(f"config has no group {_shown(group)}.{hint} Groups: {', '.join(_GROUPS)}.")
        if not isinstance(items, dict):
            raise UserError(f"config.{group} is a group of keys, not a value: got {_shown(items)}.")
    return {group: renamed.current_items(group, items) for group, items in given.items()}


def resolve(config: ml_collections.ConfigDict | dict[str, Any]) -> Config:
    """Checks names, types, ranges and combinations, and freezes. Raises UserError that names the key."""
    given = _groups_of(config)
    for group, items in given.items():
        for item in items:
            _known(f"{group}.{item}")
    groups = {
        group: cls(**{item: _check(f"{group}.{item}", value) for item, value in given.get(group, {}).items()})
        for group, cls in _GROUPS.items()
    }
    resolved = Config(**groups)
    _check_combinations(resolved)
    return resolved


def to_json(config: Config) -> str:
    """The resolved config with its schema version, as JSON text."""
    return json.dumps({"schema_version": SCHEMA_VERSION} | dataclasses.asdict(config), indent=2) + "\n"


def as_json(config: Config) -> dict[str, Any]:
    """The resolved config with its schema version, as plain JSON values."""
    return json.loads(to_json(config))


def from_json(text: str) -> Config:
    """A resolved config from `to_json`'s text. Raises UserError for any other text, and where it was written by a newer
    schema.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the stored config is not JSON ({error}): bring the run's own config.json back.") from None
    version = values.get("schema_version") if isinstance(values, dict) else None
    if type(version) is not int:
        raise UserError("the stored config has no schema version: this is not the config.json of a run.")
    if version > SCHEMA_VERSION:
        raise UserError(
            f"the stored config has schema version {version}, this code knows up to {SCHEMA_VERSION}: update t2t_flax."
        )
    values = renamed.upgraded(values)
    del values["schema_version"]
    return resolve(values)


def differences(a: Config, b: Config) -> dict[str, tuple[Any, Any]]:
    """Keys whose values differ, by dotted name, with both values."""
    pairs = {name: tuple(getattr(getattr(c, g), i) for c in (a, b)) for name in _FIELDS for g, i in [name.split(".")]}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def frozen_differences(stored: Config, given: Config) -> dict[str, tuple[Any, Any]]:
    """The differences that a resumed run must not have: keys that are not `mutable`."""
    return {k: v for k, v in differences(stored, given).items() if not _FIELDS[k].metadata["mutable"]}


def check_value(name: str, text: str) -> None:
    """Raises UserError where the key is unknown, or the text is not a value of it by type, choices and range."""
    ((name, text),) = renamed.current_overrides({name: text}).items()
    _check(_known(name), _parse(name, text))


def _known(name: str) -> str:
    if name not in _FIELDS:
        last = name.split(".")[-1]
        name = _shown(name, quote=False)
        near = difflib.get_close_matches(name, _FIELDS, n=1, cutoff=0.75) or [
            k for k in _FIELDS if k.endswith("." + last)
        ]
        near = near or difflib.get_close_matches(name, _FIELDS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UserError(f"unknown config key {name!r}.{hint} `python -m t2t_flax explain --keys` lists all keys.")
    return name


def type_name(name: str) -> str:
    """A key's type in words: `int`, `float or none`, `one of post, pre`."""
    item = _FIELDS[name]
    if item.metadata["choices"]:
        return "one of " + ", ".join(item.metadata["choices"])
    if typing.get_origin(item.type) is tuple:
        return "(" + ", ".join(t.__name__ for t in typing.get_args(item.type)) + ")"
    return {bool: "true or false", str: "text"}.get(item.type) or getattr(item.type, "__name__", "float or none")


def _types(name: str) -> tuple[type, ...]:
    return typing.get_args(_FIELDS[name].type) or (_FIELDS[name].type,)


def _parse(name: str, text: str) -> Any:
    kind = _FIELDS[name].type
    try:
        if typing.get_origin(kind) is tuple:
            parts = text.strip("()").split(",")
            if len(parts) != len(_types(name)):
                raise ValueError
            return tuple(cast(part) for cast, part in zip(_types(name), parts, strict=True))
        if type(None) in _types(name) and text.lower() == "none":
            return None
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        return _types(name)[0](text.replace("_", "") if kind is int else text)
    except (ValueError, KeyError):
        raise UserError(f"--config.{name}={_shown(text, quote=False)}: expected {type_name(name)}.") from None


# What int32 and float32 hold: the bounds of a key that names none.
_LARGEST = {int: 2**31 - 1, float: 1e30}


def _check(name: str, value: Any) -> Any:
    """The value in the key's type. Raises UserError, naming the key, for another type and what is out of range."""
    item, kinds = _FIELDS[name], _types(name)
    meta, shown = item.metadata, f"config.{name} = {_shown(value)}"
    if typing.get_origin(item.type) is tuple:
        ok = isinstance(value, tuple | list) and [type(v) for v in value] == list(kinds)
        value = tuple(value) if ok else value
    elif float in kinds and type(value) is int and abs(value) <= 2**53:
        ok, value = True, float(value)
    else:
        ok = type(value) in kinds
    if not ok or (meta["choices"] and value not in meta["choices"]):
        raise UserError(f"{shown}: expected {type_name(name)} ({meta['doc']}).")
    if isinstance(value, str):
        _check_text(shown, value)
        return value
    for number in value if isinstance(value, tuple) else (value,):
        if number is not None:
            _check_range(shown, number, meta)
    return value + 0.0 if type(value) is float else value  # -0.0 is 0.0


def _check_range(shown: str, number: int | float, meta: Any) -> None:
    if isinstance(number, float) and not math.isfinite(number):
        raise UserError(f"{shown}: must be a finite number ({meta['doc']}).")
    largest = _LARGEST.get(type(number))
    low = meta["low"] if meta["low"] is not None or largest is None else -largest
    high = meta["high"] if meta["high"] is not None else largest
    if low is not None and number < low:
        raise UserError(f"{shown}: must be at least {low} ({meta['doc']}).")
    if high is not None and number > high:
        raise UserError(f"{shown}: must be at most {high} ({meta['doc']}).")


def _check_text(shown: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{shown}: is not valid Unicode text.") from None
    if any(character < " " for character in value):
        raise UserError(f"{shown}: holds a control character (a line break, a NUL ...).")


def _shown(value: Any, *, quote: bool = True) -> str:
    """A value for a message, in at most some hundred printable characters."""
    try:
        text = value if isinstance(value, str) and not quote and value.isprintable() else repr(value)
    except Exception:  # an int of more digits than Python prints, or an object of the user's
        text = f"a value of type {type(value).__name__}"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 200 else f"{text[:150]} ... ({len(text):,} characters)"


def _check_combinations(c: Config) -> None:
    m, d = c.model, c.data
    if (not m.d_k or not m.d_v) and m.d_model % m.num_heads:
        raise UserError(
            f"config.model.d_model = {m.d_model} is not a multiple of config.model.num_heads = {m.num_heads}: "
            "choose another number of heads, or set model.d_k and model.d_v."
        )
    if m.position.startswith("sinusoid") and m.d_model % 2:
        raise UserError(f"config.model.d_model = {m.d_model} is odd: sinusoids come in pairs (3.5).")
    _check_mixer(m)
    if m.tie_embeddings == "all" and not d.joint_vocabulary:
        raise UserError(
            "config.model.tie_embeddings = 'all' needs config.data.joint_vocabulary = true: two vocabularies cannot share one "
            "matrix. Use model.tie_embeddings = 'decoder'."
        )
    if d.batch_tokens // d.batch_groups < 2 * d.max_length:
        raise UserError(
            f"config.data.batch_tokens = {d.batch_tokens} (of {d.batch_groups} groups) must hold at least two of the "
            f"longest pairs (config.data.max_length = {d.max_length})."
        )
    if d.batch_groups > 1 and d.batch_size_counts == "real_tokens":
        raise UserError(
            f"config.data.batch_groups = {d.batch_groups} is for config.data.batch_size_counts = padded_tokens: real tokens need "
            "no groups."
        )
    if d.batch_groups > 1 and d.batching == "buckets":
        raise UserError(
            f"config.data.batch_groups = {d.batch_groups} puts sentences of different lengths into an update: use "
            "config.data.batching = packed."
        )
    if d.tokenizer == "subword_nmt" and not d.tokenizer_model:
        raise UserError("config.data.tokenizer = subword_nmt needs its BPE codes: set config.data.tokenizer_model.")
    if m.position_offset and not m.position.startswith("sinusoid"):
        raise UserError(
            f"config.model.position_offset = {m.position_offset} is for sinusoids; config.model.position = {m.position}."
        )
    if m.position == "learned" and d.max_length > m.max_positions:
        raise UserError(
            f"config.model.max_positions = {m.max_positions} learned positions cannot serve "
            f"config.data.max_length = {d.max_length}."
        )
    parse_test_sets(d.test)
    _check_schedule(c.optimizer)
    if c.eval.metric == "loss" and not (c.eval.every_steps or c.eval.every_epochs):
        raise UserError("config.eval.metric = 'loss' needs config.eval.every_steps or eval.every_epochs.")
    if c.decode.strategy == "beam" and c.decode.n_best > c.decode.beam_size:
        raise UserError(
            f"config.decode.n_best = {c.decode.n_best} is more than config.decode.beam_size = {c.decode.beam_size}."
        )
    if c.decode.strategy == "greedy" and c.decode.n_best > 1:
        raise UserError(f"config.decode.n_best = {c.decode.n_best}: greedy search has one output; use beam or sample.")
    if [c.mesh.data, c.mesh.fsdp, c.mesh.tensor].count(-1) > 1 or 0 in (c.mesh.data, c.mesh.fsdp, c.mesh.tensor):
        raise UserError("config.mesh.data, mesh.fsdp and mesh.tensor are sizes; one of them may be -1, none may be 0.")
    sharding_rules(c.mesh.rules)
    first, last = c.log.profile_steps
    if first > last or (first < 1 and (first, last) != (0, 0)):
        raise UserError(
            f"config.log.profile_steps = {c.log.profile_steps}: "
            + (
                "the first update comes after the last."
                if first > last
                else "updates are counted from 1; (0, 0) = none."
            )
        )
    if (
        c.eval.metric in ("bleu", "f1")
        and not c.eval.decode_every_steps
        and (c.eval.patience or c.checkpoint.keep_best > 1)
    ):
        raise UserError(
            f"config.eval.metric = '{c.eval.metric}' needs config.eval.decode_every_steps > 0 to be known in training."
        )
    _check_task(c)


def _check_task(c: Config) -> None:
    d = c.data
    if c.eval.metric in ("bleu", "f1") and (c.eval.metric == "f1") != (d.task == "parsing"):
        raise UserError(f"config.eval.metric = '{c.eval.metric}' is not the score of config.data.task = {d.task}.")
    if d.task == "parsing" and (d.joint_vocabulary or d.tokenizer == "subword_nmt" or d.tokenizer_model):
        raise UserError(
            "config.data.task = parsing has words on one side and symbols of trees on the other: set data.joint_vocabulary = "
            "false and model.tie_embeddings = decoder or none, and no data.tokenizer_model."
        )
    if d.task == "parsing" and d.on_too_long == "truncate":
        raise UserError(
            "config.data.on_too_long = 'truncate' would leave trees that are not over their sentences: use drop with "
            "config.data.task = parsing."
        )


def _check_schedule(o: schema.Optimizer) -> None:
    """Keys of another schedule would silently do nothing."""
    for name, schedules in (("lr_scale", ("noam",)), ("peak_lr", ("inverse_sqrt", "constant")),
                            ("warmup_init", ("inverse_sqrt", "constant"))):  # fmt: skip
        value = getattr(o, name)
        if o.schedule not in schedules and value != getattr(schema.Optimizer, name):
            raise UserError(
                f"config.optimizer.{name} = {value} is for {' and '.join(schedules)}; config.optimizer.schedule = {o.schedule}."
            )


def _check_mixer(m: schema.Model) -> None:
    if m.attention_window and m.attention_window % 2 == 0:
        raise UserError(
            f"config.model.attention_window = {m.attention_window} is even: a window has as many positions before its "
            "middle as after it."
        )
    if m.attention_window and m.mixer != "attention":
        raise UserError(f"config.model.attention_window is for attention; config.model.mixer = {m.mixer}.")
    if m.conv_kernel_size % 2 == 0:
        raise UserError(
            f"config.model.conv_kernel_size = {m.conv_kernel_size} is even: the encoder's convolution is symmetric."
        )
    if m.conv_kernel_size != schema.Model.conv_kernel_size and not m.mixer.endswith("conv"):
        raise UserError(f"config.model.conv_kernel_size is for convolutions; config.model.mixer = {m.mixer}.")
    if m.mixer in ("lstm", "gru") and m.d_model % 2:
        raise UserError(
            f"config.model.d_model = {m.d_model} is odd: each direction of the encoder's {m.mixer} takes half of it."
        )
