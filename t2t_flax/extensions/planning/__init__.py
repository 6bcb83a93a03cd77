"""Planning: device utilization of a run, and programs for an absent machine."""

from dataclasses import dataclass

from t2t_flax.config.keys import key
from t2t_flax.registry import COMMANDS, GROUPS, HOOKS, Command


@dataclass(frozen=True)
class Planning:
    mfu: bool = key(
        True,
        "the lines of metrics.jsonl have the model FLOP/s over the peak of all devices, by data"
        " sheet in bfloat16 runs, and measured at the start",
        mutable=True,
    )


COMMANDS.add(
    "plan",
    Command(
        "t2t_flax.extensions.planning.command",
        "compile for an accelerator that is not at hand: memory, collectives, traffic, least time",
    ),
)
GROUPS.add("planning", Planning)
HOOKS.add("t2t_flax.extensions.planning.mfu", "planning.mfu")
