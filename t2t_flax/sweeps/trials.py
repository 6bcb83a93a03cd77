"""From a sweep to its trials: each row with each seed, named after what it overrides, its config checked."""

import dataclasses
import hashlib
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.errors import UserError
from t2t_flax.sweeps.space import NAME, Overrides, as_text

SEEDS = ("seed.init", "seed.dropout", "seed.data")
_LONGEST_NAME = 120


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run of a sweep. name: of its folder. overrides: all that its row and seed change, as text."""

    name: str
    row: str
    seed: int
    overrides: dict[str, str]
    config: Config


def expand(
    path: str, fixed: dict[str, str], rows: Sequence[Overrides], seeds: int, *, numbered: bool = False
) -> list[Trial]:
    """The trials of all rows, seed by seed within a row. path: of the config. fixed: overrides of every trial. numbered:
    names of rows begin with their number, and a row may be drawn twice.

    Seed s adds s to the config's seeds; seed.data, which the built-in corpus is drawn from, stays there. Raises UserError
    for an unknown key, a wrong value, an impossible combination, or two trials of one name, before anything runs.
    """
    names = [f"{i:03d},{row_names([row])[0]}" for i, row in enumerate(rows)] if numbered else row_names(rows)
    trials = [one(path, fixed, row, name, s) for row, name in zip(rows, names, strict=True) for s in range(seeds)]
    firsts: dict[str, str] = {}
    for trial in () if numbered else (t for t in trials if not t.seed):
        other = firsts.setdefault(config_lib.to_json(trial.config), trial.row)
        if other != trial.row:
            raise UserError(f"rows {other!r} and {trial.row!r} of the sweep are the same config.")
    return trials


def one(path: str, fixed: dict[str, str], row: Overrides, name: str, seed: int) -> Trial:
    """The trial of a row and a seed; see `expand`."""
    own = {key: as_text(value) for key, value in row.items() if key != NAME}
    label = f"row {name}"
    twice = own.keys() & fixed.keys()
    if twice:
        raise UserError(f"{label}: {', '.join(sorted(twice))} is varied by the sweep and fixed by --config.KEY=VALUE.")
    try:
        base = config_lib.load_config(path, fixed | own)
        own |= _seeds(base, own, seed)
        return Trial(f"{name},seed={seed}", name, seed, own, config_lib.load_config(path, fixed | own))
    except UserError as error:
        raise UserError(f"{label}: {error}") from None


def _seeds(base: Config, own: dict[str, str], seed: int) -> dict[str, str]:
    given = [key for key in SEEDS if key in own]
    if seed and given:
        raise UserError(f"{', '.join(given)} is varied by the sweep; then it has one seed a row (--seeds=1).")
    keys = [key for key in SEEDS if not (key == "seed.data" and base.data.train.startswith("toy:"))]
    value = lambda key: getattr(base.seed, key.removeprefix("seed.")) + seed  # noqa: E731
    return {key: str(value(key)) for key in keys} if seed else {}


def row_names(rows: Sequence[Overrides]) -> list[str]:
    """A name for each row, fit for a folder: its own, or its overrides, `dropout=0.2,warmup_steps=4000`.

    Raises UserError where two rows have the same.
    """
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UserError(
                f"row {i} of the sweep is a {type(row).__name__}, expected a dict of overrides: join the lists of over(...) "
                "with product, zipped or chain."
            )
        if not isinstance(row.get(NAME, ""), str):
            raise UserError(f"a row of the sweep is named {row[NAME]!r}: a name is text.")
    keys = {key for row in rows for key in row if key != NAME}
    names = [folder_name(row.get(NAME) or _told(row, keys)) for row in rows]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"two rows of the sweep are both named {twice[0]!r}: their trials would share a folder.")
    return names


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """The last part of each key, where no other key of the sweep ends in it; else the whole key."""
    keys = set(keys)
    last = Counter(key.split(".")[-1] for key in keys)
    return {key: key if last[key.split(".")[-1]] > 1 else key.split(".")[-1] for key in keys}


def _told(row: Overrides, keys: set[str]) -> str:
    short = short_keys(keys)
    return ",".join(f"{short[key]}={as_text(value)}" for key, value in row.items() if key != NAME) or "base"


def folder_name(text: str) -> str:
    """The text with what a folder's name cannot hold replaced; a long one is cut, and ends in a digest of the whole."""
    name = _plain(text)
    if len(name.encode()) > _LONGEST_NAME or name != text.replace(" ", "_"):
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        name = name.encode()[: _LONGEST_NAME - 9].decode(errors="ignore") + "-" + digest
    return name


def is_folder_name(name: Any) -> bool:
    """Whether a row or trial can have this name: one part of a path that `folder_name` has nothing to replace in, with room
    for the number before a row and the seed behind it.
    """
    return isinstance(name, str) and name == _plain(name) and len(name.encode()) <= _LONGEST_NAME + 32


def _plain(text: str) -> str:
    return "".join(c if c.isalnum() or c in "=,.+-_()" else "_" for c in text).strip(".") or "_"


def command(path: str, fixed: dict[str, str], overrides: dict[str, str], workdir: str) -> str:
    """The command that trains this alone, as a shell reads it."""
    words = ["python", "-m", "t2t_flax", "train", f"--config={path}"]
    words += [f"--config.{key}={value}" for key, value in (fixed | overrides).items()]
    return shlex.join([*words, f"--workdir={workdir}"])
