"""Compares the stored config of a checkpoint with the config in use: which keys must be equal, which changes are recorded."""

import json
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.config.keys import MODEL, TRAINING
from t2t_flax.config.schema import fields, keys_that_change
from t2t_flax.errors import UserError


def config_changes(stored: Config, given: Config, step: int) -> list[dict[str, Any]]:
    """`[{"step": step, "changed": {key: [stored value, given value]}}]` for the mutable keys that change the training;
    empty if none differs. `step`: of the checkpoint that the run resumes from.
    """
    recorded = {key for key in keys_that_change(TRAINING) if fields()[key].metadata["mutable"]}
    differ = config_lib.differences(stored, given).items()
    changed = {key: list(values) for key, values in differ if key in recorded}
    return [{"step": step, "changed": changed}] if changed else []


def format_changes(changed: dict[str, list]) -> str:
    """`optimizer.lr_scale 1.0 -> 0.5, ...`"""
    return ", ".join(f"{key} {old} -> {new}" for key, (old, new) in changed.items())


def recorded_changes(meta: dict[str, Any]) -> list[dict[str, Any]]:
    """The changes recorded in the metadata of a checkpoint or an average, oldest first."""
    return meta.get("config_changes") or meta.get("progress", {}).get("config_changes", [])


def stored_config(meta: dict[str, Any]) -> Config:
    """The config in a checkpoint's metadata. Raises UserError if it is none."""
    return config_lib.from_json(json.dumps(meta["config"]))


def check_same_model(stored: Config, given: Config, what: str) -> None:
    """Raises UserError naming the model keys in which `stored` and `given` differ. `what`: the stored run, for messages."""
    of_model = keys_that_change(MODEL)
    differ = {k: v for k, v in config_lib.differences(stored, given).items() if k in of_model}
    if differ:
        lines = config_lib.format_differences(differ, "there", "here")
        raise UserError(f"{what} is of another model:\n{lines}")
