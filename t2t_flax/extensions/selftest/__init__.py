"""Self-test: an update on the devices of a run beside float32 on the CPU; names what is wrong, and where."""

from t2t_flax.registry import COMMANDS, Command

COMMANDS.add(
    "selftest",
    Command("t2t_flax.extensions.selftest.command", "compare an update on these devices with float32 on the CPU"),
)
