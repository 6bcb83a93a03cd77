"""AlgoPerf (Dahl et al. 2023): time to a target of the validation set, its WMT workload, and scores of its studies."""

from dataclasses import dataclass

from t2t_flax.config import Config
from t2t_flax.config.keys import NOTHING, key
from t2t_flax.errors import UserError
from t2t_flax.registry import COMMANDS, GROUPS, HOOKS, PRESET_MODULES, Command


@dataclass(frozen=True)
class AlgoPerf:
    target: float | None = key(
        None,
        "value of eval.metric on the validation set whose first evaluation is timed, in WORKDIR/time_to_target.json; none = "
        "nothing is timed",
        changes=NOTHING,
    )
    test_target: float | None = key(
        None, "the same of the test set, for the table of `time_to_target`; none = no target", mutable=True
    )
    max_seconds: float = key(
        0.0,
        "a target that is reached later counts as not reached; 0 = no limit",
        unit="seconds",
        low=0.0,
        mutable=True,
    )
    stop: bool = key(False, "end the run with the evaluation that reaches algoperf.target", mutable=True)
    study: int = key(
        0, "study that the run is a trial of, for `time_to_target`; 0 = none", low=0, high=10**6, mutable=True
    )

    @classmethod
    def of(cls, config: Config) -> "AlgoPerf":
        """The group of a config."""
        return config.group("algoperf")

    def check(self, config: Config) -> None:
        """Raises UserError for keys that need a target."""
        if self.target is not None:
            return
        for name in ("stop", "max_seconds", "test_target"):
            if getattr(self, name):
                raise UserError(
                    f"config.algoperf.{name} = {getattr(self, name)} needs config.algoperf.target, which is none."
                )


COMMANDS.add(
    "time_to_target",
    Command(
        "t2t_flax.extensions.algoperf.command", "the time that optimizers take to a target, over studies of trials"
    ),
)
GROUPS.add("algoperf", AlgoPerf)
HOOKS.add("t2t_flax.extensions.algoperf.hook", "algoperf.target")
PRESET_MODULES.append("t2t_flax.extensions.algoperf.presets")
