"""Self-test: compare an update on a run's devices with the CPU, and locate faults.

The CPU computes in float32.
"""

from t2t_flax.registry import COMMANDS, Command

COMMANDS.add(
    "selftest",
    Command(
        "t2t_flax.extensions.selftest.command",
        "compare an update on these devices with float32 on the CPU",
    ),
)
