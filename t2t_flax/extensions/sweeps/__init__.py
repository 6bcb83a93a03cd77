"""Sweeps: many runs of one config, as grids or searches, with a report; curves of runs.

They run on one machine or several.
"""

from t2t_flax.registry import COMMANDS, Command

COMMANDS.add(
    "sweep",
    Command(
        "t2t_flax.extensions.sweeps.command",
        "train many variants of a config, and compare their results in a table",
    ),
)
COMMANDS.add(
    "compare",
    Command(
        "t2t_flax.extensions.sweeps.compare_command",
        "test the differences between evaluated systems",
    ),
)
COMMANDS.add(
    "plot",
    Command(
        "t2t_flax.extensions.sweeps.plot_command",
        "draw losses, scores and speed of runs or sweeps over updates",
    ),
)
