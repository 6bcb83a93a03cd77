"""One meaning of p: it errs as often as it says, and agrees with its interval, alone and in a table."""

import json

import hypothesis
import numpy as np
import pytest
from helpers.records import noisy, record
from hypothesis import strategies as st

from t2t_flax.evaluation.bleu import Statistics, variant
from t2t_flax.evaluation.compare import compare, describe
from t2t_flax.evaluation.compare_runs import COLUMNS, comparison
from t2t_flax.evaluation.compare_seeds import Paired, compare_seeds
from t2t_flax.evaluation.significance import corrected, interval, multipliers, sacrebleu_p, two_sided

REFERENCES = [f"a sentence of eight words is number {i} here" for i in range(200)]


@hypothesis.given(
    st.lists(st.integers(-30, 30), min_size=1, max_size=400), st.floats(-20, 20), st.sampled_from([1.0, 1.5, 3.0, 28.0])
)
def test_p_is_below_five_percent_exactly_where_the_interval_leaves_out_zero(drawn, shift, comparisons):
    differences = np.array(drawn, float) + shift
    low, high = interval(differences, comparisons)
    assert low <= high
    assert (min(1.0, two_sided(differences) * comparisons) < 0.05) == (not low <= 0 <= high)


def test_the_interval_of_many_resamples_is_the_middle_95_percent():
    differences = np.random.default_rng(0).normal(size=20_000)
    assert interval(differences) == pytest.approx(tuple(np.percentile(differences, (2.5, 97.5))), abs=2e-3)
    assert two_sided(differences + 1.959964) == pytest.approx(0.05, abs=5e-3)


@hypothesis.given(st.lists(st.floats(1e-12, 1.0), max_size=12), st.booleans())
def test_corrected_p_values_keep_their_order_and_are_no_smaller(p_values, named):
    found = corrected(p_values, named=named)
    assert all(a <= b for a, b in zip(p_values, found, strict=True))
    assert [found[i] for i in np.argsort(p_values, kind="stable")] == pytest.approx(sorted(found))
    if p_values:
        count = len(p_values) if named else len(p_values) * (len(p_values) + 1) // 2
        assert min(found) == pytest.approx(min(1.0, min(p_values) * count))


def test_holm_and_bonferroni():
    assert corrected([0.03, 0.01, 0.2], named=True) == pytest.approx([0.06, 0.03, 0.2])
    assert corrected([0.03, 0.01, 0.2], named=False) == pytest.approx([0.18, 0.06, 1.0])
    assert multipliers([0.01, 0.011], named=True) == pytest.approx([2.0, 0.02 / 0.011]), "the larger stays the larger"
    assert corrected([], named=True) == []


@hypothesis.given(
    st.lists(st.tuples(st.floats(-3, 3), st.floats(0.01, 2)), min_size=1, max_size=8),
    st.integers(1, 12),
    st.floats(0, 2),
    st.booleans(),
)
def test_the_corrected_interval_of_a_row_agrees_with_its_corrected_p(rows, freedom, spread, named):
    paired = [Paired("s", np.array([[d, 0.0]]), np.array([d - s, d, d + s])) for d, s in rows]
    alone = [compare_seeds(pairs, (spread, freedom)) for pairs in paired]
    factors = multipliers([found["p_value"] for found in alone], named=named)
    for pairs, factor in zip(paired, factors, strict=True):
        found = compare_seeds(pairs, (spread, freedom), factor)
        for p, ends in (("p_value", "interval"), ("p_corrected", "interval_corrected")):
            low, high = found[ends]["low"], found[ends]["high"]
            if min(abs(low), abs(high)) > 1e-3 and abs(found[p] - 0.05) > 1e-4:  # what is stored is rounded
                assert (found[p] < 0.05) == (not low <= 0 <= high)
        assert found["interval_corrected"]["low"] <= found["interval"]["low"]


def null_differences(name, trials, resamples, seed=0):
    """Resampled differences of equal systems: two noised versions, each sentence's pair swapped at random."""
    chosen = variant(name, tokenized=False, language="en")
    a, b = (Statistics(chosen, noisy(REFERENCES, 0.2, n), [REFERENCES]) for n in (0, 1))
    for i in range(trials):
        rng = np.random.default_rng([seed, i])
        swap = rng.random((len(REFERENCES), 1)) < 0.5
        one, other = np.where(swap, b.counts, a.counts), np.where(swap, a.counts, b.counts)
        drawn = rng.multinomial(len(REFERENCES), np.full(len(REFERENCES), 1 / len(REFERENCES)), size=resamples)
        observed = a.percent(one.sum(0)) - a.percent(other.sum(0))
        pairs = zip(drawn @ one, drawn @ other, strict=True)
        yield observed, np.array([a.percent(x) - a.percent(y) for x, y in pairs])


def test_equal_systems_differ_significantly_in_five_percent_of_trials():
    """200 trials at a rate of 0.05: more than 20 come up by chance in one of a thousand."""
    alarms = sum(two_sided(differences) < 0.05 for _, differences in null_differences("sacrebleu", 200, 200))
    assert 1 <= alarms <= 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sacrebleu", "chrf", "ter"])
def test_every_score_errs_as_often_as_it_says(name):
    """400 trials at a rate of 0.05 have a deviation of 0.011. What sacreBLEU prints errs about twice as often."""
    found = [(two_sided(d), sacrebleu_p(d, observed)) for observed, d in null_differences(name, 400, 300)]
    alarms, theirs = (np.mean(np.array(p) < 0.05) for p in zip(*found, strict=True))
    assert 0.015 < alarms < 0.085 and theirs > alarms + 0.015


def test_a_table_of_equal_rows_rarely_has_a_significant_one():
    """60 tables of five comparisons: without a correction about every fourth would have one."""
    p_values = [two_sided(differences) for _, differences in null_differences("sacrebleu", 300, 200, seed=1)]
    tables = np.array(p_values).reshape(60, 5)
    raw = np.mean(tables.min(1) < 0.05)
    significant = np.mean([min(corrected(list(row), named=True)) < 0.05 for row in tables])
    assert significant <= 0.12 and raw > significant


def test_the_table_of_many_runs_is_corrected_and_agrees_with_its_intervals(tmp_path):
    shares = (0.20, 0.20, 0.22, 0.24, 0.30)
    made = [record(tmp_path, f"r{n}", noisy(REFERENCES, share, n), REFERENCES) for n, share in enumerate(shares)]
    for path in made:
        content = json.loads(path.read_text())
        content |= {"scores": {"sacrebleu": {"score": 50.0}}, "checkpoint": {"averaged": [1]}}
        path.write_text(json.dumps(content))
    lines = comparison(made, [str(path) for path in made], "sacrebleu")
    assert len(COLUMNS) == len(lines[0]) and "Holm" in COLUMNS[4] and "two-sided" in COLUMNS[4]
    assert lines[0][3:5] == ["", ""]
    alone = [compare(path, made[0])["p_value"] for path in made[1:]]
    shown = [float(line[4]) for line in lines[1:]]
    assert shown == pytest.approx(corrected(alone, named=True), abs=0.05) and shown[-1] < 0.05
    for line, p in zip(lines[1:], shown, strict=True):
        low, high = (float(end) for end in line[3].split("[")[1].rstrip("]").split(","))
        assert (p < 0.05) == (not low <= 0 <= high)
    (only,) = comparison(made[:2], ["a", "b"], "sacrebleu")[1:]
    assert float(only[4]) == pytest.approx(alone[0], abs=1e-3), "one comparison needs no correction"


def test_the_interval_of_a_lower_is_better_score_counts_the_better_system(tmp_path):
    good, poor = (record(tmp_path, n, noisy(REFERENCES, s, 1), REFERENCES) for n, s in (("a", 0.1), ("b", 0.3)))
    by = {name: compare(good, poor, score=name, resamples=100) for name in ("ter", "chrf++")}
    assert by["ter"]["difference"] < 0 < by["chrf++"]["difference"]
    assert by["ter"]["a_better"] == by["chrf++"]["a_better"] == 1.0
    assert "lower is better" in describe(by["ter"]) and "lower is better" not in describe(by["chrf++"])
    assert "two-sided p" in describe(by["ter"])
