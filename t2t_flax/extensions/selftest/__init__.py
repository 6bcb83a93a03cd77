"""Self-test: an update on the devices of a run beside float32 on the CPU, before it trains; names what is wrong, and where."""

from dataclasses import dataclass

from t2t_flax.config import Config
from t2t_flax.config.keys import key
from t2t_flax.registry import COMMANDS, GROUPS, HOOKS, Command


@dataclass(frozen=True)
class SelfTest:
    at_start: str = key(
        "auto",
        "when `train` tests its devices before the first update, and refuses to train on faulty ones; auto = on accelerators",
        choices=("auto", "always", "never"),
        mutable=True,
    )

    @classmethod
    def of(cls, config: Config) -> "SelfTest":
        """The group of a config."""
        return config.group("selftest")


COMMANDS.add(
    "selftest",
    Command("t2t_flax.extensions.selftest.command", "compare an update on these devices with float32 on the CPU"),
)
GROUPS.add("selftest", SelfTest)
HOOKS.add("t2t_flax.extensions.selftest.hook", "selftest.at_start")
