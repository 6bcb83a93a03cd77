"""Experiment trackers: TensorBoard, Weights & Biases, MLflow and Trackio.

They get the numbers of a run.
"""

import difflib
from dataclasses import dataclass
from typing import Any

from t2t_flax.config import Config
from t2t_flax.config.keys import TEXT, is_set, key
from t2t_flax.errors import UserError, require
from t2t_flax.registry import GROUPS, Group

NAMES = ("tensorboard", "wandb", "mlflow", "trackio")
"""Names of trackers; each has its row in `clients.CLIENTS`."""


@dataclass(frozen=True)
class Trackers(Group):
    names: str = key(
        "tensorboard",
        "experiment trackers that get the numbers of metrics.jsonl and the test scores: any of"
        " tensorboard, wandb, mlflow, trackio, separated by commas; empty = none",
        mutable=True,
        kind=TEXT,
    )
    group: str = key(
        "",
        "group of runs to which the trackers add this one; empty = of a sweep's trials, the sweep's"
        " name",
        mutable=True,
        kind=TEXT,
        when=is_set("trackers.names"),
    )

    @classmethod
    def of(cls, config: Config) -> "Trackers":
        return config.group("trackers")

    def check(self, config: Config) -> None:
        """Raise UserError for a tracker that does not exist."""
        for name in self.each():
            if name not in NAMES:
                near = difflib.get_close_matches(name, NAMES, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise UserError(
                    f"config.trackers.names = {self.names!r}: there is no tracker {name!r}.{hint}"
                    f" Expected a comma-separated list of {', '.join(NAMES)}, or nothing."
                )

    def check_installed(self) -> None:
        from t2t_flax.extensions.trackers.clients import MODULES

        for name in self.each():
            for module in MODULES.get(name, (name,)):
                require(module, name, f"config.trackers.names = {self.names}")

    def training_hooks(self, setup: Any, progress: Any, processes: Any) -> list[Any]:
        if not self.each():
            return []
        from t2t_flax.extensions.trackers.hook import hooks

        return hooks(setup, progress, processes)

    def each(self) -> tuple[str, ...]:
        """Trackers in `names`, each once."""
        return tuple(dict.fromkeys(name.strip() for name in self.names.split(",") if name.strip()))


GROUPS.add("trackers", Trackers)
