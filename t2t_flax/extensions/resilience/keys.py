"""Keys of the extension."""

from dataclasses import dataclass

from t2t_flax.config.keys import key


@dataclass(frozen=True)
class Resilience:
    hang_timeout: int = key(
        900,
        "a run without progress (an update, a step of an evaluation) for this long writes the stacks of its threads and "
        "exits; 0 = never",
        unit="seconds",
        low=0,
        mutable=True,
    )
