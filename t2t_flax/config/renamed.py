"""Keys and values that were renamed: the one table by which older configs, commands and records keep working.

A name stays in this table for good and is never reused for another key. `upgraded` is for stored configs, `current_overrides`
for KEY=VALUE texts, `Group` for config files in Python.
"""

import functools
import sys
from collections.abc import Mapping
from typing import Any

import ml_collections

from t2t_flax.errors import UserError

SCHEMA_VERSION = 4
"""1: the old names below. 2: the new ones, but log.tensorboard. 3: log.trackers. 4: data.subword_samples."""

KEYS = {
    "model.mixer_width": "model.conv_kernel_size",
    "model.norm": "model.norm_placement",
    "model.position_start": "model.position_offset",
    "model.position_max": "model.max_positions",
    "model.tying": "model.tie_embeddings",
    "model.decoder_start": "model.decoder_start_token",
    "model.vocab_multiple": "model.pad_vocab_to_multiple",
    "data.processes": "data.num_workers",
    "data.tokenized": "data.pretokenized",
    "data.too_long": "data.on_too_long",
    "data.batch_count": "data.batch_size_counts",
    "data.row_length": "data.pack_length",
    "data.bpe_dropout_samples": "data.subword_samples",
    "data.packed_shift": "data.packed_decoder_start",
    "optimizer.constant": "optimizer.lr_scale",
    "optimizer.step_origin": "optimizer.schedule_first_step",
    "optimizer.clip_norm": "optimizer.max_grad_norm",
    "loss.smoothing_mass": "loss.label_smoothing_over",
    "loss.chunk_tokens": "loss.logits_chunk_size",
    "eval.bleu_every_steps": "eval.decode_every_steps",
    "eval.bleu_sentences": "eval.decode_sentences",
    "decode.stop": "decode.early_stopping",
    "decode.max_extra": "decode.max_length_offset",
    "decode.max_ratio": "decode.max_length_ratio",
    "mesh.fsdp_shards": "mesh.fsdp_mode",
    "log.tensorboard": "log.trackers",
}
"""Old name -> new name, in the same group."""

VALUES = {
    "model.decoder_start_token": {"pad_row": "pad"},
    "data.on_too_long": {"cut": "truncate"},
    "data.batch_size_counts": {"real": "real_tokens", "padded_max": "padded_tokens"},
    "data.packed_decoder_start": {"restart": "start", "carry": "previous_eos"},
    "loss.label_smoothing_over": {"others": "non_target", "others_nopad": "non_target_non_pad"},
    "decode.early_stopping": {"bound": "exact"},
    "mesh.fsdp_mode": {"all": "full", "optimizer": "zero1"},
    "log.trackers": {True: "tensorboard", False: ""},
}
"""Old value -> new value of a key by its new name. A key that was true or false is mapped from its texts too."""

REMOVED = {"data.batch_processes": "one thread of the training process makes the batches"}
"""Removed key -> why it has no effect any more. Accepted and ignored wherever old names are."""

_ITEMS = {old.partition(".")[2]: new.partition(".")[2] for old, new in KEYS.items()}
_ITEM_NAMES = {new.partition(".")[2]: new for new in KEYS.values()}
_BOOLS = {"true": True, "false": False, "1": True, "0": False}
_REMOVED_ITEMS = {name.partition(".")[2]: name for name in REMOVED}


def current_key(name: str) -> str:
    """The name that a dotted key has now."""
    return KEYS.get(name, name)


def current_value(name: str, value: Any) -> Any:
    """The name that a value of this key (by either name) has now; any other value as it is."""
    values = VALUES.get(current_key(name), {})
    old = _BOOLS.get(value.lower(), value) if isinstance(value, str) and True in values else value
    return values.get(old, value) if isinstance(old, str | bool) else value


def original_value(name: str, value: str) -> Any:
    """The first name of a value: what digests of older files were computed from."""
    return next((old for old, new in VALUES.get(name, {}).items() if new == value), value)


def current_items(group: str, items: Mapping[str, Any]) -> dict[str, Any]:
    """A group of keys by their current names and values. Raises UserError if a key is there under both names."""
    renamed: dict[str, Any] = {}
    for item, value in items.items():
        old = f"{group}.{item}"
        if old in REMOVED:
            continue
        new = current_key(old)
        name = item if new == old else new.partition(".")[2]
        if name != item and name in items:
            raise UserError(f"config.{old} is the old name of config.{new}, which is set too: remove config.{old}.")
        renamed[name] = current_value(new, value)
    return renamed


def _without_removed(group: str, items: Any) -> Any:
    if not isinstance(items, Mapping):
        return items
    return {item: value for item, value in items.items() if f"{group}.{item}" not in REMOVED}


def upgraded(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored config (of config.json, a checkpoint or an evaluation record) in current names and values.

    One without a schema version counts as version 1. Nothing is checked, and unknown parts stay as they are.
    """
    version = stored.get("schema_version", 1)
    if type(version) is int and version >= SCHEMA_VERSION:
        return {group: _without_removed(group, items) for group, items in stored.items()}
    groups = {group: current_items(group, items) for group, items in stored.items() if isinstance(items, Mapping)}
    for name in groups.get("seed", {}).keys() & {"init", "dropout"}:  # once accepted, and used modulo 2^32
        value = groups["seed"][name]
        groups["seed"][name] = value % 2**32 if type(value) is int and value >= 2**32 else value
    return {**stored, **groups, "schema_version": SCHEMA_VERSION}


def current_overrides(overrides: Mapping[str, Any], *, note: str = "") -> dict[str, Any]:
    """`{"optimizer.constant": "2"}` as `{"optimizer.lr_scale": "2"}`, in the same order; unknown keys stay as they are.

    note: prefix of a flag or file; with it each renamed key is named once on standard error. Raises UserError if a key is
    given under both names.
    """
    renamed: dict[str, Any] = {}
    for old, value in overrides.items():
        if old in REMOVED:
            if note:
                _note(f"{note}{old} has no effect any more: {REMOVED[old]}")
            continue
        new = current_key(old)
        if new != old:
            if new in overrides:
                raise UserError(f"{note}{old} is the old name of {note}{new}: give only {new}.")
            if note:
                _note(f"{note}{old} is now {note}{new}")
        renamed[new] = current_value(new, value)
        if note and renamed[new] != value:
            _note(f"{note}{new}={value} is now {note}{new}={renamed[new]}")
    return renamed


@functools.cache
def _note(text: str) -> None:
    """Prints a line once in a process."""
    print(f"note: {text}", file=sys.stderr, flush=True)


class Group(ml_collections.ConfigDict):
    """A group of keys for config files: reads and sets an old name as the new one, with a note on standard error."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(self._current(key))

    def __setitem__(self, key: str, value: Any) -> None:
        if key in _REMOVED_ITEMS:
            _note(f"the config key {_REMOVED_ITEMS[key]} has no effect any more: {REMOVED[_REMOVED_ITEMS[key]]}")
            return
        name = self._current(key)
        if name != key and isinstance(value, bool):  # the new key may be text, of which ConfigDict takes no bool
            value = current_value(_ITEM_NAMES[name], value)
        super().__setitem__(name, value)

    def _current(self, key: Any) -> Any:
        new = _ITEMS.get(key)
        if new is None or new not in self:
            return key
        _note(f"the config key {key} is now {new}")
        return new
