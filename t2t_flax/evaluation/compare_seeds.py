"""Whether one recipe is better than another, when each was trained with several seeds: what was translated is one source
of chance, which seeds were drawn another.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import optimize, special

from t2t_flax.evaluation.compare import RESAMPLES, SEED, check_comparable, paired_statistics, read_record, two_sided

HOW = (
    "The difference is the mean over pairs of runs of the same seed. Half the width of its interval (95 %) is the root of two "
    "squares: Student's t for the spread of the pairs' differences, the normal for a paired bootstrap over sentences (the "
    "same ones for every system); p_value is two-sided, by the same rule."
)
HOW_TOGETHER = (
    "The difference is the mean over pairs of runs of the same seed. Half the width of its interval (95 %) is the root of two "
    "squares: Student's t for the spread over seeds, estimated from all rows of the table together (rows and seeds without "
    "interaction), the normal for a paired bootstrap over sentences; p_value is two-sided, by the same rule."
)
HOW_ONE_SEED = (
    "One pair of runs: paired bootstrap over sentences. What another seed would change is not in the interval (the middle "
    "95 % of the resampled differences), nor in the two-sided p_value."
)


def compare_seeds(
    pairs: Sequence[tuple[str | os.PathLike, str | os.PathLike]],
    *,
    score: str = "",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> dict[str, Any]:
    """The mean difference a - b of `score` over pairs of evaluation records, its 95 % interval and a two-sided p-value;
    `sentence_spread` is the standard deviation that the choice of sentences alone gives it.

    Raises UserError for a record that is missing, changed, or of another test set than the others.
    """
    first = read_record(pairs[0][0])
    for a, _ in pairs:  # each pair's own two are compared with one another below
        score = check_comparable(first, read_record(a), pairs[0][0], a, score)
    told = [paired_statistics(a, b, score) for a, b in pairs]
    sentences = len(told[0][0][0])
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(sentences, np.full(sentences, 1 / sentences), size=resamples)
    resampled = np.mean([_differences(statistics, of, drawn) for statistics, of in told], axis=0)
    own = np.array([[of(side.sum(0)) for side in statistics] for statistics, of in told])
    a, b = own.mean(axis=0)
    if len(pairs) == 1:
        low, high = np.percentile(resampled, (2.5, 97.5))
        p_value = two_sided(resampled)
    else:
        low, high, p_value = over_seeds(own[:, 0] - own[:, 1], float(resampled.var(ddof=1)))
    return {
        "score": score,
        "a": round(float(a), 4),
        "b": round(float(b), 4),
        "difference": round(float(a - b), 4),
        "interval": {"level": 0.95, "low": round(float(low), 4), "high": round(float(high), 4)},
        "p_value": float(f"{p_value:.4g}"),
        "pairs": own.round(4).tolist(),
        "sentence_spread": round(float(resampled.std(ddof=1)), 4),
        "sentences": sentences,
        "resamples": resamples,
        "seed": seed,
        "how": HOW_ONE_SEED if len(pairs) == 1 else HOW,
    }


def over_seeds(differences: np.ndarray, sentence_variance: float) -> tuple[float, float, float]:
    """(low, high, p): the 95 % interval of the mean of at least two seeds' differences, and its two-sided p-value against
    zero, where drawing sentences alone gives the mean this variance. Two seeds know little of their own spread: then the
    interval is as wide as Student's t makes it.
    """
    n = len(differences)
    return students_t(float(differences.mean()), float(differences.var(ddof=1)) / n, n - 1, sentence_variance)


def spread_over_seeds(scores: Mapping[tuple[str, int], float]) -> tuple[float, int]:
    """(variance of one run, its degrees of freedom) from the scores of (row, seed): what is left when each row has its own
    level and each seed gives all rows the same. All rows are taken to vary alike. No degrees of freedom: nothing is known.
    """
    rows, seeds = (list(dict.fromkeys(key[i] for key in scores)) for i in (0, 1))
    design = np.array([[r == row for row in rows] + [s == seed for seed in seeds] for r, s in scores], float)
    values = np.array(list(scores.values()), float)
    solved, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    freedom = len(values) - int(rank)
    return (float(((values - design @ solved) ** 2).sum()) / freedom, freedom) if freedom else (0.0, 0)


def told_p(p_value: float) -> str:
    """`p 0.034`, or `p < 0.001`: what is further out depends on the model more than on the data."""
    return f"p {p_value:.3g}" if p_value >= 0.001 else "p < 0.001"


def students_t(mean: float, seed_variance: float, freedom: int, sentence_variance: float) -> tuple[float, float, float]:
    """(low, high, p) of a mean whose variance over seeds was estimated with that many degrees of freedom, and whose variance
    over sentences is known. The squares of the two half widths add, Student's t for the seeds and the normal for the
    sentences: seeds that agree by chance do not make the interval that of the sentences alone.
    """
    half = _half_width(0.05, seed_variance, freedom, sentence_variance)
    if half == 0:
        return mean, mean, float(mean == 0)
    rest = lambda log_p: _half_width(np.exp(log_p), seed_variance, freedom, sentence_variance) - abs(mean)  # noqa: E731
    p_value = float(np.exp(optimize.brentq(rest, _LEAST, 0.0))) if rest(_LEAST) > 0 else float(np.exp(_LEAST))
    return mean - half, mean + half, p_value


_LEAST = np.log(1e-12)


def _half_width(p_value: float, seed_variance: float, freedom: int, sentence_variance: float) -> float:
    t, z = special.stdtrit(freedom, p_value / 2), special.ndtri(p_value / 2)
    return float(np.sqrt(t**2 * seed_variance + z**2 * sentence_variance))


def _differences(statistics, of, drawn: np.ndarray) -> list[float]:
    a, b = (drawn @ side for side in statistics)
    return [of(x) - of(y) for x, y in zip(a, b, strict=True)]
