"""p-values are calibrated under a true null hypothesis and agree with their intervals."""

import dataclasses

import hypothesis
import numpy as np
import pytest
from helpers.records import noisy, record
from helpers.scores import translation_config
from hypothesis import strategies as st

from t2t_flax.extensions.sweeps.compare import (
    COLUMNS,
    compare,
    compare_all,
    interval,
    paired_bootstrap,
    systems,
    two_sided_p,
)
from t2t_flax.extensions.sweeps.row_differences import compare_rows, influence
from t2t_flax.extensions.sweeps.rows import Row, format_difference
from t2t_flax.tasks import Predictions, task_of

REFERENCES = [f"a sentence of eight words is number {i} here" for i in range(200)]


@hypothesis.given(st.lists(st.integers(-30, 30), min_size=1, max_size=400), st.floats(-20, 20))
def test_p_below_5_percent_exactly_where_the_interval_excludes_zero(drawn, shift):
    differences = np.array(drawn, float) + shift
    low, high = interval(differences)
    assert low <= high
    assert (two_sided_p(differences) < 0.05) == (not low <= 0 <= high)


def test_interval_is_the_central_95_percent_of_resamples():
    differences = np.random.default_rng(0).normal(size=20_000)
    assert interval(differences) == pytest.approx(tuple(np.percentile(differences, (2.5, 97.5))), abs=2e-3)
    assert two_sided_p(differences + 1.959964) == pytest.approx(0.05, abs=5e-3)


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
        yield paired_bootstrap(first, second, resamples, seed=i)


def test_true_null_is_rejected_in_five_percent_of_trials():
    """In 200 trials at rate 0.05, more than 20 rejections occur with probability 0.001."""
    alarms = sum(two_sided_p(differences) < 0.05 for differences in null_differences("sacrebleu", 200, 200))
    assert 1 <= alarms <= 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sacrebleu", "chrf", "ter"])
def test_every_metric_rejects_a_true_null_at_the_nominal_rate(name):
    """The standard deviation of 400 trials at rate 0.05 is 0.011."""
    alarms = np.mean([two_sided_p(differences) < 0.05 for differences in null_differences(name, 400, 300)])
    assert 0.015 < alarms < 0.085


def test_table_of_many_runs_is_corrected_for_their_number(tmp_path):
    shares = (0.20, 0.20, 0.22, 0.24, 0.30)
    paths = [record(tmp_path, f"r{n}", noisy(REFERENCES, share, n), REFERENCES) for n, share in enumerate(shares)]
    lines, notes = compare_all(paths, [str(path) for path in paths], "sacrebleu")
    assert len(COLUMNS) == len(lines[0]) and "corrected for 5 systems" in notes[0]
    assert lines[0][3:5] == ["", ""]
    alone = [compare(path, paths[0])["p_value"] for path in paths[1:]]
    shown = [float(line[4]) for line in lines[1:]]
    assert all(p > a - 0.1 for a, p in zip(alone, shown, strict=True)) and shown[-1] < 0.05
    for line, p in zip(lines[1:], shown, strict=True):
        low, high = (float(end) for end in line[3].split("[")[1].rstrip("]").split(","))
        assert (p < 0.05) == (not low <= 0 <= high)
    (_, only), _ = compare_all(paths[:2], ["a", "b"], "sacrebleu")
    assert float(only[4]) == pytest.approx(alone[0], rel=1e-2), "one comparison needs no correction"


@pytest.mark.parametrize(
    "p_value, text", [(0.0342, "p 0.0342"), (1.0, "p 1"), (0.001, "p 0.001"), (1e-9, "p < 0.001"), (0.0, "p < 0.001")]
)
def test_p_value_is_never_printed_as_zero(p_value, text):
    interval = {"low": -0.92, "high": 0.0844}
    comparison = {"difference": -0.411, "a": 30.0, "interval_corrected": interval, "p_corrected": p_value}
    row = Row("row", {}, (), {}, (), comparison=comparison)
    assert format_difference(row) == f"-0.41 [-0.92, +0.08] {text}"


@pytest.mark.parametrize("name", ["sacrebleu", "chrf", "ter"])
def test_influence_of_sentences_gives_the_error_of_the_bootstrap(name):
    config = translation_config("en")
    metric = task_of(config).metric(name)
    a, b = (metric.statistics(Predictions(noisy(REFERENCES, 0.2, n), [REFERENCES]), config) for n in (0, 1))
    values = influence(a) - influence(b)
    assert values.mean() == pytest.approx(0, abs=1e-8)
    expected = paired_bootstrap(a, b, 2000).std()
    assert values.std(ddof=1) / len(values) ** 0.5 == pytest.approx(expected, rel=0.1)


def test_paired_test_over_sentences_agrees_with_the_bootstrap(tmp_path):
    """And so does a table of two rows with one seed."""
    references = [f"a sentence of eight words is number {i} here" for i in range(300)]
    a = record(tmp_path, "a", noisy(references, 0.20, 1), references)
    b = record(tmp_path, "b", noisy(references, 0.24, 2), references)
    _, score, statistics = systems([b, a])
    scores = np.array([[each.corpus_score] for each in statistics])
    _, row = compare_rows(
        scores, np.array([[influence(each)] for each in statistics]), reference=0, chosen_before=True
    ).rows
    plain = compare(a, b)
    assert score == "sacrebleu" and row.difference == pytest.approx(plain["difference"], abs=1e-3)
    assert (row.low, row.high) == pytest.approx((plain["interval"]["low"], plain["interval"]["high"]), abs=0.4)
    assert row.p_value == pytest.approx(plain["p_value"], abs=0.01)


def test_seeds_that_disagree_widen_the_interval(tmp_path):
    """Two systems with equal means, one of which varies with the seed: significant over sentences alone."""
    references = [f"a sentence of eight words is number {i} here" for i in range(300)]
    shares = {"steady": (0.2, 0.2, 0.2), "varies": (0.1, 0.2, 0.3)}
    paths = [
        record(tmp_path, f"{name}{i}", noisy(references, share, 10 * len(name) + i), references)
        for name, each in shares.items()
        for i, share in enumerate(each)
    ]
    _, _, statistics = systems(paths)
    scores = np.array([each.corpus_score for each in statistics]).reshape(2, 3)
    influences = np.array([influence(each) for each in statistics]).reshape(2, 3, -1)
    alone = compare_rows(scores[:, :1], influences[:, :1], reference=0, chosen_before=True).rows[1]
    together = compare_rows(scores, influences, reference=0, chosen_before=True).rows[1]
    assert alone.p_value < 0.01 and together.p_value > 0.1
    assert together.high - together.low > 2 * (alone.high - alone.low)
