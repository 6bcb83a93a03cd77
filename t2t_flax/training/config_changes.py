"""Compares the stored config of a checkpoint with the config in use: which keys must be equal, which changes are recorded."""

import json
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.config.keys import MODEL, TRAINING
from t2t_flax.config.schema import fields, keys_that_change
from t2t_flax.errors import UserError


def changes_of_training(stored: Config, given: Config) -> dict[str, list]:
    """{key: [stored value, given value]} of the mutable keys that change the training."""
    recorded = {key for key in keys_that_change(TRAINING) if fields()[key].metadata["mutable"]}
    return {key: list(values) for key, values in config_lib.differences(stored, given).items() if key in recorded}


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
