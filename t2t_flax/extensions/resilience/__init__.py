"""Resilience: processes that hang, are dead or slow are named, and end the run instead of letting it wait; damaged checkpoints
are set aside; a killed preparation of data goes on.
"""

from dataclasses import dataclass

from t2t_flax.config.keys import key
from t2t_flax.registry import CHUNKS, GROUPS, HOOKS, REPAIRS, WATCHERS


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
    straggler_share: float = key(
        0.1,
        "processes that make the others wait for more than this share of the time are reported; 0 = none is",
        low=0.0,
        mutable=True,
    )


GROUPS.add("resilience", Resilience)
REPAIRS.add("resilience", "t2t_flax.extensions.resilience.repair")
WATCHERS.add("resilience", "t2t_flax.extensions.resilience.watcher")
HOOKS.add("t2t_flax.extensions.resilience.watcher", "resilience.straggler_share")
CHUNKS.add("resilience", "t2t_flax.extensions.resilience.shards")
