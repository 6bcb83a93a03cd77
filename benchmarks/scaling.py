"""How often 95 % intervals of `fit_scaling` hold the truth: of synthetic losses whose law is known.

python -m benchmarks.scaling --sets=1000 --draws=500 --out=benchmarks/results/scaling.json
"""

import argparse
import dataclasses
import itertools
import sys
from collections import Counter

import numpy as np

from benchmarks.record import command_of, machine, publish
from t2t_flax.extensions.scaling.compute_optimal import iso_flop
from t2t_flax.extensions.scaling.law_fit import fit_law
from t2t_flax.extensions.scaling.laws import LAWS
from t2t_flax.extensions.scaling.points import Point, RunPoint


@dataclasses.dataclass(frozen=True)
class Case:
    """A law with known parameters `theta`, at inputs relative to their geometric means.

    Attributes:
      noise: standard deviation of a run's log loss; half of its variance is common to the seeds of
      a point.
      further: inputs at which the law predicts.
    """

    name: str
    inputs: np.ndarray
    theta: tuple[float, ...]
    further: tuple[float, ...]
    noise: float = 0.005

    @property
    def losses(self) -> np.ndarray:
        return np.exp(self.log_losses(self.inputs))

    def log_losses(self, inputs: np.ndarray) -> np.ndarray:
        middle = np.exp(np.log(self.inputs).mean(0))
        return LAWS[self.name].terms(np.array([self.theta]), np.log(inputs / middle)[None])[0][0]


def _grid(*sides) -> np.ndarray:
    return np.array(list(itertools.product(*sides)), float)


CASES = {
    case.name: case
    for case in (
        Case("size", _grid(2.0 ** np.arange(0, 8)) * 1e5, (0.0, 0.35, 0.3), (5e7,)),
        Case(
            "sizes",
            _grid(4.0 ** np.arange(4), 4.0 ** np.arange(4)) * 1e5,
            (0.0, 0.3, 0.4, 0.3),
            (3e7, 3e7),
        ),
        Case("data", _grid(2.0 ** np.arange(0, 8)) * 1e5, (0.8, 0.3, -1.5), (5e7,)),
        Case(
            "size_data",
            _grid(4.0 ** np.arange(5), 4.0 ** np.arange(5)) * 1e5,
            (-0.7, 0.35, -0.7, 0.35, 0.3),
            (1e8, 1e8),
        ),
    )
}
SEEDS = 2


def noisy(case: Case, inputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw losses as measured, each the mean of `SEEDS` runs."""
    common = rng.standard_normal(len(inputs))
    own = rng.standard_normal((SEEDS, len(inputs))).mean(0)
    return np.exp(case.log_losses(inputs) + case.noise * np.sqrt(0.5) * (common + own))


def coverage(name: str, *, sets: int, draws: int, seed: int = 0) -> dict[str, float]:
    """Return the share of data sets whose interval holds each parameter, and a new point's loss."""
    case, rng, law = CASES[name], np.random.default_rng(seed), LAWS[name]
    truth = dict(zip(law.names, law.values(np.array(case.theta)).tolist(), strict=True))
    held: Counter[str] = Counter()
    for number in range(sets):
        further = np.array([case.further])
        found = fit_law(
            law, case.inputs, noisy(case, case.inputs, rng), further, draws=draws, seed=number
        )
        new = float(noisy(case, further, rng)[0])
        for key, interval in [*found.parameters.items(), ("prediction", found.losses[0])]:
            held[key] += interval.low <= truth.get(key, new) <= interval.high
    return {key: held[key] / sets for key in [*law.names, "prediction"]}


EXPONENT = 0.45
"""Exponent of N_opt in FLOPs for the iso-FLOP profiles."""


def coverage_of_profiles(*, sets: int, draws: int, seed: int = 0) -> dict[str, float]:
    """Measure as `coverage` the exponent by parabolas: five budgets of six sizes each."""
    rng, held = np.random.default_rng(seed), 0
    for number in range(sets):
        points = []
        for flops in 10.0 ** np.arange(12, 17):
            best = 10.0 * flops**EXPONENT
            for factor in 2.0 ** np.arange(-2.5, 3):
                loss = np.exp(
                    0.3
                    + 10 * flops**-0.1
                    + 0.02 * np.log(factor) ** 2
                    + 0.005 * rng.standard_normal()
                )
                run = RunPoint("", 0, 0, 0.0, 0.0, flops, loss)
                points.append(Point((best * factor, flops), (run,)))
        exponent = iso_flop(points, draws=draws, seed=number).exponent
        held += exponent.low <= EXPONENT <= exponent.high
    return {"exponent": held / sets}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--out", default=None)
    args = parser.parse_args(argv)
    options, found = dict(sets=args.sets, draws=args.draws), {}
    for name in [*CASES, "iso_flop"]:
        found[name] = (
            coverage_of_profiles(**options) if name == "iso_flop" else coverage(name, **options)
        )
    publish(
        {"command": command_of("scaling", argv), "machine": machine(), "coverage": found}, args.out
    )


if __name__ == "__main__":
    main(sys.argv[1:])
