"""The scalars of a config as inputs of a compiled program."""

import dataclasses
from typing import Any

import numpy as np

from t2t_flax.config import Config
from t2t_flax.config.scalars import NUMBERS, RATES
from t2t_flax.models.dropout import Rate


def scalars(config: Config) -> dict[str, Any]:
    """The config's scalars as arrays: Rate for dropout, uint32 for the seed, float32 for the rest."""
    out: dict[str, Any] = {key: np.float32(_get(config, key)) for key in NUMBERS}
    for key in RATES:
        value = _get(config, key)
        out[key] = Rate.of(config.model.dropout if value is None else value)
    out["seed.dropout"] = np.uint32(config.seed.dropout % 2**32)
    return out


def with_scalars(config: Config, values: dict[str, Any]) -> Config:
    """The config with its scalars replaced by `values`, which may be traced."""
    groups: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        group, item = key.split(".")
        groups.setdefault(group, {})[item] = value
    replaced = {group: dataclasses.replace(getattr(config, group), **items) for group, items in groups.items()}
    return dataclasses.replace(config, **replaced)


def _get(config: Config, key: str) -> Any:
    group, item = key.split(".")
    return getattr(getattr(config, group), item)
