"""Search spaces of sweeps: combined rows of overrides, or ranges for Optuna.

    over("model.dropout", [0.1, 0.2])               two rows
    product(over(...), over(...))                   every combination
    zipped(over(...), over(...))                    row i of the first with row i of the second
    concat(over(...), over(...))                    one list after the other
    named("no dropout", {"model.dropout": 0.0})     one row with the given name

A sweep file defines `get_sweep()`, which returns a `Sweep`.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.config.keys import check_value
from t2t_flax.config.schema import fields
from t2t_flax.errors import UserError, require

NAME = "name"
"""Entry of an overrides dict that names its row.

Every other entry is a config key.
"""

Overrides = dict[str, Any]
"""Config keys with the values of one row, such as {"model.dropout": 0.2}."""


def over(key: str, values: Sequence[Any]) -> list[Overrides]:
    """Return one row per value of `key`."""
    return [{key: value} for value in values]


def named(name: str, overrides: Overrides | None = None) -> list[Overrides]:
    """Return one row with the given name; without overrides the unchanged config."""
    return [{NAME: name} | (overrides or {})]


def product(*parts: Sequence[Overrides]) -> list[Overrides]:
    """Return every combination; the last part varies fastest.

    Raises UserError if two parts set the same key.
    """
    return [_merge(rows) for rows in itertools.product(*parts)]


def zipped(*parts: Sequence[Overrides]) -> list[Overrides]:
    """Return row i of every part, merged.

    Raises UserError for parts of different lengths, or that set the same key.
    """
    if len({len(part) for part in parts}) > 1:
        raise UserError(
            "zipped() needs parts of equal length; these have"
            f" {', '.join(str(len(p)) for p in parts)}."
        )
    return [_merge(rows) for rows in zip(*parts, strict=True)]


def concat(*parts: Sequence[Overrides]) -> list[Overrides]:
    """Return one part after the other."""
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


def uniform(low: float, high: float) -> Any:
    """Return a range of floats, both ends included."""
    return _distribution("FloatDistribution", low, high)


def log_uniform(low: float, high: float) -> Any:
    """Return a range of floats, uniform in the logarithm, as for learning rates."""
    return _distribution("FloatDistribution", low, high, log=True)


def integers(low: int, high: int, *, log: bool = False) -> Any:
    """Return a range of integers, both ends included."""
    return _distribution("IntDistribution", low, high, log=log)


def choice(*values: Any) -> Any:
    """Return a choice among the values."""
    scalars = (bool, int, float, str, type(None))
    return _distribution(
        "CategoricalDistribution", [x if isinstance(x, scalars) else as_text(x) for x in values]
    )


def _distribution(kind: str, *arguments: Any, **options: Any) -> Any:
    """Return a distribution of Optuna.

    Raises UserError for an impossible range, and without Optuna.
    """
    require("optuna", "sweep", "a search")
    from optuna import distributions

    try:
        if not all(math.isfinite(x) for x in arguments if isinstance(x, float)):
            raise ValueError("give finite numbers")
        return getattr(distributions, kind)(*arguments, **options)
    except ValueError as error:
        raise UserError(f"the range {arguments} of a search is impossible: {error}") from None


@dataclasses.dataclass(frozen=True)
class Search:
    """Rows that Optuna proposes one by one, each trained with one seed.

    Attributes:
        space: a range (`uniform`, `log_uniform`, `integers`, `choice`) for each config key.
        count: number of rows.
        metric: the objective, a score of the validation set (`valid_nll`, `valid_bleu` ...).
        method: "random", or "tpe", which learns from finished trials.
        prune: True or "median": from a quarter of the updates on, stop a trial that is worse than
            the median of the complete ones at the same update. "halving": successive halving at a
            quarter and at half of the updates.
        seed: seed of the proposals.
    """

    space: dict[str, Any]
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
            if not hasattr(values, "to_internal_repr"):
                raise UserError(
                    f"the search space has {values!r} for {key}: use choice(...), uniform(low,"
                    " high) or another range."
                )
        if not self.space or self.count < 1:
            raise UserError(
                f"a search needs a space and a count of at least 1: count = {self.count}."
            )
        if not self.metric.startswith("valid_"):
            raise UserError(
                f"a search that selects by {self.metric} fits the test set: name a score of the"
                " validation set, such as valid_nll or valid_bleu."
            )

    def validate(self) -> None:
        """Raise UserError for an unknown key or an invalid choice or bound."""
        for key, values in self.space.items():
            for value in getattr(values, "choices", None) or (values.low, values.high):
                (parsed,) = config_lib.override({}, {key: as_text(value)}).values()
                check_value(key, fields()[key], parsed[key.partition(".")[2]])

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        from optuna.distributions import distribution_to_json

        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return values | {"space": {key: distribution_to_json(x) for key, x in self.space.items()}}

    @staticmethod
    def from_json(values: dict[str, Any]) -> "Search":
        """Return the search that `to_json` stored. Raises UserError without Optuna."""
        require("optuna", "sweep", "a search")
        from optuna.distributions import json_to_distribution

        return Search(
            **(
                values
                | {"space": {key: json_to_distribution(x) for key, x in values["space"].items()}}
            )
        )


def as_text(value: Any) -> str:
    """Return a value as --config.KEY=VALUE takes it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "(" + ",".join(map(as_text, value)) + ")"
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Rows (listed or searched), each trained with `seeds` seeds.

    Attributes:
        config: as for `--config`, which takes precedence.
        baseline: the row that the others are compared with (default: the best one).
        score: score of the report (default: the validation set's, see `results.default_score`).
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
