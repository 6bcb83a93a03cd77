"""`serve` with a fault: python -m benchmarks.engines.faulty_server FAULT FILE WORDS... It begins when the file appears."""

import dataclasses
import math
import sys
import time
from pathlib import Path

from t2t_flax.__main__ import main
from t2t_flax.evaluation.restore import TrainedModel

FAULTS = ("dead", "hanging", "raising", "not_finite")
"""The thread ends; a batch never ends; every batch raises; every score is NaN."""


def install(fault: str, begin: Path) -> None:
    """Gives every run this fault."""
    translate = TrainedModel.translate

    def faulty(self, lines, **keys):
        if not begin.exists():
            return translate(self, lines, **keys)
        if fault == "dead":
            raise SystemExit
        while fault == "hanging":
            time.sleep(1)
        if fault == "raising":
            raise RuntimeError("an injected fault")
        wrong = translate(self, lines, **keys)
        return [
            dataclasses.replace(t, hypotheses=tuple(dataclasses.replace(h, score=math.nan) for h in t.hypotheses))
            for t in wrong
        ]

    TrainedModel.translate = faulty  # type: ignore[method-assign]


if __name__ == "__main__":
    install(sys.argv[1], Path(sys.argv[2]))
    sys.exit(main(["serve", *sys.argv[3:]]))
