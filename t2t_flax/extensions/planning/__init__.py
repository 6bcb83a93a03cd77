"""Planning: programs compiled ahead of time for a machine that is not at hand."""

from t2t_flax.registry import add_command

add_command(
    "plan",
    "t2t_flax.extensions.planning.command",
    "compile for an accelerator that is not at hand: memory, collectives, predicted time",
)
