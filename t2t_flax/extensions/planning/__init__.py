"""Planning: device utilization of a run, and programs for an absent machine."""

from dataclasses import dataclass
from typing import Any

from t2t_flax.config.keys import key
from t2t_flax.registry import COMMANDS, GROUPS, Command, Group


@dataclass(frozen=True)
class Planning(Group):
    mfu: bool = key(
        True,
        "the lines of metrics.jsonl have the model FLOP/s over the peak of all devices, by data"
        " sheet in bfloat16 runs, and measured at the start",
        mutable=True,
    )

    def training_hooks(self, setup: Any, progress: Any, processes: Any) -> list[Any]:
        if not self.mfu:
            return []
        from t2t_flax.extensions.planning.mfu import hooks

        return hooks(setup)


COMMANDS.add(
    "plan",
    Command(
        "t2t_flax.extensions.planning.command",
        "compile for an accelerator that is not at hand: memory, collectives, traffic, least time",
    ),
)
GROUPS.add("planning", Planning)
