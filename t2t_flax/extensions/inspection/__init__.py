"""Inspection: what a trained model attends to, and profiles of a run."""

from dataclasses import dataclass

from t2t_flax.config import Config
from t2t_flax.config.keys import key
from t2t_flax.errors import UserError
from t2t_flax.registry import ANALYSES, COMMANDS, GROUPS, HOOKS, Command


@dataclass(frozen=True)
class Inspection:
    profile_steps: tuple[int, int] = key(
        (0, 0), "first and last update of a profiler trace, written to WORKDIR/profile; (0, 0) = none", mutable=True
    )

    @classmethod
    def of(cls, config: Config) -> "Inspection":
        """The group of a config."""
        return config.group("inspection")

    def check(self, config: Config) -> None:
        """Raises UserError for updates that cannot be traced."""
        first, last = self.profile_steps
        if first > last:
            raise UserError(
                f"config.inspection.profile_steps = {self.profile_steps}: the first update comes after the last."
            )
        if first < 1 and (first, last) != (0, 0):
            raise UserError(
                f"config.inspection.profile_steps = {self.profile_steps}: updates are counted from 1; (0, 0) = none."
            )


COMMANDS.add(
    "attend",
    Command(
        "t2t_flax.extensions.inspection.attend",
        "attention weights of every layer and head for a pair, as arrays and a picture",
    ),
)
GROUPS.add("inspection", Inspection)
HOOKS.add("t2t_flax.extensions.inspection.profile", "inspection.profile_steps")
ANALYSES.add("attend", "t2t_flax.extensions.inspection.maps:attend")
