"""Scaling: laws of the loss fitted to runs, and the critical batch size of a run.

Branches from a checkpoint measure the critical batch size.
"""

from t2t_flax.registry import COMMANDS, Command

COMMANDS.add(
    "fit_scaling",
    Command(
        "t2t_flax.extensions.scaling.fit_command",
        "fit a law of the loss in sizes or data to runs, with intervals",
    ),
)
COMMANDS.add(
    "branch",
    Command(
        "t2t_flax.extensions.scaling.branch_command",
        "measure the critical batch size of a run, from one of its checkpoints",
    ),
)
