"""Inspection: layer statistics, hidden states, attention, profiles.

They describe runs and trained models.
"""

from dataclasses import dataclass
from typing import Any

from t2t_flax.config import Config
from t2t_flax.config.keys import key
from t2t_flax.errors import UserError
from t2t_flax.registry import COMMANDS, GROUPS, Command, Group


@dataclass(frozen=True)
class Inspection(Group):
    profile_steps: tuple[int, int] = key(
        (0, 0),
        "first and last update of a profiler trace, written to WORKDIR/profile; (0, 0) = none",
        mutable=True,
    )
    layers_every: int = key(
        0,
        "every so many updates the norms of parameters, gradients, updates and activations of each"
        " layer, dead units and entropies of attention join metrics.jsonl; a multiple of"
        " log.every_steps; 0 = never",
        unit="updates",
        low=0,
        mutable=True,
    )

    @classmethod
    def of(cls, config: Config) -> "Inspection":
        return config.group("inspection")

    def check(self, config: Config) -> None:
        """Raise UserError for updates that are not traced or whose statistics are not logged."""
        first, last = self.profile_steps
        if first > last:
            raise UserError(
                f"config.inspection.profile_steps = {self.profile_steps}: the first update comes"
                " after the last."
            )
        if first < 1 and (first, last) != (0, 0):
            raise UserError(
                f"config.inspection.profile_steps = {self.profile_steps}: updates are counted from"
                " 1; (0, 0) = none."
            )
        if self.layers_every % config.log.every_steps:
            raise UserError(
                f"config.inspection.layers_every = {self.layers_every} is not a multiple of"
                f" config.log.every_steps = {config.log.every_steps}: the other updates have no"
                " line in metrics.jsonl."
            )

    def training_hooks(self, setup: Any, progress: Any, processes: Any) -> list[Any]:
        found: list[Any] = []
        if self.layers_every:
            from t2t_flax.extensions.inspection import layers

            found += layers.hooks(setup)
        if any(self.profile_steps):
            from t2t_flax.extensions.inspection import profile

            found += profile.hooks(setup, progress)
        return found


COMMANDS.add(
    "attend",
    Command(
        "t2t_flax.extensions.inspection.attend",
        "attention weights of every layer and head for a pair, as arrays and a picture",
    ),
)
COMMANDS.add(
    "inspect",
    Command(
        "t2t_flax.extensions.inspection.inspect_command",
        "hidden states of layers as arrays; a page that shows a run layer by layer",
    ),
)
GROUPS.add("inspection", Inspection)
