"""Scores of trials, and the rows of a sweep: mean, spread and significance."""

import dataclasses
import json

import numpy as np
import pytest
from fake_sweep import TOY
from helpers.records import record

from t2t_flax.config import load_config
from t2t_flax.errors import UserError
from t2t_flax.extensions.sweeps.folder import read_sweep
from t2t_flax.extensions.sweeps.report import report
from t2t_flax.extensions.sweeps.resources import Resources
from t2t_flax.extensions.sweeps.results import check_score, learning_curve, trial_score
from t2t_flax.extensions.sweeps.rows import format_difference, rows, shared_seeds, verdict
from t2t_flax.extensions.sweeps.worker import TrialQueue
from t2t_flax.tasks import task_of
from t2t_flax.tasks.translation import METRICS
from t2t_flax.training.losses import TOKEN_METRICS


def test_mean_and_spread_over_seeds(finished_sweep):
    table, reference = rows(finished_sweep.folder, read_sweep(finished_sweep.folder.path), "sacrebleu")
    assert [row.name for row in table] == ["good", "same", "poor"] and reference == "good"
    for row, wrong in zip(table, ([0, 1], [1, 11], [30, 31]), strict=True):
        assert row.mean == pytest.approx(100 - np.mean(wrong)) and row.spread == pytest.approx(np.std(wrong, ddof=1))
    assert table[0].comparison is None
    assert table[2].comparison["p_corrected"] < 0.05 and table[2].comparison["interval"]["high"] < 0
    assert table[1].comparison["p_value"] > 0.05 and table[1].comparison["seeds"] == [0, 1]


def test_lower_is_better_for_nll(finished_sweep):
    table, reference = rows(finished_sweep.folder, read_sweep(finished_sweep.folder.path), "nll")
    assert reference == "good" and table[0].mean == pytest.approx(0.05) and table[0].comparison is None
    assert trial_score(finished_sweep.folder, "poor,seed=1", "valid_nll") == 1.5


def test_higher_is_better_for_token_accuracy(finished_sweep):
    for name, accuracy in zip(finished_sweep.names, (0.8, 0.7, 0.6, 0.5, 0.4, 0.3), strict=True):
        with (finished_sweep.folder.workdir(name) / "metrics.jsonl").open("a") as file:
            file.writelines(f'{{"step": {s}, "valid_accuracy": {accuracy - s / 1e4}}}\n' for s in (800, 900))
    table, reference = rows(finished_sweep.folder, read_sweep(finished_sweep.folder.path), "valid_accuracy")
    assert reference == "good" and [row.mean for row in table] == pytest.approx([0.67, 0.47, 0.27])


def test_scores_without_sentences_are_compared_over_seeds(finished_sweep):
    described = read_sweep(finished_sweep.folder.path)
    good, same, poor = rows(finished_sweep.folder, described, "nll")[0]
    assert "sentences" not in poor.comparison and poor.comparison["difference"] == pytest.approx(3.0)
    assert poor.comparison["pairs"] == [[3.0, 0.0], [3.1, 0.1]]
    assert verdict(same, "good") == "no clear difference" and verdict(good, "good") == "reference"
    significant = dataclasses.replace(poor, comparison=poor.comparison | {"p_corrected": 0.01})
    assert verdict(significant, "good") == "worse"  # a higher loss
    text = report(finished_sweep.folder.path, score="nll")
    assert "nll (lower is better)" in text and "two-sided p over seeds, corrected for 3 rows" in text


def test_row_is_significant_exactly_if_its_interval_excludes_zero(finished_sweep):
    """Intervals and p-values of a table have the same correction, for a named baseline and for the best row."""
    for metric, baseline in (("sacrebleu", ""), ("sacrebleu", "poor"), ("nll", "same")):
        table, reference = rows(finished_sweep.folder, read_sweep(finished_sweep.folder.path), metric, baseline)
        for comparison in (row.comparison for row in table if row.name != reference):
            corrected, uncorrected = comparison["interval_corrected"], comparison["interval"]
            assert (comparison["p_corrected"] < 0.05) == (not corrected["low"] <= 0 <= corrected["high"])
            assert comparison["p_corrected"] >= comparison["p_value"] and corrected["low"] <= uncorrected["low"]
        row_shown = next(row for row in table if row.name != reference)
        low = row_shown.comparison["interval_corrected"]["low"]
        assert any(f"[{low:+.{digits}f}," in format_difference(row_shown) for digits in (2, 4))


def test_lower_is_better_for_ter(finished_sweep):
    for name in finished_sweep.names:
        path = finished_sweep.folder.workdir(name) / "eval" / "test-3.json"
        content = json.loads(path.read_text())
        wrong = 100.0 - content["scores"]["sacrebleu"]["score"]
        content["scores"]["ter"] = {"score": 100 * wrong / (40 * 8)}  # one of eight words of a sentence
        path.write_text(json.dumps(content))
    table, reference = rows(finished_sweep.folder, read_sweep(finished_sweep.folder.path), "ter")
    assert reference == "good" and table[0].mean == pytest.approx(100 * 0.5 / 320)
    poor = next(row for row in table if row.name == "poor")
    assert poor.comparison["difference"] > 0 and poor.comparison["sentences"] == 40 and verdict(poor, "good") == "worse"


DAMAGE = {
    "the record is gone": lambda folder: (folder / "eval" / "test-3.json").unlink(),
    "the record is cut short": lambda folder: (folder / "eval" / "test-3.json").write_text(
        '{"record_version": 1, "sco'
    ),
    "the record is another JSON file": lambda folder: (folder / "eval" / "test-3.json").write_text("[1, 2]"),
    "the record has no scores": lambda folder: rewritten(folder / "eval" / "test-3.json", scores=None),
    "a score is text": lambda folder: rewritten(
        folder / "eval" / "test-3.json", scores={"sacrebleu": {"score": "high"}}
    ),
    "the record is of an unknown task": lambda folder: rewritten(
        folder / "eval" / "test-3.json", config={"data": {"task": "chess"}}
    ),
    "the record is not readable": lambda folder: unreadable(folder / "eval" / "test-3.json"),
    "the hypotheses are gone": lambda folder: (folder / "eval" / "test-3.hyp.txt").unlink(),
    "the references changed": lambda folder: (folder / "eval" / "test-3.ref.txt").write_text("other\n"),
    "the marker is empty": lambda folder: (folder / "complete.json").write_text(""),
    "the marker names a file elsewhere": lambda folder: rewritten(
        folder / "complete.json", records={"test": "../../x.json"}
    ),
}


def rewritten(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def unreadable(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_record_affects_only_its_row(finished_sweep, damage):
    folder = finished_sweep.folder
    DAMAGE[damage](folder.workdir("same,seed=0"))
    table, reference = rows(folder, read_sweep(folder.path), "sacrebleu")
    by = {row.name: row for row in table}
    assert reference == "good" and by["poor"].comparison["p_corrected"] < 0.05
    assert by["same"].problem and by["same"].comparison is None
    assert [r.score is None for r in by["same"].results] == [True, False]


def test_damaged_record_leaves_the_other_seed_of_its_row(finished_sweep):
    folder = finished_sweep.folder
    (folder.workdir("good,seed=1") / "eval" / "test-3.hyp.txt").unlink()
    table, reference = rows(folder, read_sweep(folder.path), "sacrebleu")
    assert reference == "same" and [row.name for row in table] == ["same", "poor", "good"] and table[2].problem
    assert {row.name: row.comparison and row.comparison["seeds"] for row in table} == {
        "good": None,
        "same": None,
        "poor": [0, 1],
    }
    assert verdict(table[2], reference) == "incomplete" and table[2].mean == 100


def test_unknown_baseline_or_score_is_rejected(finished_sweep):
    table, reference = rows(finished_sweep.folder, read_sweep(finished_sweep.folder.path), "sacrebleu", "poor")
    assert reference == "poor" and all(row.comparison["difference"] > 0 for row in table if row.name != "poor")
    with pytest.raises(UserError, match="no row 'best'.*good, same, poor"):
        rows(finished_sweep.folder, read_sweep(finished_sweep.folder.path), "sacrebleu", "best")
    with pytest.raises(UserError, match="no score 'rouge'; it has sacrebleu, nll"):
        rows(finished_sweep.folder, read_sweep(finished_sweep.folder.path), "rouge")


def test_row_with_another_test_set_does_not_affect_the_others(finished_sweep):
    path = finished_sweep.folder.workdir("same,seed=0") / "eval" / "test-3.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"data": content["data"] | {"digest": "e" * 64}}))
    text = report(finished_sweep.folder.path)
    assert "the records are of different test sets" in text and "worse" in text


def test_running_trials_are_shown_with_their_curve(fake_sweep):
    sweep = fake_sweep({"good": "ok 1", "slow": "long"})
    sweep.work(stop=None, queue=TrialQueue(["good,seed=0"]))
    claim = sweep.folder.claim("slow,seed=0")
    sweep.folder.workdir("slow,seed=0").mkdir(parents=True)
    (sweep.folder.workdir("slow,seed=0") / "metrics.jsonl").write_text(
        '{"step": 5, "valid_nll": 2.0}\n{"step": 9, "valid_nll": NaN}\n'
    )
    (table, _) = rows(sweep.folder, read_sweep(sweep.folder.path), "sacrebleu")
    claim.release()
    assert table[1].states == {"running": 1} and learning_curve(sweep.folder, "slow,seed=0") == [(5, 2.0)]


def test_parsing_rows_are_compared_by_f1(fake_sweep):
    sweep = fake_sweep({"good": "ok", "poor": "ok"})
    sweep.work()
    right = [f"(TOP (S (NP (DT the) (NN w{i})) (VP (VBD ran))))" for i in range(40)]
    for name, wrong in (("good,seed=0", 2), ("poor,seed=0", 20)):
        hypotheses = [tree.replace("VP", "XP") if i < wrong else tree for i, tree in enumerate(right)]
        path = record(sweep.folder.workdir(name) / "eval", "test-3", hypotheses, right, data={"task": "parsing"})
        f1 = 100 * (1 - wrong / 120)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"scores": {"f1": {"score": f1}}}))
        marker = sweep.folder.workdir(name) / "complete.json"
        marker.write_text(json.dumps(json.loads(marker.read_text()) | {"records": {"test": "test-3.json"}}))
    (good, poor), reference = rows(sweep.folder, read_sweep(sweep.folder.path), "f1")
    assert reference == "good" == good.name
    assert poor.comparison["difference"] == pytest.approx(poor.mean - good.mean, abs=1e-3)
    assert poor.comparison["score"] == "f1" and poor.comparison["p_value"] < 0.01
    assert "worse" in report(sweep.folder.path, score="f1")


def test_score_of_a_named_test_set(fake_sweep):
    """`SET:score`; without a set, the score of the first one."""
    sweep = fake_sweep({"good": "ok 2", "poor": "ok 4"})
    sweep.work()
    references = [f"sentence number {i} of the other test set" for i in range(40)]
    for name, wrong, score in (("good,seed=0", 30, 20.0), ("poor,seed=0", 1, 99.0)):
        hypotheses = [r.replace("sentence", "word") if i < wrong else r for i, r in enumerate(references)]
        workdir = sweep.folder.workdir(name)
        path = record(workdir / "eval", "other-3", hypotheses, references)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"scores": {"sacrebleu": {"score": score}}}))
        marker = json.loads((workdir / "complete.json").read_text())
        records = {"first": marker["records"]["test"], "other": "other-3.json"}
        (workdir / "complete.json").write_text(json.dumps(marker | {"records": records}))
    for metric, best, scores in (
        ("sacrebleu", "good", [98.0, 96.0]),
        ("first:sacrebleu", "good", [98.0, 96.0]),
        ("other:sacrebleu", "poor", [99.0, 20.0]),
    ):
        table, reference = rows(sweep.folder, read_sweep(sweep.folder.path) | {"selection": ""}, metric)
        assert reference == best and [row.mean for row in table] == scores, metric
        assert table[1].comparison["score"] == "sacrebleu" and table[1].comparison["difference"] < 0
    with pytest.raises(UserError, match="no record of the test set 'third'"):
        trial_score(sweep.folder, "good,seed=0", "third:sacrebleu")
    valid = "de-en=toy:valid:20; en-de=toy:valid:10"
    config = load_config(TOY, {"data.test": "first=toy:test; other=toy:test:40", "data.valid": valid})
    for name in ("other:chrf", "sacrebleu", "valid_nll", "valid_nll/en-de"):
        check_score(name, config)
    for wrong, message in (
        ("third:chrf", "there is no score third:chrf"),
        ("other:valid_nll", "there is no score 'other:valid_nll'.* of named sets SET:SCORE and valid_SCORE/SET"),
        ("other:nonsense", "there is no score 'other:nonsense'"),
        ("valid_nll/fr-de", "there is no score valid_nll/fr-de: config.data.valid has de-en, en-de"),
        ("valid_nonsense/en-de", "there is no score 'valid_nonsense/en-de'"),
    ):
        with pytest.raises(UserError, match=message):
            check_score(wrong, config)


def test_score_of_one_validation_set(fake_sweep):
    """The best evaluation of each trial, on that set alone."""
    sweep = fake_sweep({"good": "ok 2", "poor": "ok 4"})
    sweep.work()
    for name, values in (("good,seed=0", (3.0, 2.5, 2.75)), ("poor,seed=0", (2.0, 2.25))):
        lines = [{"step": i, "valid_nll": 9.0 - i, "valid_nll/en-de": value} for i, value in enumerate(values, 1)]
        (sweep.folder.workdir(name) / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    table, reference = rows(sweep.folder, read_sweep(sweep.folder.path), "valid_nll/en-de")
    assert reference == "poor" and {row.name: row.mean for row in table} == {"good": 2.5, "poor": 2.0}
    assert "valid_nll/en-de" in report(sweep.folder.path, score="valid_nll/en-de")


def test_metrics_of_training_and_of_records_can_score_a_sweep(monkeypatch):
    """Also one that is added to the table."""
    new = dataclasses.replace(next(metric for metric in METRICS if metric.name == "chrf"), name="new", log_name="new")
    monkeypatch.setattr(type(task_of(load_config(TOY))), "metrics", [*METRICS, new])
    config = load_config(TOY, {"eval.every_steps": "5", "eval.decode_every_steps": "5", "eval.metric": "new"})
    for name in (*(f"valid_{metric}" for metric in TOKEN_METRICS), "sacrebleu", "valid_bleu", "new", "valid_new"):
        check_score(name, config)
    with pytest.raises(UserError, match="valid_accuracy needs config.eval.every_epochs, or config.eval.every_steps"):
        check_score("valid_accuracy", load_config(TOY, {"train.steps": "90", "eval.every_steps": "100"}))
    with pytest.raises(UserError, match="no score 'accuracy'"):  # records do not have it
        check_score("accuracy", config)


def test_rows_are_ranked_on_the_seeds_that_they_share():
    three, one = {0, 1, 2}, {0}
    for sets, expected in (
        ([three, three, three], [0, 1, 2]),
        ([three, three, one], [0, 1, 2]),  # six trials count, and three with seed 0 alone
        ([three, one, one, one], [0]),  # so far only the first row is finished
        ([three, one], [0, 1, 2]),
        ([one, {1}], [1]),
        ([set(), set()], []),
        ([], []),
    ):
        assert shared_seeds({str(i): each for i, each in enumerate(sets)}) == expected, sets
    assert shared_seeds({"a": three, "b": three, "c": {0, 2}}, "c") == [0, 2], "a named baseline has all of them"


def test_row_with_diverged_seeds_is_ranked_last(fake_sweep):
    """Its one complete seed is the best of all."""
    sweep = fake_sweep({"steady": "ok {seed}0", "wild": "ok 0", "other": "ok {seed}5"}, seeds=3)
    for name in ("wild,seed=1", "wild,seed=2"):
        sweep.update_status(name, outcome="failed", cause="diverged")
    sweep.work(resources=[Resources(), Resources()])
    table, reference = rows(sweep.folder, read_sweep(sweep.folder.path), "sacrebleu")
    assert [row.name for row in table] == ["steady", "other", "wild"] and reference == "steady"
    assert verdict(table[2], reference) == "2 of 3 seeds diverged" and table[2].comparison is None
    assert table[1].comparison["seeds"] == [0, 1, 2]
    assert "2 of 3 seeds diverged" in report(sweep.folder.path)


def test_rows_are_selected_by_validation_and_the_test_score_is_that_of_the_selected_row(fake_sweep):
    """The row with the best test score is not the best one on the validation set."""
    sweep = fake_sweep({"lucky": "ok {seed}", "chosen": "ok 1{seed}"}, seeds=2)
    sweep.work()
    for name in ("chosen,seed=0", "chosen,seed=1"):
        (sweep.folder.workdir(name) / "metrics.jsonl").write_text('{"step": 250, "valid_nll": 1.0}\n')
    described = read_sweep(sweep.folder.path)
    for metric in ("sacrebleu", "valid_nll"):
        table, reference = rows(sweep.folder, described, metric)
        assert [row.name for row in table] == ["chosen", "lucky"] and reference == "chosen" and table[0].selected
    text = report(sweep.folder.path)
    assert "Rows are ranked by valid_nll, on the validation set; sacrebleu is of the test set." in text
    text = report(sweep.folder.path, score="valid_nll")
    assert "Test score of the selected row, chosen: sacreBLEU" in text and "over sentences and seeds" in text
    without = described | {"selection": ""}
    assert rows(sweep.folder, without, "sacrebleu")[1] == "lucky"
