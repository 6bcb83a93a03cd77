"""Averages of checkpoints, from one run or several, as a new workdir."""

from t2t_flax.registry import COMMANDS, Command

COMMANDS.add(
    "average",
    Command(
        "t2t_flax.extensions.averaging.command",
        "write the mean of checkpoints as a workdir of its own",
    ),
)
