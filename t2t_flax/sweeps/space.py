"""What a sweep varies: lists of overrides and how they combine, or ranges to search.

    over("model.dropout", [0.1, 0.2])                       two of them
    product(over(...), over(...))                           each with each
    zipped(over(...), over(...))                            the first with the first, the second with the second
    chain(over(...), over(...))                             one list after the other
    named("no dropout", {"model.dropout": 0.0})             one, with a name of its own

A sweep file defines `get_sweep()`, which returns a `Sweep`.
"""

import dataclasses
import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.errors import UserError

NAME = "name"
"""The entry of an overrides dict that names its row; every other entry is a config key."""

Overrides = dict[str, Any]
"""Config keys with the values of one row, such as {"model.dropout": 0.2}."""


def over(key: str, values: Sequence[Any]) -> list[Overrides]:
    """One key, one row for each value."""
    return [{key: value} for value in values]


def named(name: str, overrides: Overrides | None = None) -> list[Overrides]:
    """One row with a name of its own; without overrides the config as it is."""
    return [{NAME: name} | (overrides or {})]


def product(*parts: Sequence[Overrides]) -> list[Overrides]:
    """Every combination; the last part changes fastest. Raises UserError where two parts set the same key."""
    return [_joined(chosen) for chosen in itertools.product(*parts)]


def zipped(*parts: Sequence[Overrides]) -> list[Overrides]:
    """The i-th of every part together. Raises UserError for parts of different lengths, or that set the same key."""
    if len({len(part) for part in parts}) > 1:
        raise UserError(f"zipped() needs parts of one length: these have {', '.join(str(len(p)) for p in parts)}.")
    return [_joined(chosen) for chosen in zip(*parts, strict=True)]


def chain(*parts: Sequence[Overrides]) -> list[Overrides]:
    """One part after the other."""
    return [dict(row) for part in parts for row in part]


def _joined(chosen: Sequence[Overrides]) -> Overrides:
    out: Overrides = {}
    for overrides in chosen:
        twice = (out.keys() & overrides.keys()) - {NAME}
        if twice:
            raise UserError(f"a sweep sets {', '.join(sorted(twice))} twice in one row.")
        name = " ".join(part[NAME] for part in (out, overrides) if NAME in part)
        out |= overrides
        if name:
            out[NAME] = name
    return out


@dataclasses.dataclass(frozen=True)
class Range:
    """Values between `low` and `high`, both possible: evenly or, with `log`, evenly in the logarithm; whole numbers with
    `whole`. `choices` instead: one of them.
    """

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[Any, ...] = ()

    def __post_init__(self):
        if self.choices:
            return
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise UserError(f"a range from {self.low} to {self.high} has no end: give finite numbers.")
        if not self.low < self.high:
            raise UserError(f"a range from {self.low} to {self.high} is empty: the first must be below the second.")
        if self.log and self.low <= 0:
            raise UserError(f"a logarithmic range cannot begin at {self.low}: give a number above 0.")
        if self.whole and (self.low != round(self.low) or self.high != round(self.high)):
            raise UserError(f"a range of whole numbers cannot go from {self.low} to {self.high}: give whole ends.")

    def draw(self, rng: random.Random) -> Any:
        """A value of it; numbers with four significant digits, so that a row's name tells them whole."""
        if self.choices:
            return rng.choice(self.choices)
        if self.whole and not self.log:
            return rng.randint(round(self.low), round(self.high))
        value = rng.uniform(*(map(math.log, (self.low, self.high)) if self.log else (self.low, self.high)))
        return self.rounded(math.exp(value) if self.log else value)

    def rounded(self, value: float) -> float | int:
        """A drawn number as trials get it: whole, or with four significant digits; never beyond an end."""
        value = round(value) if self.whole else float(f"{value:.4g}")
        return type(value)(min(max(value, self.low), self.high))


def uniform(low: float, high: float) -> Range:
    """Evenly between both."""
    return Range(low, high)


def log_uniform(low: float, high: float) -> Range:
    """Evenly in the logarithm: for learning rates."""
    return Range(low, high, log=True)


def integers(low: int, high: int, *, log: bool = False) -> Range:
    """Whole numbers, both ends possible."""
    return Range(low, high, log=log, whole=True)


def choice(*values: Any) -> Range:
    """One of the values."""
    return Range(choices=values)


@dataclasses.dataclass(frozen=True)
class Search:
    """Rows that are drawn instead of listed.

    space: a Range for each config key. count: rows in all. metric: what is searched for, a score of the final record
    (`sacrebleu`, `tokenized_bleu`, `chrf`, `ter`, `nll` ...) or of the validation set (`valid_nll`, `valid_bleu`);
    the task's metrics say which are minimized. method: "random", known before the first trial, or "tpe", Optuna's, which
    learns from the trials before. prune: successive halving (Optuna's): at a quarter and at half of the updates a trial
    stops unless its validation metric is in the better half of those that came so far.
    """

    space: dict[str, Range]
    count: int
    metric: str = ""
    method: str = "random"
    prune: bool = False
    seed: int = 0

    def __post_init__(self):
        if self.method not in ("random", "tpe"):
            raise UserError(f"search method {self.method!r}: expected random or tpe.")
        for key, of in self.space.items():
            if not isinstance(of, Range):
                raise UserError(
                    f"the search space has {of!r} for {key}: give choice(...), uniform(low, high) or another range."
                )
        if not self.space:
            raise UserError("the search space is empty: give it a range for at least one config key.")
        if self.count < 1:
            raise UserError(f"a search of {self.count} rows: give a count of at least 1.")
        if not self.metric:
            raise UserError("the search has no metric: say what to look for, for example metric='valid_nll'.")
        if self.prune and not self.metric.startswith("valid_"):
            raise UserError(
                f"prune looks at trials while they train; {self.metric} is known at their end: use valid_nll or valid_bleu."
            )

    @property
    def known(self) -> bool:
        """Whether all rows are known before the first trial."""
        return self.method == "random" and not self.prune

    def rows(self) -> list[Overrides]:
        """The rows of a random search: row i is a function of the seed and i."""
        rngs = [random.Random(f"{self.seed}/{i}") for i in range(self.count)]
        return [{key: of.draw(rng) for key, of in self.space.items()} for rng in rngs]

    def check(self) -> None:
        """Raises UserError for an unknown key, or a choice or end of a range that the key cannot have."""
        for key, of in self.space.items():
            for value in of.choices or (of.low, of.high):
                config_lib.check_value(key, as_text(round(value) if of.whole and not of.choices else value))

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values, equal after a reading; `from_json` makes the search of them, its choices as text."""
        told = dataclasses.asdict(self)
        for of in told["space"].values():
            of["choices"] = [as_text(value) for value in of["choices"]]
        return told

    @staticmethod
    def from_json(told: dict[str, Any]) -> "Search":
        ranges = {key: Range(**(of | {"choices": tuple(of["choices"])})) for key, of in told["space"].items()}
        return Search(**(told | {"space": ranges}))


def as_text(value: Any) -> str:
    """A value as --config.KEY=VALUE has it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "(" + ",".join(map(as_text, value)) + ")"
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Rows (listed or searched), each trained with `seeds` seeds.

    config: what `--config` would be; the command line's takes precedence. baseline: name of the row that the others are
    compared with; without one, the best. score: of the report; without one, the task's (BLEU, F1).
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
            raise UserError(f"a sweep with {self.seeds} seeds has no trial: give at least 1.")
