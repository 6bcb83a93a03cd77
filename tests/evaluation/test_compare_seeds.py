"""Two recipes, each trained with several seeds: how surely one is better."""

import numpy as np
import pytest
from helpers.records import noisy, record
from scipy import stats

from t2t_flax.evaluation.compare import compare
from t2t_flax.evaluation.compare_seeds import compare_seeds, pair_seeds, spread_over_seeds, students_t, told


def over_seeds(differences, sentence_variance):
    """The interval of two recipes alone, from a difference for each seed."""
    variance, freedom = spread_over_seeds({(row, i): row * d for row in (0, 1) for i, d in enumerate(differences)})
    return students_t(float(np.mean(differences)), 2 * variance / len(differences), freedom, sentence_variance)


def compared(pairs, **draws):
    """Two recipes alone."""
    paired = pair_seeds(pairs, **draws)
    spread = spread_over_seeds({(row, i): score for (i, row), score in np.ndenumerate(paired.scores)})
    return compare_seeds(paired, spread)


def test_one_seed_is_the_paired_bootstrap_over_sentences(tmp_path):
    """With one pair of runs nothing but the sentences is drawn: what `compare` does with other draws."""
    references = [f"a sentence of eight words is number {i} here" for i in range(300)]
    a = record(tmp_path, "a", noisy(references, 0.20, 1), references)
    b = record(tmp_path, "b", noisy(references, 0.24, 2), references)
    seeds, plain = compared([(a, b)]), compare(a, b)
    assert seeds["difference"] == plain["difference"]
    for end in ("low", "high"):
        assert seeds["interval"][end] == pytest.approx(plain["interval"][end], abs=0.5)


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("sentences", [0.0, 0.2, 0.5, 1.0, 3.0])
def test_equal_recipes_are_rarely_told_apart(seeds, sentences):
    """False alarms at 5, 1 and 0.1 %, for any share of chance that comes from the sentences."""
    rng = np.random.default_rng(0)
    p_values = []
    for _ in range(2000):
        low, high, p_value = over_seeds(rng.normal(size=seeds) + sentences * rng.normal(), sentences**2)
        assert (p_value < 0.05) == (not low <= 0 <= high)
        p_values.append(p_value)
    for level, most in ((0.05, 0.065), (0.01, 0.016), (0.001, 0.004)):
        assert np.mean(np.array(p_values) < level) < most


def test_the_spread_over_seeds_is_that_of_the_two_way_layout():
    """The textbook's residual mean square, rows times seeds without interaction."""
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(4, 3)) + rng.normal(size=(4, 1)) + rng.normal(size=(1, 3))
    own = scores - scores.mean(1, keepdims=True) - scores.mean(0) + scores.mean()
    variance, freedom = spread_over_seeds({index: score for index, score in np.ndenumerate(scores)})
    assert freedom == 6 and variance == pytest.approx((own**2).sum() / 6)


def test_rows_of_one_seed_say_nothing_of_the_spread():
    assert spread_over_seeds({}) == spread_over_seeds({("a", 0): 1.0, ("b", 0): 5.0}) == (0.0, 0)
    two = {("a", 0): 1.0, ("a", 1): 2.0, ("b", 0): 5.0, ("b", 1): 5.0}
    assert spread_over_seeds(two | {("c", 0): 9.0}) == pytest.approx(spread_over_seeds(two))


def test_an_interval_over_seeds_alone_is_students_t():
    differences = np.array([1.0, 1.5, 3.0])
    low, high, p_value = over_seeds(differences, 0.0)
    expected = stats.ttest_1samp(differences, 0.0)
    assert (low, high) == pytest.approx(tuple(expected.confidence_interval())) and p_value == pytest.approx(
        expected.pvalue
    )


def test_an_interval_over_sentences_alone_is_the_normal():
    low, high, p_value = over_seeds(np.array([2.0, 2.0]), 1.0)
    assert (low, high) == pytest.approx((2 - 1.959964, 2 + 1.959964)) and p_value == pytest.approx(2 * stats.norm.sf(2))


@pytest.mark.parametrize(
    "p_value, said", [(0.0342, "p 0.0342"), (1.0, "p 1"), (0.001, "p 0.001"), (1e-9, "p < 0.001"), (0.0, "p < 0.001")]
)
def test_no_p_value_is_told_as_zero(p_value, said):
    assert told(-0.411, -0.92, 0.0844, p_value) == f"-0.41 [-0.92, +0.08] {said}"


def test_seeds_that_disagree_widen_the_interval(tmp_path):
    """Two systems equal on the mean, of which one varies from seed to seed: sentences alone would call it significant."""
    references = [f"a sentence of eight words is number {i} here" for i in range(300)]
    steady = [record(tmp_path, f"s{i}", noisy(references, 0.2, i), references) for i in range(3)]
    shares = (0.1, 0.2, 0.3)
    varies = [record(tmp_path, f"v{i}", noisy(references, share, 10 + i), references) for i, share in enumerate(shares)]
    alone = compared([(varies[0], steady[0])])
    together = compared(list(zip(varies, steady, strict=True)))
    width = lambda c: c["interval"]["high"] - c["interval"]["low"]  # noqa: E731
    assert alone["p_value"] < 0.01 and together["p_value"] > 0.1 and width(together) > 2 * width(alone)
    assert together == compared(list(zip(varies, steady, strict=True)))


def test_no_difference_is_rarely_called_one(tmp_path):
    """False alarms at 5 %: of 40 pairs of equal systems about 2."""
    references = [f"a sentence of eight words is number {i} here" for i in range(100)]
    alarms = 0
    for i in range(40):
        a = record(tmp_path, f"a{i}", noisy(references, 0.2, 2 * i), references)
        b = record(tmp_path, f"b{i}", noisy(references, 0.2, 2 * i + 1), references)
        alarms += compared([(a, b)], resamples=300)["p_value"] < 0.05
    assert alarms <= 6
