"""Whether one recipe is better than another, when each was trained with several seeds: a bootstrap over both what was
translated and which seeds were drawn.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from t2t_flax.errors import UserError
from t2t_flax.evaluation.compare import RESAMPLES, SEED, paired_statistics, read_record, two_sided

HOW = (
    "Paired bootstrap over sentences and seeds: each resample draws sentences, the same for every system, and pairs of runs "
    "(of the same seed), both with replacement; the difference is the mean over its pairs. interval holds the middle 95 % of "
    "the resampled differences; p_value is two-sided, twice the smaller share of resamples on either side of zero. With few "
    "seeds the spread between them is known badly: read it beside the seeds' own scores."
)


def compare_seeds(
    pairs: Sequence[tuple[str | os.PathLike, str | os.PathLike]],
    *,
    score: str = "",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> dict[str, Any]:
    """The mean difference a - b of `score` over pairs of evaluation records, its 95 % interval and a two-sided p-value.

    Raises UserError for a record that is missing, changed, or of another test set than the others.
    """
    told = [paired_statistics(a, b, score) for a, b in pairs]
    digests = {read_record(a)["data"]["digest"] for a, _ in pairs}
    if len(digests) > 1:
        raise UserError("the runs of different seeds were evaluated on different test sets.")
    sentences = len(told[0][0][0])
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(sentences, np.full(sentences, 1 / sentences), size=resamples)
    differences = np.array([_differences(statistics, of, drawn) for statistics, of in told])  # [seeds, resamples]
    chosen = rng.integers(len(told), size=(len(told), resamples))
    resampled = np.take_along_axis(differences, chosen, axis=0).mean(axis=0)
    own = [[of(side.sum(0)) for side in statistics] for statistics, of in told]
    a, b = np.mean(own, axis=0)
    low, high = np.percentile(resampled, (2.5, 97.5))
    return {
        "score": score,
        "a": round(float(a), 4),
        "b": round(float(b), 4),
        "difference": round(float(a - b), 4),
        "interval": {"level": 0.95, "low": round(float(low), 4), "high": round(float(high), 4)},
        "p_value": round(two_sided(resampled), 6),
        "pairs": [[round(x, 4), round(y, 4)] for x, y in own],
        "sentences": sentences,
        "resamples": resamples,
        "seed": seed,
        "how": HOW,
    }


def _differences(statistics, of, drawn: np.ndarray) -> list[float]:
    a, b = (drawn @ side for side in statistics)
    return [of(x) - of(y) for x, y in zip(a, b, strict=True)]
