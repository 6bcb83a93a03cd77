"""The config that a checkpoint was made with beside the one in use: what must agree, and which changes are noted."""

import json
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.config.renamed import current_key
from t2t_flax.errors import UserError

_OTHERS = ("train.non_finite", "train.max_skipped_updates")


def config_changes(stored: Config, given: Config, step: int) -> list[dict[str, Any]]:
    """`[{"step": step, "changed": {key: [stored value, given value]}}]` for the live keys that change what an update does;
    an empty list where none differs. `step`: of the checkpoint that the run goes on from.
    """
    changed = {
        key: list(values)
        for key, values in config_lib.differences(stored, given).items()
        if key.startswith("optimizer.") or key in _OTHERS
    }
    return [{"step": step, "changed": changed}] if changed else []


def in_words(changed: dict[str, list]) -> str:
    """`optimizer.lr_scale 1.0 -> 0.5, ...`"""
    return ", ".join(f"{key} {old} -> {new}" for key, (old, new) in changed.items())


def changes_in(meta: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that a checkpoint's meta holds, of a run or of an average; oldest first."""
    stored = meta.get("config_changes") or meta.get("progress", {}).get("config_changes", [])
    return [change | {"changed": {current_key(k): v for k, v in change["changed"].items()}} for change in stored]


def stored_config_of(meta: dict[str, Any]) -> Config:
    """The config in a checkpoint's meta. Raises UserError where a newer version wrote it."""
    return config_lib.from_json(json.dumps(meta["config"]))


def check_same_model(stored: Config, given: Config, what: str) -> None:
    """Raises UserError naming the keys of the model in which a stored run differs from the given config."""
    differ = {k: v for k, v in config_lib.differences(stored, given).items() if _shapes(k)}
    if differ:
        lines = config_lib.format_differences(differ, "there", "here")
        raise UserError(f"{what} is of another model:\n{lines}")


def _shapes(name: str) -> bool:
    return name.startswith("model.") and "dropout" not in name or name == "data.joint_vocabulary"
