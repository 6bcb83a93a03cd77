"""The mean of checkpoints, of one run or several, as a workdir of its own."""

from t2t_flax.registry import add_command

add_command("average", "t2t_flax.extensions.averaging.command", "write the mean of checkpoints as a workdir of its own")
