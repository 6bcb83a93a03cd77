"""Which checkpoints are kept when a new one has been written."""

import dataclasses
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass
class Retention:
    """The newest, the `last` regular ones, and the `best` with the highest metric (of equals the earliest). What is
    regular was decided when a checkpoint was written; one of which that is not known is kept and not counted.

    An Orbax preservation policy. facts: (regular, metric) by step.
    """

    last: int
    best: int
    facts: dict[int, tuple[bool | None, float | None]] = dataclasses.field(default_factory=dict)

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """For each checkpoint, in ascending order of `step`."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        known = {step: self.facts.get(step, (None, None)) for step in steps}
        regular = [step for step in steps if known[step][0]]
        unknown = [step for step in steps if known[step][0] is None]
        measured = [step for step in steps if known[step][1] is not None]
        best = sorted(measured, key=lambda step: (-known[step][1], step))[: self.best]
        kept = {*regular[-self.last :], *unknown, *best, *steps[-1:]}
        return [step in kept for step in steps]
