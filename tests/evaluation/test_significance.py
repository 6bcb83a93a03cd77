"""p-values are calibrated under a true null hypothesis and agree with their intervals."""

import dataclasses
import json

import hypothesis
import numpy as np
import pytest
from helpers.records import noisy, record
from helpers.scores import translation_config
from hypothesis import strategies as st
from scipy import stats

from t2t_flax.evaluation.compare import COLUMNS, SeedPairs, compare, compare_runs, compare_seeds, describe, pair_seeds
from t2t_flax.evaluation.significance import (
    add_seed_variance,
    corrected,
    format_difference,
    interval,
    multipliers,
    paired_bootstrap,
    sacrebleu_p,
    seed_variance,
    two_sided_p,
)
from t2t_flax.tasks import task_of
from t2t_flax.tasks.metrics import Predictions

REFERENCES = [f"a sentence of eight words is number {i} here" for i in range(200)]


@pytest.fixture(scope="module")
def few_draws():
    """Reduces the draws of the uncertainty over seeds, for speed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("t2t_flax.evaluation.significance.SEED_DRAWS", 4000)
        yield


@hypothesis.given(
    st.lists(st.integers(-30, 30), min_size=1, max_size=400), st.floats(-20, 20), st.sampled_from([1.0, 1.5, 3.0, 28.0])
)
def test_p_below_5_percent_exactly_where_the_interval_excludes_zero(drawn, shift, comparisons):
    differences = np.array(drawn, float) + shift
    low, high = interval(differences, comparisons)
    assert low <= high
    assert (min(1.0, two_sided_p(differences) * comparisons) < 0.05) == (not low <= 0 <= high)


def test_interval_is_the_central_95_percent_of_resamples():
    differences = np.random.default_rng(0).normal(size=20_000)
    assert interval(differences) == pytest.approx(tuple(np.percentile(differences, (2.5, 97.5))), abs=2e-3)
    assert two_sided_p(differences + 1.959964) == pytest.approx(0.05, abs=5e-3)


@hypothesis.given(st.lists(st.floats(1e-12, 1.0), max_size=12), st.booleans())
def test_corrected_p_values_keep_their_order(p_values, holm):
    adjusted = corrected(p_values, holm=holm)
    assert all(a <= b for a, b in zip(p_values, adjusted, strict=True))
    assert [adjusted[i] for i in np.argsort(p_values, kind="stable")] == pytest.approx(sorted(adjusted))
    if p_values:
        count = len(p_values) if holm else len(p_values) * (len(p_values) + 1) // 2
        assert min(adjusted) == pytest.approx(min(1.0, min(p_values) * count))


def test_holm_and_bonferroni():
    assert corrected([0.03, 0.01, 0.2], holm=True) == pytest.approx([0.06, 0.03, 0.2])
    assert corrected([0.03, 0.01, 0.2], holm=False) == pytest.approx([0.18, 0.06, 1.0])
    assert multipliers([0.01, 0.011], holm=True) == pytest.approx([2.0, 0.02 / 0.011]), "the larger stays the larger"
    assert corrected([], holm=True) == []


@hypothesis.given(
    st.lists(st.tuples(st.floats(-3, 3), st.floats(0.01, 2)), min_size=1, max_size=8),
    st.integers(1, 12),
    st.floats(0, 2),
    st.booleans(),
)
def test_corrected_interval_agrees_with_corrected_p(few_draws, rows, freedom, spread, holm):
    paired = [SeedPairs("s", np.array([[d, 0.0]]), np.array([d - s, d, d + s])) for d, s in rows]
    alone = [compare_seeds(pairs, (spread, freedom)) for pairs in paired]
    factors = multipliers([result["p_value"] for result in alone], holm=holm)
    for pairs, factor in zip(paired, factors, strict=True):
        result = compare_seeds(pairs, (spread, freedom), factor)
        for p, ends in (("p_value", "interval"), ("p_corrected", "interval_corrected")):
            low, high = result[ends]["low"], result[ends]["high"]
            if min(abs(low), abs(high)) > 1e-3 and abs(result[p] - 0.05) > 1e-4:  # stored values are rounded
                assert (result[p] < 0.05) == (not low <= 0 <= high)
        assert result["interval_corrected"]["low"] <= result["interval"]["low"]


def null_differences(name, trials, resamples, seed=0):
    """Resampled differences of equal systems: two noisy versions with each sentence's pair randomly swapped."""
    config = translation_config("en")
    metric = task_of(config).metric(name)
    a, b = (metric.statistics(Predictions(noisy(REFERENCES, 0.2, n), [REFERENCES]), config) for n in (0, 1))
    for i in range(trials):
        rng = np.random.default_rng([seed, i])
        swap = rng.random((len(REFERENCES), 1)) < 0.5
        first, second = (
            dataclasses.replace(a, values=np.where(swap, *values))
            for values in ((b.values, a.values), (a.values, b.values))
        )
        yield first.corpus_score - second.corpus_score, paired_bootstrap(first, second, resamples, seed=i)


def test_true_null_is_rejected_in_five_percent_of_trials():
    """In 200 trials at rate 0.05, more than 20 rejections occur with probability 0.001."""
    alarms = sum(two_sided_p(differences) < 0.05 for _, differences in null_differences("sacrebleu", 200, 200))
    assert 1 <= alarms <= 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sacrebleu", "chrf", "ter"])
def test_every_metric_rejects_a_true_null_at_the_nominal_rate(name):
    """The standard deviation of 400 trials at rate 0.05 is 0.011. sacreBLEU's p-value rejects about twice as often."""
    p_values = [(two_sided_p(d), sacrebleu_p(d, observed)) for observed, d in null_differences(name, 400, 300)]
    alarms, theirs = (np.mean(np.array(p) < 0.05) for p in zip(*p_values, strict=True))
    assert 0.015 < alarms < 0.085 and theirs > alarms + 0.015


def test_table_of_equal_systems_rarely_has_a_significant_row():
    """60 tables of five comparisons; without correction about one in four would have a significant row."""
    p_values = [two_sided_p(differences) for _, differences in null_differences("sacrebleu", 300, 200, seed=1)]
    tables = np.array(p_values).reshape(60, 5)
    raw = np.mean(tables.min(1) < 0.05)
    significant = np.mean([min(corrected(list(row), holm=True)) < 0.05 for row in tables])
    assert significant <= 0.12 and raw > significant


def test_table_of_many_runs_is_corrected_for_their_number(tmp_path):
    shares = (0.20, 0.20, 0.22, 0.24, 0.30)
    paths = [record(tmp_path, f"r{n}", noisy(REFERENCES, share, n), REFERENCES) for n, share in enumerate(shares)]
    for path in paths:
        content = json.loads(path.read_text())
        content |= {"scores": {"sacrebleu": {"score": 50.0}}, "checkpoint": {"averaged": [1]}}
        path.write_text(json.dumps(content))
    lines = compare_runs(paths, [str(path) for path in paths], "sacrebleu")
    assert len(COLUMNS) == len(lines[0]) and "Holm" in COLUMNS[4] and "two-sided" in COLUMNS[4]
    assert lines[0][3:5] == ["", ""]
    alone = [compare(path, paths[0])["p_value"] for path in paths[1:]]
    shown = [float(line[4]) for line in lines[1:]]
    assert shown == pytest.approx(corrected(alone, holm=True), abs=0.05) and shown[-1] < 0.05
    for line, p in zip(lines[1:], shown, strict=True):
        low, high = (float(end) for end in line[3].split("[")[1].rstrip("]").split(","))
        assert (p < 0.05) == (not low <= 0 <= high)
    (only,) = compare_runs(paths[:2], ["a", "b"], "sacrebleu")[1:]
    assert float(only[4]) == pytest.approx(alone[0], abs=1e-3), "one comparison needs no correction"


def test_a_better_follows_the_direction_of_the_metric(tmp_path):
    good, poor = (record(tmp_path, n, noisy(REFERENCES, s, 1), REFERENCES) for n, s in (("a", 0.1), ("b", 0.3)))
    by = {name: compare(good, poor, score=name, resamples=100) for name in ("ter", "chrf++")}
    assert by["ter"]["difference"] < 0 < by["chrf++"]["difference"]
    assert by["ter"]["a_better"] == by["chrf++"]["a_better"] == 1.0
    assert "lower is better" in describe(by["ter"]) and "lower is better" not in describe(by["chrf++"])
    assert "two-sided p" in describe(by["ter"])


NORMAL = np.random.default_rng(1).permutation(stats.norm.ppf((np.arange(2000) + 0.5) / 2000))


def over_seeds(differences, sentence_variance):
    """(low, high, p) of two recipes from one difference per seed."""
    variance, freedom = seed_variance({(row, i): row * d for row in (0, 1) for i, d in enumerate(differences)})
    sentences = np.mean(differences) + sentence_variance**0.5 * NORMAL
    resampled = add_seed_variance(sentences, 2 * variance / len(differences), freedom)
    return *interval(resampled), two_sided_p(resampled)


def compared(pairs, **draws):
    """The comparison of two recipes without further rows."""
    paired = pair_seeds(pairs, **draws)
    spread = seed_variance({(row, i): score for (i, row), score in np.ndenumerate(paired.scores)})
    return compare_seeds(paired, spread)


def test_one_seed_is_the_paired_bootstrap_of_compare(tmp_path):
    references = [f"a sentence of eight words is number {i} here" for i in range(300)]
    a = record(tmp_path, "a", noisy(references, 0.20, 1), references)
    b = record(tmp_path, "b", noisy(references, 0.24, 2), references)
    seeds, plain = compared([(a, b)]), compare(a, b)
    assert {key: seeds[key] for key in ("difference", "interval", "p_value")} == {
        key: pytest.approx(plain[key], abs=1e-6) for key in ("difference", "interval", "p_value")
    }


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("sentences", [0.0, 0.2, 0.5, 1.0, 3.0])
def test_true_null_over_seeds_is_rejected_at_most_at_the_nominal_rate(seeds, sentences, few_draws):
    """At 5, 1 and 0.1 %, for any ratio of the variances over sentences and seeds."""
    rng = np.random.default_rng(0)
    p_values = []
    for _ in range(600):
        low, high, p_value = over_seeds(rng.normal(size=seeds) + sentences * rng.normal(), sentences**2)
        assert (p_value < 0.05) == (not low <= 0 <= high)
        p_values.append(p_value)
    for level, most in ((0.05, 0.08), (0.01, 0.025), (0.001, 0.009)):
        assert np.mean(np.array(p_values) < level) < most


def test_seed_variance_is_the_residual_of_the_two_way_layout():
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(4, 3)) + rng.normal(size=(4, 1)) + rng.normal(size=(1, 3))
    own = scores - scores.mean(1, keepdims=True) - scores.mean(0) + scores.mean()
    variance, freedom = seed_variance({index: score for index, score in np.ndenumerate(scores)})
    assert freedom == 6 and variance == pytest.approx((own**2).sum() / 6)


def test_rows_of_one_seed_have_no_seed_variance():
    assert seed_variance({}) == seed_variance({("a", 0): 1.0, ("b", 0): 5.0}) == (0.0, 0)
    two = {("a", 0): 1.0, ("a", 1): 2.0, ("b", 0): 5.0, ("b", 1): 5.0}
    assert seed_variance(two | {("c", 0): 9.0}) == pytest.approx(seed_variance(two))


def test_interval_over_seeds_alone_is_students_t():
    differences = np.array([1.0, 1.5, 3.0])
    low, high, p_value = over_seeds(differences, 0.0)
    expected = stats.ttest_1samp(differences, 0.0)
    assert (low, high) == pytest.approx(tuple(expected.confidence_interval()), abs=0.01)
    assert p_value == pytest.approx(expected.pvalue, abs=1e-3)


def test_seeds_that_agree_leave_the_bootstrap_over_sentences():
    low, high, p_value = over_seeds(np.array([2.0, 2.0]), 1.0)
    assert (low, high) == pytest.approx((2 - 1.959964, 2 + 1.959964), abs=0.01)
    assert p_value == pytest.approx(2 * stats.norm.sf(2), abs=1e-3)


@pytest.mark.parametrize(
    "p_value, text", [(0.0342, "p 0.0342"), (1.0, "p 1"), (0.001, "p 0.001"), (1e-9, "p < 0.001"), (0.0, "p < 0.001")]
)
def test_p_value_is_never_printed_as_zero(p_value, text):
    assert format_difference(-0.411, -0.92, 0.0844, p_value) == f"-0.41 [-0.92, +0.08] {text}"


def test_seeds_that_disagree_widen_the_interval(tmp_path):
    """Two systems with equal means, one of which varies with the seed: significant over sentences alone."""
    references = [f"a sentence of eight words is number {i} here" for i in range(300)]
    steady = [record(tmp_path, f"s{i}", noisy(references, 0.2, i), references) for i in range(3)]
    shares = (0.1, 0.2, 0.3)
    varies = [record(tmp_path, f"v{i}", noisy(references, share, 10 + i), references) for i, share in enumerate(shares)]
    alone = compared([(varies[0], steady[0])])
    together = compared(list(zip(varies, steady, strict=True)))
    width = lambda c: c["interval"]["high"] - c["interval"]["low"]  # noqa: E731
    assert alone["p_value"] < 0.01 and together["p_value"] > 0.1 and width(together) > 2 * width(alone)
    assert together == compared(list(zip(varies, steady, strict=True)))


def test_equal_systems_with_one_seed_rarely_differ_significantly(tmp_path):
    """At a false positive rate of 5 %, about 2 of 40 pairs of equal systems."""
    references = [f"a sentence of eight words is number {i} here" for i in range(100)]
    alarms = 0
    for i in range(40):
        a = record(tmp_path, f"a{i}", noisy(references, 0.2, 2 * i), references)
        b = record(tmp_path, f"b{i}", noisy(references, 0.2, 2 * i + 1), references)
        alarms += compared([(a, b)], resamples=300)["p_value"] < 0.05
    assert alarms <= 6
