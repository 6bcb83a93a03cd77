"""Config keys of planning."""

from dataclasses import dataclass

from t2t_flax.config.keys import key


@dataclass(frozen=True)
class Planning:
    mfu: bool = key(
        True,
        "the lines of metrics.jsonl have the model FLOP/s over the peak of all devices, by data sheet and measured at the start",
        mutable=True,
    )
