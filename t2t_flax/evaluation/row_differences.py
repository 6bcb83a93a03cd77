"""Tests the differences between the rows of a table: recipes, each trained with the same number of seeds.

**The errors.** A row's score is a mean over seeds, on one test set. It has an error because other seeds would give other
scores, and one because other test sentences would. Rows differ in their spread over seeds, and no row shares its error over
seeds with another; all rows share the sentences. The variance of the difference of rows a and b with n seeds is
`(v_a + v_b) / n + c_ab`: v is the variance over seeds, and c the part of the variance over sentences that does not average
out over seeds (the interaction of seeds and sentences is in v already). With one seed c is all there is: the result holds
for these trained models, not for their recipes.

**The test of one difference** is Welch's t-test with Satterthwaite's degrees of freedom. A few seeds estimate v poorly, so
each v is moved towards what the other rows have, as far as these agree with one another and with it (`moderate`).

**The table.** Some of many rows differ by chance alone, and the best of equal rows was lucky. So the whole table is simulated
with equal means and the spreads of its rows, each time choosing the row that the others are compared with in the same way,
and a p-value is corrected to the share of simulated tables whose smallest p-value is at most as large (Westfall and Young
1993, with a parametric bootstrap). That bounds the probability that any row of a table of equal rows "differs".
"""

import dataclasses

import numpy as np
from scipy import special, stats

from t2t_flax.evaluation.significance import LEVEL, SEED

MAX_TABLES, MIN_TABLES, MAX_VALUES = 10_000, 2000, 400_000
"""Simulated tables: with many rows fewer, so that they have at most MAX_VALUES rows together."""
_SHAPES = np.logspace(-3, 5, 4000)
_TRIGAMMA = special.polygamma(1, _SHAPES)


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

    scores: [rows, seeds]. influence: [rows, seeds, sentences], from `significance.influence`, if the score is of sentences.
    chosen_before: the errors of these scores had no part in the choice of the reference: a user named it, or it is the best
    of single models on other sentences. Otherwise the simulation takes the best row of each table. The validation scores
    of several seeds do not make the choice independent of the test scores: a lucky seed is good on both.
    Raises ValueError for scores of one seed without `influence`.
    """
    table = _Table.of(scores, influence, -1.0 if lower_is_better else 1.0)
    if scores.shape[1] == 1 and influence is None:
        raise ValueError("one seed and no sentences: nothing shows the error of a difference")
    means, variances = table.means, table.variances
    base = int(table.choose(means, variances)) if reference is None else reference
    fixed = base if chosen_before else None
    error, freedom = table.errors(variances, np.array(base))
    p_values = _p_values(means - means[base], error, freedom)
    # A simulated table has the estimated covariances over sentences for true, so nothing is left to estimate there.
    known = dataclasses.replace(table, sentence_freedom=np.inf)
    simulated = np.sort(_smallest_p_values(known, fixed))
    corrected = (np.searchsorted(simulated, p_values, side="right") + 1) / (len(simulated) + 1)
    critical = min(LEVEL, simulated[int(np.ceil(LEVEL * (len(simulated) + 1))) - 2])
    corrected = np.maximum(corrected, p_values)
    rows: list[Difference | None] = []
    for row in range(len(scores)):
        if row == base:
            rows.append(None)
            continue
        difference = float(scores[row].mean() - scores[base].mean())
        alone, of_table = (float(stats.t.isf(share / 2, freedom[row]) * error[row]) for share in (LEVEL, critical))
        rows.append(
            Difference(
                difference,
                p_value=float(p_values[row]),
                low=difference - alone,
                high=difference + alone,
                p_corrected=float(corrected[row]),
                low_corrected=difference - of_table,
                high_corrected=difference + of_table,
            )
        )
    spread = np.sqrt(moderate(variances, table.seeds - 1)[0]) if table.seeds > 1 else np.zeros(len(scores))
    return Differences(rows, base, spread.tolist())


def best_row(scores: np.ndarray, *, lower_is_better: bool = False) -> int:
    """The row with the best mean less two standard errors over seeds (`moderate`); scores: [rows, seeds].

    So a wild row, whose mean may be anything, does not become the one that the others are compared with.
    """
    table = _Table.of(scores, None, -1.0 if lower_is_better else 1.0)
    return int(table.choose(table.means, table.variances))


def mean_interval(scores: np.ndarray, influence: np.ndarray | None = None) -> tuple[float, float] | None:
    """The 95 % interval of one row's mean score. scores: [seeds]. influence: [seeds, sentences]. None with neither."""
    if len(scores) == 1 and influence is None:
        return None
    table = _Table.of(scores[None], None if influence is None else influence[None], 1.0)
    seeds, sentences = float(table.variances[0]) / table.seeds, float(table.sentence_variance[0, 0])
    total = seeds + sentences
    if not total:
        return float(scores.mean()), float(scores.mean())
    parts = (seeds**2 / max(1, table.seeds - 1), sentences**2 / table.sentence_freedom)
    half = float(stats.t.isf(LEVEL / 2, total**2 / sum(parts))) * total**0.5
    return float(scores.mean()) - half, float(scores.mean()) + half


def moderate(variances: np.ndarray, freedom: int) -> tuple[np.ndarray, np.ndarray]:
    """(variances [..., rows] over seeds, their degrees of freedom), with what the other rows say about each.

    variances: estimates with `freedom` degrees of freedom each. Empirical Bayes (Smyth 2004): the true variances are taken
    as draws from a scaled inverse chi-square distribution. Its spread is fitted from the logarithms of the estimates, plus
    one standard error, so that few rows say little. A row too wild for that distribution keeps its own estimate, more so
    the less likely it is (as in Phipson et al. 2016).
    """
    rows, half = variances.shape[-1], freedom / 2
    if rows == 1:
        return variances, np.full(variances.shape, float(freedom))
    noise = special.polygamma(1, half)
    logs = np.log(variances) - special.digamma(half) + np.log(half)
    centre = logs.mean(-1, keepdims=True)
    spread = ((logs - centre) ** 2).sum(-1, keepdims=True) / (rows - 1)
    error = noise * np.sqrt((2 + special.polygamma(3, half) / noise**2) / (rows - 1))
    prior = 2 * _inverse_trigamma(np.maximum(spread - noise, 0) + error)
    common = np.exp(centre + special.digamma(prior / 2) - np.log(prior / 2))
    prior = prior * np.minimum(1, rows * special.fdtrc(freedom, prior, variances / common))
    return (prior * common + freedom * variances) / (prior + freedom), np.minimum(prior + freedom, freedom * rows)


def _inverse_trigamma(values: np.ndarray) -> np.ndarray:
    return np.exp(np.interp(-np.log(values), -np.log(_TRIGAMMA), np.log(_SHAPES)))


@dataclasses.dataclass(frozen=True)
class _Table:
    """means [rows]: higher is better. variances [rows]: over seeds. sentence_variance [rows, rows]: covariances of the means
    over sentences, without the interaction of seeds and sentences.
    """

    means: np.ndarray
    variances: np.ndarray
    sentence_variance: np.ndarray
    seeds: int
    sentence_freedom: float

    @classmethod
    def of(cls, scores: np.ndarray, influence: np.ndarray | None, sign: float) -> "_Table":
        rows, seeds = scores.shape
        means = sign * scores.mean(1)
        variances = scores.var(1, ddof=1) if seeds > 1 else np.zeros(rows)
        # Scores are rounded when stored: two seeds that agree to the last digit do not show that there is no spread.
        variances = np.maximum(variances, max(1e-6 * variances.mean(), 1e-18))
        if influence is None:
            return cls(means, variances, np.zeros((rows, rows)), seeds, np.inf)
        sentences = influence.shape[-1]
        of_rows = influence.mean(1)
        covariance = of_rows @ of_rows.T / (sentences * (sentences - 1))
        if seeds > 1:
            rest = ((influence - of_rows[:, None]) ** 2).sum((1, 2)) / ((seeds - 1) * (sentences - 1))
            covariance[np.diag_indices(rows)] -= rest / (seeds * sentences)
        return cls(means, variances, covariance, seeds, sentences - 1)

    def choose(self, means: np.ndarray, variances: np.ndarray) -> np.ndarray:
        """[...]: the `best_row` of means and variances [..., rows]."""
        if self.seeds > 1:
            means = means - 2 * np.sqrt(moderate(variances, self.seeds - 1)[0] / self.seeds)
        return means.argmax(-1)

    def errors(self, variances: np.ndarray, base: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(standard errors, degrees of freedom) [..., rows] of the differences to row `base` [...]; variances: [..., rows]."""
        own = np.diagonal(self.sentence_variance)
        shared = np.maximum(own + own[base][..., None] - 2 * self.sentence_variance[base], 0)
        if self.seeds == 1:
            return np.sqrt(shared), np.full(shared.shape, self.sentence_freedom)
        seeds, freedom = moderate(variances, self.seeds - 1)
        seeds = seeds / self.seeds
        of_base = np.take_along_axis(seeds, base[..., None], -1)
        freedom_of_base = np.take_along_axis(np.broadcast_to(freedom, seeds.shape), base[..., None], -1)
        total = seeds + of_base + shared
        parts = seeds**2 / freedom + of_base**2 / freedom_of_base + shared**2 / self.sentence_freedom
        return np.sqrt(total), np.divide(total**2, parts, out=np.ones(total.shape), where=parts > 0)


def _p_values(differences: np.ndarray, errors: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """Two-sided; 1 for no difference, 0 for one without any error."""
    size = np.abs(differences)
    ratio = np.divide(size, errors, out=np.where(size > 0, np.inf, 0.0), where=errors > 0)
    return 2 * special.stdtr(freedom, -ratio)


def _smallest_p_values(table: _Table, reference: int | None) -> np.ndarray:
    """[tables]: the smallest p-value of each simulated table of rows with equal means."""
    rows, seeds = len(table.means), table.seeds
    count = int(np.clip(MAX_VALUES // rows, MIN_TABLES, MAX_TABLES))
    rng, smallest = np.random.default_rng(SEED), np.empty(count)
    values, vectors = np.linalg.eigh(table.sentence_variance)
    root = vectors * np.sqrt(np.maximum(values, 0))
    step = max(1, MAX_VALUES // (4 * rows))
    for first in range(0, count, step):
        size = (min(step, count - first), rows)
        means, variances = np.zeros(size), np.zeros(size)
        if seeds > 1:
            means = rng.normal(size=size) * np.sqrt(table.variances / seeds)
            variances = table.variances * rng.chisquare(seeds - 1, size=size) / (seeds - 1)
        if root.any():
            means = means + rng.normal(size=size) @ root.T
        base = table.choose(means, variances) if reference is None else np.full(size[0], reference)
        errors, freedom = table.errors(variances, base)
        p_values = _p_values(means - np.take_along_axis(means, base[:, None], 1), errors, freedom)
        np.put_along_axis(p_values, base[:, None], 1.0, 1)
        smallest[first : first + step] = p_values.min(1)
    return smallest
