"""From keys and overrides to a checked, frozen `Config`, and to and from JSON."""

import dataclasses
import difflib
import json
import typing
from typing import Any

import ml_collections

from t2t_flax.config import schema
from t2t_flax.config.rules import sharding_rules
from t2t_flax.config.schema import Config
from t2t_flax.errors import UserError

SCHEMA_VERSION = 1
_FIELDS = schema.fields()
_GROUPS = {group.name: group.default_factory for group in dataclasses.fields(Config)}


def default_config() -> ml_collections.ConfigDict:
    """All keys with their defaults, as the locked `ConfigDict` that a config file edits and returns."""
    return to_config_dict(Config())


def to_config_dict(config: Config) -> ml_collections.ConfigDict:
    """The `ConfigDict` of a resolved config, locked: a new key is an error."""
    return ml_collections.ConfigDict({g: _asdict(getattr(config, g)) for g in _GROUPS}).lock()


def _asdict(group: Any) -> dict[str, Any]:
    return {f.name: getattr(group, f.name) for f in dataclasses.fields(group)}


def override(config: ml_collections.ConfigDict, overrides: dict[str, str]) -> ml_collections.ConfigDict:
    """A copy of `config` with `overrides`, dotted key to text; the text is parsed by the key's type.

    Raises UserError for an unknown key (the nearest known one is named) and for text that is not of the key's type.
    """
    config = ml_collections.ConfigDict(config.to_dict())
    for name, text in overrides.items():
        group, item = _known(name).split(".")
        config[group][item] = _parse(name, text)
    return config.lock()


def resolve(config: ml_collections.ConfigDict | dict[str, Any]) -> Config:
    """Checks names, types, ranges and combinations, and freezes. Raises UserError that names the key."""
    given = config.to_dict() if isinstance(config, ml_collections.ConfigDict) else config
    for group, items in given.items():
        if group not in _GROUPS:
            near = difflib.get_close_matches(group, _GROUPS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise UserError(f"config has no group {group!r}.{hint} Groups: {', '.join(_GROUPS)}.")
        if not isinstance(items, dict):
            raise UserError(f"config.{group} is a group of keys, not a value: got {items!r}.")
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
    """A resolved config from `to_json`'s text. Raises UserError where it was written by a newer schema."""
    values = json.loads(text)
    version = values.pop("schema_version")
    if version > SCHEMA_VERSION:
        raise UserError(
            f"the stored config has schema version {version}, this code knows up to {SCHEMA_VERSION}: update t2t_flax."
        )
    return resolve(values)


def differences(a: Config, b: Config) -> dict[str, tuple[Any, Any]]:
    """Keys whose values differ, by dotted name, with both values."""
    pairs = {name: tuple(getattr(getattr(c, g), i) for c in (a, b)) for name in _FIELDS for g, i in [name.split(".")]}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def frozen_differences(stored: Config, given: Config) -> dict[str, tuple[Any, Any]]:
    """The differences that a resumed run must not have: keys that are not `live`."""
    return {k: v for k, v in differences(stored, given).items() if not _FIELDS[k].metadata["live"]}


def check_value(name: str, text: str) -> None:
    """Raises UserError where the key is unknown, or the text is not a value of it by type, choices and range."""
    _check(_known(name), _parse(name, text))


def _known(name: str) -> str:
    if name not in _FIELDS:
        last = name.split(".")[-1]
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
        raise UserError(f"--config.{name}={text}: expected {type_name(name)}.") from None


def _check(name: str, value: Any) -> Any:
    item, kinds = _FIELDS[name], _types(name)
    if typing.get_origin(item.type) is tuple:
        ok = isinstance(value, tuple | list) and [type(v) for v in value] == list(kinds)
        value = tuple(value) if ok else value
    elif float in kinds and type(value) is int:
        ok, value = True, float(value)
    else:
        ok = type(value) in kinds
    meta = item.metadata
    ok = ok and (not meta["choices"] or value in meta["choices"])
    if not ok:
        raise UserError(f"config.{name} = {value!r}: expected {type_name(name)} ({meta['doc']}).")
    if value is not None and (meta["low"] is not None and value < meta["low"]):
        raise UserError(f"config.{name} = {value!r}: must be at least {meta['low']} ({meta['doc']}).")
    if value is not None and (meta["high"] is not None and value > meta["high"]):
        raise UserError(f"config.{name} = {value!r}: must be at most {meta['high']} ({meta['doc']}).")
    return value


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
    if m.tying == "all" and not d.joint_vocabulary:
        raise UserError(
            "config.model.tying = 'all' needs config.data.joint_vocabulary = true: two vocabularies cannot share one "
            "matrix. Use model.tying = 'decoder'."
        )
    if d.batch_tokens // d.batch_groups < 2 * d.max_length:
        raise UserError(
            f"config.data.batch_tokens = {d.batch_tokens} (of {d.batch_groups} groups) must hold at least two of the "
            f"longest pairs (config.data.max_length = {d.max_length})."
        )
    if d.batch_groups > 1 and d.batch_count == "real":
        raise UserError(
            f"config.data.batch_groups = {d.batch_groups} is for config.data.batch_count = padded_max: real tokens need "
            "no groups."
        )
    if d.batch_groups > 1 and d.batching == "buckets":
        raise UserError(
            f"config.data.batch_groups = {d.batch_groups} puts sentences of different lengths into an update: use "
            "config.data.batching = packed."
        )
    if d.tokenizer == "subword_nmt" and not d.tokenizer_model:
        raise UserError("config.data.tokenizer = subword_nmt needs its BPE codes: set config.data.tokenizer_model.")
    if m.position_start and not m.position.startswith("sinusoid"):
        raise UserError(
            f"config.model.position_start = {m.position_start} is for sinusoids; config.model.position = {m.position}."
        )
    if m.position == "learned" and d.max_length > m.position_max:
        raise UserError(
            f"config.model.position_max = {m.position_max} learned positions cannot serve "
            f"config.data.max_length = {d.max_length}."
        )
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
    if first > last or first < 0:
        raise UserError(f"config.log.profile_steps = {c.log.profile_steps}: the first update comes after the last.")
    if (
        c.eval.metric in ("bleu", "f1")
        and not c.eval.bleu_every_steps
        and (c.eval.patience or c.checkpoint.keep_best > 1)
    ):
        raise UserError(
            f"config.eval.metric = '{c.eval.metric}' needs config.eval.bleu_every_steps > 0 to be known in training."
        )
    _check_task(c)


def _check_task(c: Config) -> None:
    d = c.data
    if c.eval.metric in ("bleu", "f1") and (c.eval.metric == "f1") != (d.task == "parsing"):
        raise UserError(f"config.eval.metric = '{c.eval.metric}' is not the score of config.data.task = {d.task}.")
    if d.task == "parsing" and (d.joint_vocabulary or d.tokenizer == "subword_nmt" or d.tokenizer_model):
        raise UserError(
            "config.data.task = parsing has words on one side and symbols of trees on the other: set data.joint_vocabulary = "
            "false and model.tying = decoder or none, and no data.tokenizer_model."
        )
    if d.task == "parsing" and d.too_long == "cut":
        raise UserError(
            "config.data.too_long = 'cut' would leave trees that are not over their sentences: use drop or keep with "
            "config.data.task = parsing."
        )


def _check_schedule(o: schema.Optimizer) -> None:
    """Keys of another schedule would silently do nothing."""
    for name, schedules in (("constant", ("noam",)), ("peak_lr", ("inverse_sqrt", "constant")),
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
    if m.mixer_width % 2 == 0:
        raise UserError(f"config.model.mixer_width = {m.mixer_width} is even: the encoder's convolution is symmetric.")
    if m.mixer_width != schema.Model.mixer_width and not m.mixer.endswith("conv"):
        raise UserError(f"config.model.mixer_width is for convolutions; config.model.mixer = {m.mixer}.")
    if m.mixer in ("lstm", "gru") and m.d_model % 2:
        raise UserError(
            f"config.model.d_model = {m.d_model} is odd: each direction of the encoder's {m.mixer} takes half of it."
        )
