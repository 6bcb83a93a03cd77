"""Whether one recipe is better than another, when each was trained with several seeds: what was translated is one source
of chance, which seeds were drawn another.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import optimize, special

from t2t_flax.data.task import Counts
from t2t_flax.evaluation.compare import RESAMPLES, SEED, check_comparable, paired_statistics, read_record
from t2t_flax.evaluation.significance import LEVEL

HOW = (
    "The difference is the mean over pairs of runs of the same seed. Half the width of its interval (95 %) is the root of two "
    "squares: Student's t for the spread over seeds, estimated from all rows of the table together (rows and seeds without "
    "interaction), the normal for a paired bootstrap over sentences; p_value is two-sided, by the same rule."
)
HOW_ONE_SEED = (
    "The normal with the spread of a paired bootstrap over sentences: interval (95 %) and two-sided p_value. What another seed "
    "would change is in neither, as no row has two seeds."
)
HOW_SEEDS_ALONE = (
    "The difference is the mean over pairs of runs of the same seed. Interval (95 %) and two-sided p_value are Student's t for "
    "the spread over seeds, estimated from all rows of the table together (rows and seeds without interaction); what other "
    "sentences would change is in neither."
)


@dataclasses.dataclass(frozen=True)
class Paired:
    """Runs of two recipes on the same sentences, paired by seed. scores: [pairs, 2]; resampled: the mean difference on each
    draw of sentences, empty for a score that has no bootstrap.
    """

    score: str
    scores: np.ndarray
    resampled: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    sentences: int = 0
    seed: int = SEED


def pair_seeds(
    pairs: Sequence[tuple[str | os.PathLike, str | os.PathLike]],
    *,
    score: str = "",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Paired:
    """`score` of pairs of evaluation records, and of resampled sentences, the same ones for every record.

    Raises UserError for a record that is missing, changed, or of another test set than the others.
    """
    first = read_record(pairs[0][0])
    for a, _ in pairs:  # each pair's own two are compared with one another below
        score = check_comparable(first, read_record(a), pairs[0][0], a, score)
    counted = [paired_statistics(a, b, score)[2] for a, b in pairs]
    sentences = len(counted[0][0].values)
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(sentences, np.full(sentences, 1 / sentences), size=resamples)
    resampled = np.mean([_differences(a, b, drawn) for a, b in counted], axis=0)
    scores = np.array([[side.percent(side.values.sum(0)) for side in sides] for sides in counted])
    return Paired(score, scores, resampled, sentences, seed)


def compare_seeds(paired: Paired, spread: tuple[float, int], comparisons: float | None = None) -> dict[str, Any]:
    """The mean difference a - b over the pairs, its 95 % interval and a two-sided p-value, where `spread` is that of
    `spread_over_seeds`; without degrees of freedom they are over sentences alone.

    comparisons: of a table, what `significance.multipliers` gives for this row; then `p_corrected` and `interval_corrected`
    are there too, which agree with each other as `p_value` and `interval` do.
    """
    (a, b), (variance, freedom) = paired.scores.mean(axis=0).tolist(), spread
    bootstrap = len(paired.resampled) > 0
    sentences = float(paired.resampled.var(ddof=1)) if bootstrap else 0.0
    chance = (2 * variance / len(paired.scores), freedom, sentences)
    low, high, p_value = students_t(a - b, *chance)
    found = {
        "score": paired.score,
        "a": round(a, 4),
        "b": round(b, 4),
        "difference": round(a - b, 4),
        "interval": {"level": 0.95, "low": round(low, 4), "high": round(high, 4)},
        "p_value": float(f"{p_value:.4g}"),
        "pairs": paired.scores.round(4).tolist(),
    }
    if comparisons is not None:
        low, high, _ = students_t(a - b, *chance, level=LEVEL / comparisons)
        found["p_corrected"] = float(f"{min(1.0, p_value * comparisons):.4g}")
        found["interval_corrected"] = {"level": 0.95, "comparisons": round(comparisons, 4)} | {
            "low": round(low, 4),
            "high": round(high, 4),
        }
    if bootstrap:
        drawn = {"sentences": paired.sentences, "resamples": len(paired.resampled), "seed": paired.seed}
        found |= {"sentence_spread": round(sentences**0.5, 4)} | drawn
    if freedom:
        found |= {"seed_spread": round(variance**0.5, 4), "freedom": freedom}
    return found | {"how": (HOW if bootstrap else HOW_SEEDS_ALONE) if freedom else HOW_ONE_SEED}


def spread_over_seeds(scores: Mapping[tuple[str, int], float]) -> tuple[float, int]:
    """(variance of one run, its degrees of freedom) from the scores of (row, seed): what is left when each row has its own
    level and each seed gives all rows the same. All rows are taken to vary alike. No degrees of freedom: nothing is known.
    """
    if not scores:
        return 0.0, 0
    rows, seeds = (list(dict.fromkeys(key[i] for key in scores)) for i in (0, 1))
    design = np.array([[r == row for row in rows] + [s == seed for seed in seeds] for r, s in scores], float)
    values = np.array(list(scores.values()), float)
    solved, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    freedom = len(values) - int(rank)
    return (float(((values - design @ solved) ** 2).sum()) / freedom, freedom) if freedom else (0.0, 0)


def told(difference: float, low: float, high: float, p_value: float, digits: int = 2) -> str:
    """As a table's cell has it: `-0.41 [-0.92, +0.08] p 0.1`. What is further out than `p < 0.001` depends on the model of
    chance more than on the data.
    """
    p = f"p {p_value:.3g}" if p_value >= 0.001 else "p < 0.001"
    return f"{difference:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}] {p}"


def students_t(
    mean: float, seed_variance: float, freedom: int, sentence_variance: float, *, level: float = LEVEL
) -> tuple[float, float, float]:
    """(low, high, p) of a mean whose variance over seeds was estimated with that many degrees of freedom, and whose variance
    over sentences is known: low to high leaves out 0 exactly where p < level. The squares of the two half widths add,
    Student's t for the seeds and the normal for the sentences: seeds that agree by chance do not make the interval that of
    the sentences alone.
    """
    half = _half_width(level, seed_variance, freedom, sentence_variance)
    if half == 0:
        return mean, mean, float(mean == 0)
    rest = lambda log_p: _half_width(np.exp(log_p), seed_variance, freedom, sentence_variance) - abs(mean)  # noqa: E731
    p_value = float(np.exp(optimize.brentq(rest, _LEAST, 0.0))) if rest(_LEAST) > 0 else float(np.exp(_LEAST))
    return mean - half, mean + half, p_value


_LEAST = np.log(1e-12)


def _half_width(p_value: float, seed_variance: float, freedom: int, sentence_variance: float) -> float:
    t, z = special.stdtrit(max(1, freedom), p_value / 2), special.ndtri(p_value / 2)
    return float(np.sqrt(t**2 * seed_variance + z**2 * sentence_variance))


def _differences(a: Counts, b: Counts, drawn: np.ndarray) -> list[float]:
    sums = zip(drawn @ a.values, drawn @ b.values, strict=True)
    return [a.percent(x) - b.percent(y) for x, y in sums]
