"""Weighted sums of candidate scores, and the best weights on a validation set."""

from collections.abc import Callable, Sequence

import numpy as np

_DRAWS = 200
_SHRINKS = 8


def choose(features: np.ndarray, starts: Sequence[int], weights: np.ndarray) -> np.ndarray:
    """Return the candidate of each source with the highest weighted sum, int [sources].

    The first of equal ones wins. A candidate with a feature that is not finite is chosen only if
    all have one.

    Args:
        features: [candidates of all sources, features].
        starts: first candidate of each source.
    """
    finite = np.isfinite(features).all(1)
    sums = np.where(finite, np.where(finite[:, None], features, 0) @ weights, -np.inf)
    ends = [*starts[1:], len(features)]
    return np.array(
        [start + int(np.argmax(sums[start:end])) for start, end in zip(starts, ends, strict=True)]
    )


def tune(
    features: np.ndarray,
    starts: Sequence[int],
    statistics: np.ndarray,
    score: Callable[[np.ndarray], float],
) -> tuple[np.ndarray, float]:
    """Return (weights, their score): the best of a search for a corpus metric.

    A higher score is better. It tries each feature alone, equal weights and random ones of features
    of standard deviation 1, then changes one weight at a time by ever smaller steps. The largest
    weight is 1 in size, unless all are 0, which chooses the first candidates.

    Args:
        statistics: [candidates, S]; `score` takes their sum over the chosen candidates.
    """
    count = features.shape[1]
    finite = np.isfinite(features).all(1)
    spread = features[finite].std(0) if finite.any() else np.ones(count)
    scale = 1 / np.where(spread > 0, spread, 1)

    def value(weights: np.ndarray) -> float:
        return score(statistics[choose(features, starts, weights * scale)].sum(0))

    rng = np.random.default_rng(0)
    tries = [*np.eye(count), np.ones(count), *rng.normal(size=(_DRAWS, count))]
    values = [value(weights) for weights in tries]
    best = int(np.argmax(values))
    weights, highest = tries[best], values[best]
    for step in 0.5 ** np.arange(_SHRINKS):
        for i in range(count):
            for change in (step, -step):
                changed = weights.copy()
                changed[i] += change
                if (found := value(changed)) > highest:
                    weights, highest = changed, found
    weights = weights * scale
    return weights / (np.abs(weights).max() or 1.0), highest
