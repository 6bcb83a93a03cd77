"""The report of a sweep: rows, differences, and its files; scores that trials have."""

import csv
import json
import shlex
import sys

import numpy as np
import pytest
from helpers.refusals import refused
from scipy import stats
from stand_in import TOY, diverges, fails, ok

from t2t_flax.config import load_config
from t2t_flax.extensions.sweeps.differences import compare_rows
from t2t_flax.extensions.sweeps.folder import read_sweep
from t2t_flax.extensions.sweeps.report import (
    make_rows,
    markdown_table,
    plot_scores,
    report,
    verdict,
)
from t2t_flax.extensions.sweeps.results import check_score, default_score, trial_score

ROWS = {
    "good": tuple(ok(n, nll=(3.0, 1.0 + n / 100)) for n in (0, 1, 2)),
    "same": tuple(ok(n, nll=(3.0, 1.0 + n / 100)) for n in (1, 0, 4)),
    "poor": tuple(ok(n, nll=(3.0, 1.0 + n / 100)) for n in (30, 31, 32)),
}


@pytest.fixture
def finished(grid):
    sweep = grid(ROWS, seeds=3)
    sweep.work()
    return sweep


def rows_of(sweep, score="sacrebleu", baseline=""):
    return make_rows(sweep.folder, read_sweep(sweep.folder.path), score, baseline)


def test_mean_spread_and_difference(finished):
    table, reference = rows_of(finished)
    assert [row.name for row in table] == ["good", "same", "poor"] and reference == "good"
    assert [row.mean for row in table] == pytest.approx([99, 100 - 5 / 3, 69])
    assert [row.spread for row in table] == pytest.approx([1, np.std([1, 0, 4], ddof=1), 1])
    assert table[0].difference is None and table[2].difference.difference == pytest.approx(-30)
    assert [verdict(row, reference, "sacrebleu") for row in table] == [
        "reference",
        "no clear difference",
        "worse",
    ]
    table, reference = rows_of(finished, baseline="poor")
    assert reference == "poor" and [verdict(row, reference, "sacrebleu") for row in table] == [
        "better",
        "better",
        "reference",
    ]


@pytest.mark.parametrize("score", ["nll", "valid_nll"])
def test_lower_is_better(finished, score):
    table, reference = rows_of(finished, score)
    assert (
        reference == "good"
        and table[2].difference.difference > 0
        and verdict(table[2], "good", score) == "worse"
    )


def test_rows_are_ranked_by_the_validation_set(finished):
    """The best row on the test set is not the best one there."""
    for name in finished.names[6:]:
        (finished.folder.workdir(name) / "metrics.jsonl").write_text(
            '{"step": 9, "valid_nll": 0.5}\n'
        )
    assert [rows_of(finished, score)[0][0].name for score in ("sacrebleu", "valid_nll")] == [
        "poor",
        "poor",
    ]
    without = read_sweep(finished.folder.path) | {"selection": ""}
    assert make_rows(finished.folder, without, "sacrebleu")[1] == "good"
    assert "69.00" in report(finished.folder.path, score="valid_nll"), (
        "the test score of the selected row"
    )


@pytest.mark.parametrize("score", ["nll", "valid_nll", "sacrebleu"])
def test_rows_with_other_tokenizers_are_not_compared_by_scores_per_token(finished, score):
    for name in finished.names:
        tokenizer = finished.folder.workdir(name) / "tokenizer" / "tokenizer.model"
        tokenizer.parent.mkdir()
        tokenizer.write_text("other" if name.startswith("same") else "one")
    table, reference = rows_of(finished, score)
    verdicts = {row.name: verdict(row, reference, score) for row in table}
    assert verdicts["poor"] == "worse"
    assert verdicts["same"] == ("no clear difference" if score == "sacrebleu" else "see the note")
    assert ("tokenizers" if score == "sacrebleu" else "tokenizer") in report(
        finished.folder.path, score=score
    )


@pytest.mark.parametrize("seeds", [2, 3])
def test_two_seeds_are_advised_to_become_more(grid, seeds):
    sweep = grid({name: row[:seeds] for name, row in ROWS.items()}, seeds=seeds)
    sweep.work()
    assert ("--extend" in report(sweep.folder.path)) == (seeds == 2)


def test_rows_with_lost_seeds_come_last(grid):
    """Their complete seed is the best of all."""
    sweep = grid(
        {"wild": (ok(0), diverges), "bad": (ok(0), fails, fails)[:2], "steady": (ok(20), ok(21))},
        seeds=2,
    )
    sweep.work(retries=0)
    table, reference = rows_of(sweep)
    assert [row.name for row in table] == ["steady", "wild", "bad"] and reference == "steady"
    assert table[1].states == {"complete": 1, "diverged": 1} and table[1].difference is None


def test_scores_of_several_sets(finished):
    """`SET:score` of a named test set, `valid_score/SET` of one validation set."""
    folder, name = finished.folder, "good,seed=0"
    marker = folder.workdir(name) / "complete.json"
    stored = json.loads(marker.read_text())
    marker.write_text(
        json.dumps(stored | {"records": {"first": "absent.json", "other": "test-3.json"}})
    )
    (folder.workdir(name) / "metrics.jsonl").write_text(
        '{"step": 1, "valid_nll": 1, "valid_nll/en-de": 2.5}\n'
    )
    assert (
        trial_score(folder, name, "other:sacrebleu") == 100
        and trial_score(folder, name, "valid_nll/en-de") == 2.5
    )
    for score, named in (
        ("sacrebleu", "absent.json"),
        ("third:sacrebleu", "third"),
        ("other:rouge", "rouge"),
    ):
        with refused(named):
            trial_score(folder, name, score)


def rewritten(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("damage", [
    lambda record: record.unlink(), lambda record: record.write_text('{"record_version": 1, "sco'), lambda record: record.write_text("[1]"),
    lambda record: rewritten(record, scores=None), lambda record: rewritten(record, scores={"sacrebleu": {"score": "high"}}),
    lambda record: rewritten(record, config={"data": {"task": "chess"}}), lambda record: rewritten(record, data={"digest": "e" * 64, "spec": "t", "sentences": 1}),
    lambda record: record.parents[1].joinpath("complete.json").write_text(""),
    lambda record: rewritten(record.parents[1] / "complete.json", records={"test": "../../x.json"}),
], ids=["missing", "cut short", "no record", "no scores", "text", "unknown task", "another test set", "empty marker", "elsewhere"])  # fmt: skip
def test_damage_affects_only_its_trial(finished, damage):
    damage(finished.folder.workdir("same,seed=0") / "eval" / "test-3.json")
    table, reference = rows_of(finished)
    by_name = {row.name: row for row in table}
    assert reference == "good" and len(by_name["same"].scores) == 2 and by_name["same"].problem
    assert (
        verdict(by_name["poor"], reference, "sacrebleu") == "worse" and not by_name["good"].problem
    )
    report(finished.folder.path)


def test_unknown_baseline_and_score_are_refused(finished, tmp_path):
    for score, baseline, named in (("sacrebleu", "best", "best"), ("rouge", "", "rouge")):
        with refused(named):
            rows_of(finished, score, baseline)
    with refused("sweep.json"):
        report(tmp_path)


def test_files_of_a_report(finished):
    text, out = report(finished.folder.path), finished.folder.path / "report"
    table = text[text.index("|") : text.rindex("|") + 1]
    assert table in (out / "report.md").read_text() and "poor" in table
    assert (out / "report.html").read_text().count("<svg") == 1 and (out / "scores.svg").exists()
    with (out / "trials.csv").open() as file:
        trials = list(csv.DictReader(file))
    assert [trial["score"] for trial in trials][:3] == ["100.0", "99.0", "98.0"] and trials[3][
        "train.steps"
    ] == "101"
    words = shlex.split(trials[1]["command"])
    assert words[3] == "train" and load_config(words[4].removeprefix("--config=")).seed.init == 1
    assert report(finished.folder.path) == text


def test_report_of_unfinished_trials_without_matplotlib(grid, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    sweep = grid({"bad": fails, "good": ok(), "waiting": ok()})
    sweep.names.pop()
    sweep.work(retries=0)
    sweep.folder.log("bad,seed=0").parent.mkdir(exist_ok=True)
    sweep.folder.log("bad,seed=0").write_text("Traceback: <something>\n")
    text = report(sweep.folder.path)
    assert all(state in text for state in ("1 failed", "1 complete", "1 waiting"))
    page = (sweep.folder.path / "report" / "report.html").read_text()
    assert "Traceback: &lt;something&gt;" in page and "<svg" not in page


def test_figure_has_the_intervals_of_the_table(finished):
    table, reference = rows_of(finished)
    (axes,) = plot_scores(table, "sacrebleu", reference).axes
    bars = {
        line.get_ydata()[0]: line.get_xdata() for line in axes.lines if line.get_linewidth() == 2
    }
    for y in (1, 2):
        found = table[y].difference
        assert bars[y] == pytest.approx((99 + found.low, 99 + found.high))
    dots = [sorted(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"]
    assert dots == [[98, 99, 100], [96, 99, 100], [68, 69, 70]]


def test_table_is_markdown():
    lines = markdown_table(
        ("row", "mean"), [["a|b", "1.5"], ["c", "10.25"]], right=("mean",)
    ).splitlines()
    assert lines == [
        "| row  |  mean |",
        "| ---- | ----: |",
        "| a\\|b |   1.5 |",
        "| c    | 10.25 |",
    ]


def test_two_rows_are_compared_by_welchs_test():
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=5), 1 + 3 * rng.normal(size=4)
    none, found = compare_rows([a, b], 0)
    expected = stats.ttest_ind(b, a, equal_var=False)
    assert none is None and found.p == pytest.approx(expected.pvalue, rel=0.05)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()), abs=0.1)


def test_rows_of_a_table_are_compared_as_by_scipy():
    rng = np.random.default_rng(7)
    rows = [
        mean + scale * rng.normal(size=size)
        for mean, scale, size in ((0, 1, 3), (2, 0.5, 4), (4, 3, 3))
    ]
    expected = stats.tukey_hsd(*rows, equal_var=False)
    interval = expected.confidence_interval()
    for at, found in enumerate(compare_rows([*rows, [1.0]], 0)):
        if at in (0, 3):
            assert found is None, "the reference, and a row with one seed"
            continue
        assert found.p == pytest.approx(expected.pvalue[at, 0], rel=0.05)
        assert (found.low, found.high) == pytest.approx(
            (interval.low[at, 0], interval.high[at, 0]), rel=0.05
        )
        assert (found.p < 0.05) == (not found.low <= 0 <= found.high)


def test_equal_scores_do_not_differ():
    found = compare_rows([[7.0, 7.0], [7.0, 7.0], [8.0, 8.0]], 0)
    assert (
        found[1].p > 0.9
        and found[2].p < 0.01
        and compare_rows([[7.0], [8.0, 8.1]], 0) == [None, None]
    )


@pytest.mark.drill
@pytest.mark.parametrize("rows", [2, 3, 5, 10, 20])
def test_the_best_of_equal_rows_rarely_differs_from_another(rows, monkeypatch):
    """Print rates of wrong and of found differences; docs/experiments.md gives their ranges."""
    # Slow, and below 0.05 where the interval excludes zero.
    monkeypatch.setattr(stats.studentized_range, "sf", lambda *_: 1.0)
    rng, tables = np.random.default_rng(rows), 500
    for seeds in (2, 3, 5, 10):
        for spread in (0.0, 1.5):
            scales = np.exp(np.linspace(-spread, spread, rows))[:, None]
            wrong = found = 0
            for _ in range(tables):
                scores = scales * rng.normal(size=(rows, seeds))
                wrong += any(
                    x and not x.low <= 0 <= x.high
                    for x in compare_rows(scores, int(scores.mean(1).argmax()))
                )
                scores[0] -= 4 * scales[0]
                first = compare_rows(scores, int(scores.mean(1).argmax()))[0]
                found += bool(first and first.high < 0)
            print(
                f"{rows} rows, {seeds} seeds, spread {spread}: {wrong / tables:.3f} wrong, {found / tables:.2f} found"
            )
            assert wrong / tables < 0.08 + 3.5 * (0.08 * 0.92 / tables) ** 0.5


@pytest.mark.parametrize("overrides, score", [
    ({}, "valid_nll"), ({"eval.metric": "accuracy"}, "valid_accuracy"), ({"data.test": ""}, "valid_nll"),
    ({"eval.metric": "bleu", "eval.decode_every_steps": "100"}, "valid_bleu"),
    ({"train.steps": "90", "eval.every_steps": "100"}, "sacrebleu"), ({"data.valid": "", "checkpoint.keep_best": "0"}, "sacrebleu"),
])  # fmt: skip
def test_default_score_is_one_of_the_validation_set(overrides, score):
    assert default_score(load_config(TOY, overrides)) == score


def test_scores_that_a_run_will_not_have_are_refused():
    valid = "de-en=toy:valid:20; en-de=toy:valid:10"
    config = load_config(
        TOY, {"data.test": "first=toy:test; other=toy:test:40", "data.valid": valid}
    )
    for score in ("other:chrf", "sacrebleu", "valid_nll", "valid_nll/en-de", "valid_accuracy"):
        check_score(score, config)
    for score in (
        "third:chrf",
        "other:valid_nll",
        "other:nonsense",
        "valid_nll/fr-de",
        "valid_nonsense/en-de",
        "accuracy",
    ):
        with refused(score):
            check_score(score, config)
    with refused("config.eval.every_epochs"):
        check_score(
            "valid_accuracy", load_config(TOY, {"train.steps": "90", "eval.every_steps": "100"})
        )
    with refused("config.data.test"):
        check_score("sacrebleu", load_config(TOY, {"data.test": ""}))
