"""Expansion of a sweep into trials: each row with each seed.

A trial is named after its overrides and has a validated config.
"""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.errors import UserError
from t2t_flax.extensions.sweeps.space import NAME, Overrides, as_text

SEED_KEYS = ("seed.init", "seed.dropout", "seed.data")
_MAX_NAME_BYTES = 120


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    Args:
        name: name of its folder.
        overrides: all changes of its row and seed, as text.
    """

    name: str
    row: str
    seed: int
    overrides: dict[str, str]
    config: Config


def expand(path: str, fixed: dict[str, str], rows: Sequence[Overrides], seeds: int) -> list[Trial]:
    """Return the trials of all rows, seed by seed within a row.

    Raises UserError for an unknown key, a wrong value, an impossible combination (each once, with
    the rows that it concerns), or two trials of one name.

    Args:
        path: file or preset of the config.
        fixed: overrides of every trial.
    """
    trials: list[Trial] = []
    refused: dict[str, list[str]] = {}  # error -> rows
    for overrides, name in zip(rows, row_names(rows), strict=True):
        try:
            trials += [make_trial(path, fixed, overrides, name, seed) for seed in range(seeds)]
        except UserError as error:
            refused.setdefault(str(error), []).append(name)
    if refused:
        lines = (
            error
            if len(names) == len(rows)
            else f"row{'s' * (len(names) > 1)} {'; '.join(names)}: {error}"
            for error, names in refused.items()
        )
        raise UserError("\n".join(lines))
    first_row: dict[str, str] = {}
    for trial in (t for t in trials if not t.seed):
        row = first_row.setdefault(config_lib.to_json(trial.config), trial.row)
        if row != trial.row:
            raise UserError(f"rows {row!r} and {trial.row!r} of the sweep are the same config.")
    return trials


def make_trial(path: str, fixed: dict[str, str], row: Overrides, name: str, seed: int) -> Trial:
    """Return the trial of a row and a seed. Raises UserError as `expand`, without the row."""
    overrides = {key: as_text(value) for key, value in row.items() if key != NAME}
    if repeated := overrides.keys() & fixed.keys():
        raise UserError(
            f"{', '.join(repeated)} is varied by the sweep and fixed by --config.KEY=VALUE."
        )
    base = config_lib.load_config(path, fixed, overrides)
    overrides |= _seed_overrides(base, overrides, seed)
    config = config_lib.load_config(path, fixed, overrides)
    return Trial(f"{name},seed={seed}", name, seed, overrides, config)


def _seed_overrides(base: Config, overrides: dict[str, str], seed: int) -> dict[str, str]:
    if not seed:
        return {}
    if varied := [key for key in SEED_KEYS if key in overrides]:
        raise UserError(
            f"{', '.join(varied)} is varied by the sweep, so each row has one seed (--seeds=1)."
        )
    return {key: str(base.value(key) + seed) for key in SEED_KEYS}


def row_names(rows: Sequence[Overrides]) -> list[str]:
    """Return a folder name per row: its own name, or its overrides.

    An example is `dropout=0.2,warmup_steps=4000`. Raises UserError if two rows have the same name.
    """
    for i, row in enumerate(rows):
        if not isinstance(row, dict) or not isinstance(row.get(NAME, ""), str):
            raise UserError(
                f"row {i} of the sweep is {row!r}, expected a dict of overrides whose {NAME}, if it"
                " has one, is text: join the lists of over(...) with product, zipped or concat."
            )
    short = short_keys(key for row in rows for key in row if key != NAME)
    names = []
    for row in rows:
        values = [f"{short[key]}={as_text(value)}" for key, value in row.items() if key != NAME]
        names.append(folder_name(row.get(NAME) or ",".join(values) or "base"))
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise UserError(
            f"two rows of the sweep are both named {repeated[0]!r}: their trials would share a"
            " folder."
        )
    return names


def search_row_name(params: Overrides) -> str:
    """Return the name of a proposed row; a label, in which floats have four digits."""
    return row_names(
        [{key: float(f"{x:.4g}") if isinstance(x, float) else x for key, x in params.items()}]
    )[0]


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Return the last part of each key if it is unique in the sweep.

    Otherwise, the whole key.
    """
    keys = set(keys)
    count = Counter(key.split(".")[-1] for key in keys)
    return {key: key if count[key.split(".")[-1]] > 1 else key.split(".")[-1] for key in keys}


def folder_name(text: str) -> str:
    """Return the text with characters replaced that a folder name cannot have.

    Changed or truncated names end in a digest.
    """
    name = _replace_special(text)
    if len(name.encode()) > _MAX_NAME_BYTES or name != text.replace(" ", "_"):
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        name = name.encode()[: _MAX_NAME_BYTES - 9].decode(errors="ignore") + "-" + digest
    return name


def is_folder_name(name: Any) -> bool:
    """Return True if a row or trial can have this name.

    It must be a single path component without special characters, with room for a row's index and
    the seed.
    """
    return (
        isinstance(name, str)
        and name == _replace_special(name)
        and len(name.encode()) <= _MAX_NAME_BYTES + 32
    )


def _replace_special(text: str) -> str:
    return "".join(c if c.isalnum() or c in "=,.+-_()" else "_" for c in text).strip(".") or "_"
