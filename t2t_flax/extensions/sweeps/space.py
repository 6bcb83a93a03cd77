"""Search spaces of sweeps: rows of overrides and how they combine, or ranges to draw from.

    over("model.dropout", [0.1, 0.2])                       two rows
    product(over(...), over(...))                           every combination
    zipped(over(...), over(...))                            the first with the first, the second with the second
    concat(over(...), over(...))                            one list after the other
    named("no dropout", {"model.dropout": 0.0})             one row with a name of its own
    quasi_random({"model.dropout": uniform(0, 0.3)}, 5)     five rows, spread evenly over ranges

A sweep file defines `get_sweep()`, which returns a `Sweep`.
"""

import dataclasses
import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.config.keys import check_value
from t2t_flax.config.schema import fields
from t2t_flax.errors import UserError

NAME = "name"
"""The entry of an overrides dict that names its row; every other entry is a config key."""

Overrides = dict[str, Any]
"""Config keys with the values of one row, such as {"model.dropout": 0.2}."""


def over(key: str, values: Sequence[Any]) -> list[Overrides]:
    """One row per value of `key`."""
    return [{key: value} for value in values]


def named(name: str, overrides: Overrides | None = None) -> list[Overrides]:
    """One row with a name of its own; without overrides the unchanged config."""
    return [{NAME: name} | (overrides or {})]


def product(*parts: Sequence[Overrides]) -> list[Overrides]:
    """Every combination; the last part varies fastest. Raises UserError if two parts set the same key."""
    return [_merge(rows) for rows in itertools.product(*parts)]


def zipped(*parts: Sequence[Overrides]) -> list[Overrides]:
    """Row i of every part, merged. Raises UserError for parts of different lengths, or that set the same key."""
    if len({len(part) for part in parts}) > 1:
        raise UserError(f"zipped() needs parts of equal length; these have {', '.join(str(len(p)) for p in parts)}.")
    return [_merge(rows) for rows in zip(*parts, strict=True)]


def concat(*parts: Sequence[Overrides]) -> list[Overrides]:
    """One part after the other."""
    return [dict(row) for part in parts for row in part]


def _merge(rows: Sequence[Overrides]) -> Overrides:
    merged: Overrides = {}
    for row in rows:
        repeated = (merged.keys() & row.keys()) - {NAME}
        if repeated:
            raise UserError(f"a sweep sets {', '.join(sorted(repeated))} twice in one row.")
        name = " ".join(part[NAME] for part in (merged, row) if NAME in part)
        merged |= row
        if name:
            merged[NAME] = name
    return merged


@dataclasses.dataclass(frozen=True)
class Range:
    """Values from `low` to `high`, both included: uniform, or uniform in the logarithm (`log`); integers only with
    `whole`. With `choices`: one of these instead.
    """

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[Any, ...] = ()

    def __post_init__(self):
        if self.choices:
            return
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise UserError(f"a range from {self.low} to {self.high}: give finite numbers, the first below the second.")
        if self.log and self.low <= 0:
            raise UserError(f"a logarithmic range cannot begin at {self.low}: give a number above 0.")
        if self.whole and (self.low != round(self.low) or self.high != round(self.high)):
            raise UserError(f"an integer range cannot go from {self.low} to {self.high}: give integers.")

    def draw(self, rng: random.Random) -> Any:
        """A random value."""
        return self.at(rng.random())

    def at(self, share: float) -> Any:
        """The value at a share from 0 to below 1 of the range; floats have four significant digits, so that a row's name shows
        them in full.
        """
        if self.choices:
            return self.choices[int(share * len(self.choices))]
        if self.whole and not self.log:
            return round(self.low) + int(share * (round(self.high) - round(self.low) + 1))
        low, high = map(math.log, (self.low, self.high)) if self.log else (self.low, self.high)
        value = low + (high - low) * share
        return self.rounded(math.exp(value) if self.log else value)

    def rounded(self, value: Any) -> Any:
        """A value as trials use it: a choice, an integer, or four significant digits; never outside the range."""
        if self.choices:
            return value
        value = round(value) if self.whole else float(f"{value:.4g}")
        return type(value)(min(max(value, self.low), self.high))

    def parse(self, text: str) -> Any:
        """The value that `as_text` gave this text."""
        if self.choices:
            return next(value for value in self.choices if as_text(value) == text)
        return int(text) if self.whole else float(text)


def uniform(low: float, high: float) -> Range:
    """Uniform between both."""
    return Range(low, high)


def log_uniform(low: float, high: float) -> Range:
    """Uniform in the logarithm, as for learning rates."""
    return Range(low, high, log=True)


def integers(low: int, high: int, *, log: bool = False) -> Range:
    """Integers, both ends included."""
    return Range(low, high, log=log, whole=True)


def choice(*values: Any) -> Range:
    """One of the values."""
    return Range(choices=values)


def quasi_random(space: dict[str, Range], count: int, seed: int = 0) -> list[Overrides]:
    """`count` rows of a scrambled Halton sequence, which fills the ranges more evenly than random rows do (Bousquet et al.
    2017).
    """
    from scipy.stats import qmc

    points = qmc.Halton(len(space), rng=seed).random(count)
    return [{key: values.at(x) for (key, values), x in zip(space.items(), point, strict=True)} for point in points]


@dataclasses.dataclass(frozen=True)
class Search:
    """Rows that are drawn from ranges instead of listed.

    space: a Range per config key. count: number of rows. metric: the objective, a score of the validation set (`valid_nll`,
    `valid_bleu` ...); the task's table of metrics says which of them are minimized. method: "random" draws all rows before
    the first trial; "tpe" (Optuna) learns from finished trials. prune: True or "median", from a quarter of the
    updates on a trial stops whose metric is worse than the median of the complete trials at the same update; "halving", at a
    quarter and at half of the updates a trial stops unless its metric is in the better half of those that have come as far.
    """

    space: dict[str, Range]
    count: int
    metric: str
    method: str = "random"
    prune: bool | str = False
    seed: int = 0

    def __post_init__(self):
        if self.method not in ("random", "tpe"):
            raise UserError(f"search method {self.method!r}: expected random or tpe.")
        if self.prune not in (False, True, "median", "halving"):
            raise UserError(f"search prune {self.prune!r}: expected median or halving.")
        for key, values in self.space.items():
            if not isinstance(values, Range):
                raise UserError(
                    f"the search space has {values!r} for {key}: use choice(...), uniform(low, high) or another range."
                )
        if not self.space or self.count < 1:
            raise UserError("a search needs a range for at least one config key, and a count of at least 1.")
        if not self.metric.startswith("valid_"):
            raise UserError(
                f"a search that selects by {self.metric} fits the test set: name a score of the validation set, such as "
                "valid_nll or valid_bleu."
            )

    @property
    def adaptive(self) -> bool:
        """Whether rows depend on the results of earlier trials; otherwise `rows` has them all."""
        return self.method != "random" or bool(self.prune)

    def rows(self) -> list[Overrides]:
        """The rows of a random search: row i is a function of the seed and i."""
        rngs = [random.Random(f"{self.seed}/{i}") for i in range(self.count)]
        return [{key: values.draw(rng) for key, values in self.space.items()} for rng in rngs]

    def validate(self) -> None:
        """Raises UserError for an unknown key, or a choice or bound that the key does not accept."""
        for key, values in self.space.items():
            for value in values.choices or (values.low, values.high):
                is_integer = values.whole and not values.choices
                texts = {key: as_text(round(value) if is_integer else value)}
                (parsed,) = config_lib.override({}, texts).values()
                check_value(key, fields()[key], parsed[key.partition(".")[2]])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, choices as text."""
        space = {}
        for key, values in self.space.items():
            choices = [as_text(value) for value in values.choices]
            space[key] = dataclasses.asdict(values) | {"choices": choices}
        return dataclasses.asdict(self) | {"space": space}

    @staticmethod
    def from_json(values: dict[str, Any]) -> "Search":
        space = {key: Range(**(r | {"choices": tuple(r["choices"])})) for key, r in values["space"].items()}
        return Search(**(values | {"space": space}))


def as_text(value: Any) -> str:
    """A value as --config.KEY=VALUE takes it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "(" + ",".join(map(as_text, value)) + ")"
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Rows (listed or searched), each trained with `seeds` seeds.

    config: as for `--config`, which takes precedence. baseline: the row that the others are compared with (default: the
    best on the validation set). score: of the report (default: that of the validation set, see `results.default_score`).
    """

    rows: Sequence[Overrides] = ()
    search: Search | None = None
    seeds: int = 1
    config: str = ""
    baseline: str = ""
    score: str = ""

    def __post_init__(self):
        if bool(self.rows) == bool(self.search):
            raise UserError("a sweep has either rows or a search.")
        if self.seeds < 1:
            raise UserError(f"a sweep with seeds={self.seeds} has no trial: give at least 1.")
