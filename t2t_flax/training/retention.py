"""Retention policy: which checkpoints are kept after a new one is written."""

import dataclasses
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass
class Retention:
    """An Orbax preservation policy: keeps the newest checkpoint, the `last` scheduled ones, and the `best` by metric (the
    earlier of two equal ones). It does not depend on what was deleted before, so it may be applied at any time.

    facts: {step: (scheduled, metric)}. A checkpoint whose `scheduled` is unknown (None) is kept and not counted.
    """

    last: int
    best: int
    facts: dict[int, tuple[bool | None, float | None]] = dataclasses.field(default_factory=dict)

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Whether to keep each of these checkpoints, which are in ascending order of `step`."""
        kept = self.kept([checkpoint.step for checkpoint in checkpoints])
        return [checkpoint.step in kept for checkpoint in checkpoints]

    def kept(self, steps: list[int]) -> set[int]:
        """Which of these steps, in ascending order, to keep."""
        known = {step: self.facts.get(step, (None, None)) for step in steps}
        scheduled = [step for step in steps if known[step][0]]
        unknown = [step for step in steps if known[step][0] is None]
        measured = [(-metric, step) for step in steps if (metric := known[step][1]) is not None]
        best = [step for _, step in sorted(measured)[: self.best]]
        return {*scheduled[-self.last :], *unknown, *best, *steps[-1:]}
