"""Several models that decode together."""

import math
import os
from dataclasses import dataclass
from typing import Any

from t2t_flax.config import Config
from t2t_flax.config.keys import READ, TEXT, TRANSLATIONS, is_set, key
from t2t_flax.errors import UserError
from t2t_flax.files import is_remote
from t2t_flax.model_forms import is_name
from t2t_flax.registry import FLAGS, GROUPS, REPEATED_WORKDIR, Flag, Group


@dataclass(frozen=True)
class Ensembles(Group):
    members: str = key(
        "",
        "other trained models that decode together with the run, separated by commas: workdirs,"
        " DIR@STEP for a checkpoint other than that of the flags; empty = none",
        changes=TRANSLATIONS,
        kind=READ,
    )
    mean: str = key(
        "probabilities",
        "what is averaged over the models: probabilities (arithmetic), or log_probabilities"
        " (geometric mean, normalized)",
        choices=("probabilities", "log_probabilities"),
        changes=TRANSLATIONS,
        when=is_set("ensembles.members"),
    )
    weights: str = key(
        "",
        "weight of each model, separated by commas, the run's own first; only their ratios count;"
        " empty = equal",
        changes=TRANSLATIONS,
        kind=TEXT,
        when=is_set("ensembles.members"),
    )

    def __post_init__(self) -> None:
        # Use absolute paths, so that records and outputs of one ensemble name the same models in
        # every working directory.
        object.__setattr__(self, "members", ",".join(map(_absolute, self.each())))

    @classmethod
    def of(cls, config: Config) -> "Ensembles":
        return config.group("ensembles")

    def each(self) -> list[str]:
        """Items of `members`."""
        return [name for name in map(str.strip, self.members.split(",")) if name]

    def shares(self) -> tuple[float, ...]:
        """Weight of each model, the run's own first; their sum is 1."""
        count = 1 + len(self.each())
        values = (
            [float(text) for text in self.weights.split(",")] if self.weights else [1.0] * count
        )
        return tuple(value / sum(values) for value in values)

    def check(self, config: Config) -> None:
        """Raise UserError for invalid weights, and for another decoder than JAX's.

        Weights are positive numbers, one for each model.
        """
        shown, count = f"config.ensembles.weights = {self.weights}", 1 + len(self.each())
        try:
            values = [float(text) for text in self.weights.split(",")] if self.weights else []
        except ValueError:
            values = [math.nan]
        if not all(0 < value < math.inf for value in values):
            raise UserError(f"{shown}: expected positive numbers, separated by commas.")
        if values and len(values) != count:
            raise UserError(
                f"{shown}: expected {count} weights, the run's own and one for each of"
                " ensembles.members."
            )
        if self.each() and config.decode.engine != "jax":
            raise UserError(
                f"config.decode.engine = {config.decode.engine} decodes with one model: set"
                " decode.engine = jax for config.ensembles.members."
            )

    def ensemble(self, loaded: Any, choice: Any, overrides: Any, processes: Any) -> Any:
        """Return the run together with the models of `members`."""
        if not self.members:
            return loaded
        from t2t_flax.extensions.ensembles.members import extend

        return extend(loaded, choice, overrides, processes)


def _absolute(name: str) -> str:
    return name if is_name(name) or is_remote(name) else os.path.abspath(name)


GROUPS.add("ensembles", Ensembles)
FLAGS.add(REPEATED_WORKDIR, Flag("", "models that decode together", "DIR", key="ensembles.members"))
