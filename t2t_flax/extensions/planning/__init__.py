"""Planning: FLOPs of a config, how well a run uses its devices, and programs compiled for a machine that is not at hand."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from t2t_flax.config.keys import key
from t2t_flax.registry import COMMANDS, EXPLAINED, GROUPS, HOOKS, Command


@dataclass(frozen=True)
class Planning:
    mfu: bool = key(
        True,
        "the lines of metrics.jsonl have the model FLOP/s over the peak of all devices, by data sheet and measured at the start",
        mutable=True,
    )


COMMANDS.add(
    "plan",
    Command(
        "t2t_flax.extensions.planning.command",
        "compile for an accelerator that is not at hand: memory, collectives, predicted time",
    ),
)
GROUPS.add("planning", Planning)
HOOKS.add("t2t_flax.extensions.planning.mfu", "planning.mfu")
EXPLAINED.add("flops", "t2t_flax.extensions.planning.flops")


def compile_for(topology: str, config: Any, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Compiles the train step for a topology such as "v5e-256", with the real compiler and without the device. config,
    overrides: as in `t2t_flax.train`. Returns memory, FLOPs, collectives and the predicted time of an update, as `plan --json`
    writes them.
    """
    from t2t_flax.api import resolve
    from t2t_flax.errors import UserError
    from t2t_flax.extensions.planning.compiler_process import plan_in_child
    from t2t_flax.extensions.planning.topology import parse_all

    machines = parse_all([topology])
    if len(machines) != 1:
        raise UserError(f"topology = {topology!r} names {len(machines)} machines: name one, for example 'v5e-16'.")
    return plan_in_child(resolve(config, overrides), machines[0])
