"""Tests the differences between the rows of a table: recipes, each trained with the same number of seeds.

A difference is tested by Welch's t-test with Satterthwaite's degrees of freedom: rows differ in their spread over seeds. If
the scores are of sentences, the variance of the difference over sentences, which all rows share, is added to its error; with
one seed it is all there is, and the result holds for these models, not for their recipes. Some of many rows differ by chance,
and the best of equal rows was lucky: so tables of equal rows are simulated, the reference is chosen in each as it was here,
and a p-value is corrected to the share of tables that show as large a difference anywhere (Westfall and Young 1993).

Few seeds estimate a variance poorly. By how much the logarithms of the estimates scatter by chance is known; the rest of
their scatter is real (`_scatter`). As far as it is chance, a row is tested with a variance nearer to the common one
(`moderate`), and the simulated rows have variances as likely as the true ones, given the estimates.
"""

import dataclasses

import numpy as np
from scipy import special

from t2t_flax.tasks import SentenceStatistics

LEVEL = 0.05
"""Significance level of all tests."""
SEED = 12345
MAX_TABLES, MIN_TABLES, MAX_VALUES = 10_000, 2000, 400_000
"""Simulated tables: with many rows fewer, so that they have at most MAX_VALUES rows together."""
MODERATION = 0.1
"""With how many degrees of freedom, times the fourth power of a row's own, the other rows count for its variance at most. More
would find more, but two seeds often hide that a row is wild, and such a row then "differs" by chance.
"""
_SMALLEST = 1e-18
_MOST_FREEDOM = 1e6


@dataclasses.dataclass(frozen=True)
class Difference:
    """A row's score minus the reference row's. p_value, low, high: of this difference alone (two-sided, 95 % interval);
    p_corrected, low_corrected, high_corrected: for the whole table. An interval excludes zero exactly where its p < 0.05.
    """

    difference: float
    p_value: float
    low: float
    high: float
    p_corrected: float
    low_corrected: float
    high_corrected: float


@dataclasses.dataclass(frozen=True)
class Differences:
    """rows: None for the reference row itself. reference: its index. spread: standard deviation over seeds of each row as
    the tests use it (`moderate`), 0 with one seed.
    """

    rows: list[Difference | None]
    reference: int
    spread: list[float]


def compare_rows(
    scores: np.ndarray,
    influence: np.ndarray | None = None,
    *,
    reference: int | None = None,
    chosen_before: bool = False,
    lower_is_better: bool = False,
) -> Differences:
    """Compares each row with the reference row, by default the `best_row`.

    scores: [rows, seeds]. influence: [rows, seeds, sentences], from `influence`, if the score is of sentences.
    chosen_before: the errors of these scores had no part in the choice of the reference: a user named it, or it is the best
    of single models on other sentences. Otherwise the simulation takes the best row of each table. The validation scores
    of several seeds do not make the choice independent of the test scores: a lucky seed is good on both.
    Raises ValueError for scores of one seed without `influence`.
    """
    rows, seeds = scores.shape
    if seeds == 1 and influence is None:
        raise ValueError("one seed and no sentences: nothing shows the error of a difference")
    means, variances = (-scores if lower_is_better else scores).mean(1), _variances(scores)
    moderated = moderate(variances, seeds - 1)
    sentences = _Sentences.of(influence, rows)
    base = int(_best(means, moderated[0], seeds)) if reference is None else reference
    error, freedom = _errors(moderated, seeds, sentences, np.array(base))
    size = np.abs(means - means[base]) / error
    p_values = corrected = 2 * special.stdtr(freedom, -size)
    half = half_corrected = -special.stdtrit(freedom, LEVEL / 2) * error
    if rows > 2:
        largest = np.sort(-_largest_deviates(variances, seeds, sentences, base if chosen_before else None))
        at_least = np.searchsorted(largest, -_normal_deviate(size, freedom), side="right")
        corrected = np.maximum((at_least + 1) / (len(largest) + 1), p_values)
        critical = -largest[int(np.ceil(LEVEL * (len(largest) + 1))) - 2]
        half_corrected = np.maximum(half, _from_normal_deviate(critical, freedom) * error)
    differences = scores.mean(1) - scores[base].mean()
    columns = (
        differences,
        p_values,
        differences - half,
        differences + half,
        corrected,
        differences - half_corrected,
        differences + half_corrected,
    )
    table = [None if row == base else Difference(*values) for row, values in enumerate(np.stack(columns, 1).tolist())]
    return Differences(table, base, np.sqrt(moderated[0]).tolist())


def best_row(scores: np.ndarray, *, lower_is_better: bool = False) -> int:
    """The row with the best mean less two standard errors over seeds (`moderate`); scores: [rows, seeds].

    So a wild row, whose mean may be anything, does not become the one that the others are compared with.
    """
    means, seeds = (-scores if lower_is_better else scores).mean(1), scores.shape[1]
    return int(_best(means, moderate(_variances(scores), seeds - 1)[0], seeds))


def mean_interval(scores: np.ndarray, influence: np.ndarray | None = None) -> tuple[float, float] | None:
    """The 95 % interval of one row's mean score. scores: [seeds]. influence: [seeds, sentences]. None with neither."""
    if len(scores) == 1 and influence is None:
        return None
    sentences = _Sentences.of(None if influence is None else influence[None], 1)
    parts = np.array([_variances(scores[None])[0] / len(scores), max(sentences.covariance[0, 0], _SMALLEST)])
    freedom = parts.sum() ** 2 / (parts**2 / [max(1, len(scores) - 1), sentences.freedom]).sum()
    half = -special.stdtrit(freedom, LEVEL / 2) * parts.sum() ** 0.5
    return float(scores.mean() - half), float(scores.mean() + half)


def moderate(variances: np.ndarray, freedom: int) -> tuple[np.ndarray, np.ndarray]:
    """(variances over seeds, their degrees of freedom) [..., rows], with a little of what the other rows say about each.

    variances: estimates with `freedom` degrees of freedom each. Of two rows each keeps its own, and so does a wild one, which
    is above the largest estimate to be expected of as many rows.
    """
    rows = variances.shape[-1]
    if rows < 3 or not freedom:
        return variances, np.full(variances.shape, float(freedom))
    common, _, real, chance = _scatter(variances, freedom)
    prior = np.minimum(MODERATION * freedom**4, 2 / real) * chance / (real + chance)
    largest = special.chdtri(freedom, 1 / rows) / freedom * common
    prior = prior * np.minimum(1, (largest / variances) ** 2)
    return (prior * common + freedom * variances) / (prior + freedom), prior + freedom


def _scatter(variances: np.ndarray, freedom: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """(common variance [..., 1], logarithms of the estimates around their mean [..., rows], variance of the logarithms of the
    true variances [..., 1], and that of the error of the estimates). Few rows do not show that their variances are equal.
    """
    chance, others = float(special.polygamma(1, freedom / 2)), variances.shape[-1] - 1
    logs = np.log(variances)
    centre = logs.mean(-1, keepdims=True)
    logs = logs - centre
    real = np.maximum((logs**2).sum(-1, keepdims=True) / others - chance, 0) + 2 * chance / others
    return np.exp(centre - special.digamma(freedom / 2) + np.log(freedom / 2)), logs, real, chance


@dataclasses.dataclass(frozen=True)
class _Sentences:
    """covariance [rows, rows]: of the means over sentences, without the interaction of seeds and sentences, which is in the
    variances over seeds already.
    """

    covariance: np.ndarray
    freedom: float

    @classmethod
    def of(cls, influence: np.ndarray | None, rows: int) -> "_Sentences":
        if influence is None:
            return cls(np.zeros((rows, rows)), _MOST_FREEDOM)
        _, seeds, sentences = influence.shape
        means = influence.mean(1)
        covariance = means @ means.T / (sentences * (sentences - 1))
        if seeds > 1:
            rest = ((influence - means[:, None]) ** 2).sum((1, 2)) / ((seeds - 1) * (sentences - 1))
            covariance[np.diag_indices(rows)] -= rest / (seeds * sentences)
        return cls(covariance, sentences - 1)


def _variances(scores: np.ndarray) -> np.ndarray:
    """[rows]: over seeds; 0 with one seed."""
    if scores.shape[1] == 1:
        return np.zeros(len(scores))
    variances = scores.var(1, ddof=1)
    # Scores are rounded when stored: two seeds that agree to the last digit do not show that there is no spread.
    return np.maximum(variances, max(1e-6 * variances.mean(), _SMALLEST))


def _best(means: np.ndarray, variances: np.ndarray, seeds: int) -> np.ndarray:
    """[...]: the `best_row` of means, higher is better, and moderated variances [..., rows]."""
    return (means - 2 * np.sqrt(variances / seeds)).argmax(-1)


def _errors(
    moderated: tuple[np.ndarray, np.ndarray], seeds: int, sentences: _Sentences, base: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(standard errors, degrees of freedom) [..., rows] of the differences to row `base` [...]; moderated: by `moderate`."""
    own, (variances, freedom) = np.diagonal(sentences.covariance), moderated
    shared = np.maximum(own + own[base][..., None] - 2 * sentences.covariance[base], 0)
    of_row, squares = variances / seeds, (variances / seeds) ** 2 / np.maximum(freedom, 1)
    of_base, squares_of_base = (np.take_along_axis(each, base[..., None], -1) for each in (of_row, squares))
    total = np.maximum(shared + of_row + of_base, _SMALLEST)
    squares = shared**2 / sentences.freedom + squares + squares_of_base
    return np.sqrt(total), np.minimum(total**2 / np.maximum(squares, _SMALLEST**3), _MOST_FREEDOM)


def _normal_deviate(size: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """The normal deviate that is about as rare as this t (Wallace 1959); so tests with different freedom can be compared."""
    return (8 * freedom + 1) / (8 * freedom + 3) * np.sqrt(freedom * np.log1p(size**2 / freedom))


def _from_normal_deviate(deviate: float, freedom: np.ndarray) -> np.ndarray:
    """The inverse of `_normal_deviate`."""
    return np.sqrt(freedom * np.expm1((deviate * (8 * freedom + 3) / (8 * freedom + 1)) ** 2 / freedom))


def _largest_deviates(variances: np.ndarray, seeds: int, sentences: _Sentences, reference: int | None) -> np.ndarray:
    """[tables]: the largest difference of each simulated table of rows with equal means, as a normal deviate."""
    rows, rng = len(variances), np.random.default_rng(SEED)
    size = (int(np.clip(MAX_VALUES // rows, MIN_TABLES, MAX_TABLES)), rows)
    means, estimates = np.zeros(size), np.zeros(size)
    if seeds > 1:
        common, logs, real, chance = _scatter(variances, seeds - 1)
        share = real / (real + chance)
        true = common * np.exp(share * logs + np.sqrt(share * chance) * rng.normal(size=size))
        means = rng.normal(size=size) * np.sqrt(true / seeds)
        estimates = true * rng.chisquare(seeds - 1, size=size) / (seeds - 1)
    if sentences.covariance.any():
        values, vectors = np.linalg.eigh(sentences.covariance)
        means += rng.normal(size=size) @ (vectors * np.sqrt(np.maximum(values, 0))).T
    moderated = moderate(estimates, seeds - 1)
    base = _best(means, moderated[0], seeds) if reference is None else np.full(size[0], reference)
    # The simulation takes the estimated covariances over sentences for true, so nothing is left to estimate there.
    errors, freedom = _errors(moderated, seeds, dataclasses.replace(sentences, freedom=_MOST_FREEDOM), base)
    return _normal_deviate(np.abs(means - np.take_along_axis(means, base[:, None], 1)) / errors, freedom).max(1)


def influence(statistics: SentenceStatistics) -> np.ndarray:
    """float64 [sentences]: how much each sentence moves the score, with mean 0 (Efron's jackknife).

    On another sample of sentences the score changes by about the mean of these values over it.
    """
    count, total = len(statistics.values), statistics.values.sum(0)
    without = np.array([statistics.score(total - row) for row in statistics.values], np.float64)
    return (count - 1) * (without.mean() - without)
