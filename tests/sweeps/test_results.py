"""The table of a sweep: means, spreads and significance, as text, CSV and page."""

import csv
import dataclasses
import json
import shutil
import sys

import numpy as np
import pytest
from fake_sweep import TOY, FakeSweep
from helpers.records import record

from t2t_flax.config import load_config
from t2t_flax.errors import UserError
from t2t_flax.sweeps import attempt as attempt_lib
from t2t_flax.sweeps.folder import Folder, read_sweep
from t2t_flax.sweeps.pictures import parallel
from t2t_flax.sweeps.report import report
from t2t_flax.sweeps.results import Row, curve, rows, told_difference, trial_score, verdict
from t2t_flax.sweeps.scores import check_score
from t2t_flax.sweeps.shares import Share
from t2t_flax.sweeps.worker import Listed


@pytest.fixture
def done(fake_sweep):
    """Three rows with two seeds: 0 and 1, 1 and 11, 30 and 31 of 40 sentences wrong."""
    sweep = fake_sweep({"good": "ok {seed}", "same": "ok {seed}1", "poor": "ok 3{seed}"}, seeds=2)
    sweep.work()
    return sweep


def test_mean_and_spread_over_seeds(done):
    table, chosen = rows(done.folder, read_sweep(done.folder.path), "sacrebleu")
    assert [row.name for row in table] == ["good", "same", "poor"] and chosen == "good"
    for row, wrong in zip(table, ([0, 1], [1, 11], [30, 31]), strict=True):
        assert row.mean == pytest.approx(100 - np.mean(wrong)) and row.spread == pytest.approx(np.std(wrong, ddof=1))
    assert table[0].against is None
    assert table[2].against["p_corrected"] < 0.05 and table[2].against["interval"]["high"] < 0
    assert table[1].against["p_value"] > 0.05 and table[1].against["seeds"] == [0, 1]


def test_less_is_better_for_nll(done):
    table, chosen = rows(done.folder, read_sweep(done.folder.path), "nll")
    assert chosen == "good" and table[0].mean == pytest.approx(0.05) and table[0].against is None
    assert trial_score(done.folder, "poor,seed=1", "valid_nll") == 1.5


def test_other_scores_are_compared_by_their_spread_over_seeds(done):
    """Not every score can be resampled over sentences: Student's t, all three rows, two degrees of freedom."""
    described = read_sweep(done.folder.path)
    _, same, poor = rows(done.folder, described, "nll")[0]
    assert "sentences" not in poor.against and "Student's t" in poor.against["how"]
    spread = np.array([[0.0, 0.1], [0.1, 1.1], [3.0, 3.1]])
    rest = spread - spread.mean(1, keepdims=True) - spread.mean(0) + spread.mean()
    half = 4.302653 * np.sqrt((rest**2).sum() / 2)
    assert poor.against["difference"] == pytest.approx(3.0)
    assert poor.against["interval"]["low"] == pytest.approx(3.0 - half, abs=1e-3)
    assert verdict(same, "good") == "no clear difference"
    surely = dataclasses.replace(poor, against=poor.against | {"p_corrected": 0.01})
    assert verdict(surely, "good") == "worse"  # more of the loss
    told = report(done.folder.path, score="nll")
    assert "nll, lower is better" in told
    assert "over seeds (with one spread for all rows); p: two-sided, both corrected for all 3 pairs of rows" in told


def test_a_row_is_significant_exactly_where_its_interval_leaves_out_zero(done):
    """Interval and p of a table are corrected alike, for a named row and for the best."""
    for metric, baseline in (("sacrebleu", ""), ("sacrebleu", "poor"), ("nll", "same")):
        table, chosen = rows(done.folder, read_sweep(done.folder.path), metric, baseline)
        for against in (row.against for row in table if row.name != chosen):
            corrected, alone = against["interval_corrected"], against["interval"]
            assert (against["p_corrected"] < 0.05) == (not corrected["low"] <= 0 <= corrected["high"])
            assert against["p_corrected"] >= against["p_value"] and corrected["low"] <= alone["low"]
        shown = next(row for row in table if row.name != chosen)
        assert f"[{shown.against['interval_corrected']['low']:+.2f}" in told_difference(shown)


def test_less_is_better_for_ter(done):
    """The row with the least TER is the best, and what is above it is worse."""
    for name in done.names:
        path = done.folder.workdir(name) / "eval" / "test-3.json"
        content = json.loads(path.read_text())
        wrong = 100.0 - content["scores"]["sacrebleu"]["score"]
        content["scores"]["ter"] = {"score": 100 * wrong / (40 * 8)}  # one of eight words of a sentence
        path.write_text(json.dumps(content))
    table, chosen = rows(done.folder, read_sweep(done.folder.path), "ter")
    assert chosen == "good" and table[0].mean == pytest.approx(100 * 0.5 / 320)
    poor = next(row for row in table if row.name == "poor")
    assert poor.against["difference"] > 0 and poor.against["sentences"] == 40 and verdict(poor, "good") == "worse"


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
    "the marker names a file elsewhere": lambda folder: rewritten(folder / "complete.json", record="../../x.json"),
    "the config is damaged": lambda folder: (folder.parents[1] / "configs" / f"{folder.name}.json").write_text("{"),
}


def rewritten(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def unreadable(path):
    path.unlink()
    path.mkdir()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """As `done`; its tests copy it."""
    path = tmp_path_factory.mktemp("finished") / "sweep"
    sweep = FakeSweep(path, {"good": "ok {seed}", "same": "ok {seed}1", "poor": "ok 3{seed}"}, seeds=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempt_lib, "command", sweep.command)
        sweep.work()
    return path


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_costs_its_row_and_not_the_table(finished, tmp_path, damage):
    shutil.copytree(finished, tmp_path / "sweep")
    folder = Folder(tmp_path / "sweep")
    DAMAGE[damage](folder.workdir("same,seed=0"))
    table, chosen = rows(folder, read_sweep(folder.path), "sacrebleu")
    by = {row.name: row for row in table}
    assert chosen == "good" and by["poor"].against["p_corrected"] < 0.05
    assert by["same"].apart and by["same"].against is None
    assert [r.score is None for r in by["same"].results] == [True, False]


def test_the_report_says_why_a_row_is_set_apart(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "sweep")
    (Folder(tmp_path / "sweep").workdir("same,seed=0") / "eval" / "test-3.json").unlink()
    text = report(tmp_path / "sweep")
    assert "same: there is no record" in text and "see the note" in text and "worse" in text


def test_a_damaged_record_of_the_best_row_leaves_its_other_seed(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "sweep")
    folder = Folder(tmp_path / "sweep")
    (folder.workdir("good,seed=1") / "eval" / "test-3.hyp.txt").unlink()
    table, chosen = rows(folder, read_sweep(folder.path), "sacrebleu")
    assert chosen == "good" and table[0].apart
    assert {row.name: row.against and row.against["seeds"] for row in table} == {"good": None, "same": [0], "poor": [0]}


def test_what_one_seed_can_say(fake_sweep):
    """Of a BLEU that many rows fall short of it: surely, however many they are. Of a loss nothing, and it is said."""
    sweep = fake_sweep({f"r{i}": f"ok {30 * (i > 0)}" for i in range(9)})
    sweep.work(shares=[Share(), Share()])
    text = report(sweep.folder.path)
    assert text.count("worse") == 8 and "corrected for all 36 pairs of rows" in text
    assert "no differences: for this score they need rows with two seeds" in report(sweep.folder.path, score="nll")


def test_a_record_that_was_made_again_with_other_settings_is_not_the_trials(done):
    """`evaluate --config.decode.beam_size=8` of a trial, out of curiosity."""
    path = done.folder.workdir("same,seed=0") / "eval" / "test-3.json"
    content = json.loads(path.read_text())
    content["config"]["decode"] = {"beam_size": 8}
    path.write_text(json.dumps(content))
    text = report(done.folder.path)
    assert "decode.beam_size = 8, the trial's is 4" in text and "evaluate --workdir=" in text and "worse" in text
    table, _ = rows(done.folder, read_sweep(done.folder.path), "sacrebleu")
    assert {row.name: sum(r.score is not None for r in row.results) for row in table} == {
        "good": 2,
        "same": 1,
        "poor": 2,
    }


def test_the_page_names_trials_of_other_code(done):
    done.folder.note("same,seed=1", event="begin", code="f" * 16)
    report(done.folder.path)
    page = (done.folder.path / "report" / "index.html").read_text()
    assert f"with another source: same,seed=1 ({'f' * 16})" in page


def test_the_baseline_can_be_named_and_an_unknown_one_or_score_is_refused(done):
    table, chosen = rows(done.folder, read_sweep(done.folder.path), "sacrebleu", "poor")
    assert chosen == "poor" and all(row.against["difference"] > 0 for row in table if row.name != "poor")
    with pytest.raises(UserError, match="no row 'best'.*good, same, poor"):
        rows(done.folder, read_sweep(done.folder.path), "sacrebleu", "best")
    with pytest.raises(UserError, match="no score 'rouge'; it has sacrebleu, nll"):
        rows(done.folder, read_sweep(done.folder.path), "rouge")


def test_report_as_text_csv_and_page(done):
    done.folder.note("poor,seed=1", event="begin")
    text = report(done.folder.path)
    assert "good" in text and "compared with" in text and "worse" in text and "no clear difference" in text
    out = done.folder.path / "report"
    with (out / "table.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["row"] for line in lines] == ["good", "same", "poor"] and lines[0]["score"] == "99.50"
    with (out / "trials.csv").open() as file:
        trials = list(csv.DictReader(file))
    assert len(trials) == 6 and trials[1]["score"] == "99.0" and trials[1]["train.steps"] == "100"
    assert (
        trials[1]["command"].startswith("python -m t2t_flax train --config=")
        and "--config.seed.init=1" in trials[1]["command"]
    )
    page = (out / "index.html").read_text()
    assert page.count("<tr") == 4 and "--config.train.steps=101" in page
    assert report(done.folder.path) == text and (out / "index.html").read_text() == page


def test_the_heading_says_what_the_interval_is_over(done):
    assert "over sentences and seeds (these with one spread for all rows)" in report(done.folder.path)


def test_with_one_seed_the_heading_says_what_is_not_known(fake_sweep):
    single = fake_sweep({"good": "ok 0", "poor": "ok 20"})
    single.work()
    assert "over sentences alone: with one seed, what a seed changes is not known" in report(single.folder.path)


def test_pictures_are_in_the_page(done):
    report(done.folder.path)
    page = (done.folder.path / "report" / "index.html").read_text()
    assert sorted(path.name for path in (done.folder.path / "report").glob("*.svg")) == ["curves.svg", "effects.svg"]
    assert page.count("<svg") == 2 and "Learning curves" in page and "Effects" in page


def test_several_keys_are_drawn_side_by_side():
    rates, heads = ("1e-4", "1e-3", "1e-2"), ("learned", "sinusoid")
    table = [
        Row(f"{rate} {head}", {"optimizer.peak_lr": rate, "model.position": head}, (), {}, (), mean=float(i + j))
        for i, rate in enumerate(rates)
        for j, head in enumerate(heads)
    ]
    (axes,) = parallel(table, "sacrebleu").axes
    drawn = [line.get_ydata().tolist() for line in axes.lines if len(line.get_xdata()) == 3]
    assert sorted(drawn) == sorted(
        [pytest.approx([i / 2, j, (i + j) / 3]) for i in range(3) for j in range(2)], key=lambda a: a.expected
    )
    assert [label.get_text() for label in axes.get_xticklabels()] == ["peak_lr", "position", "sacrebleu"]


def test_two_spellings_of_one_number_share_a_place_in_the_picture():
    table = [
        Row(f"{rate} {heads}", {"model.dropout": rate, "model.num_heads": heads}, (), {}, (), mean=float(heads))
        for rate in ("0.1", "0.10")
        for heads in ("1", "4", "8")
    ]
    (axes,) = parallel(table, "sacrebleu").axes
    drawn = [line.get_ydata().tolist() for line in axes.lines if len(line.get_xdata()) == 3]
    assert len({line[0] for line in drawn}) == 1
    assert sorted({line[1] for line in drawn}) == pytest.approx([0, 3 / 7, 1])


def test_a_page_without_matplotlib_says_what_to_install(done, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report(done.folder.path)
    page = (done.folder.path / "report" / "index.html").read_text()
    assert "pip install -r requirements.txt" in page
    assert "<svg" not in page and page.count("<tr") == 4 and not list((done.folder.path / "report").glob("*.svg"))


def test_a_row_on_another_test_set_does_not_lose_the_others(done):
    path = done.folder.workdir("same,seed=0") / "eval" / "test-3.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"data": content["data"] | {"digest": "e" * 64}}))
    text = report(done.folder.path)
    assert "the records are of different test sets" in text and "worse" in text


def test_what_runs_is_said_to_run_and_its_curve_is_shown(fake_sweep):
    sweep = fake_sweep({"good": "ok 1", "slow": "long"})
    sweep.work(stop=None, queue=Listed(["good,seed=0"]))
    claim = sweep.folder.claim("slow,seed=0")
    sweep.folder.workdir("slow,seed=0").mkdir(parents=True)
    (sweep.folder.workdir("slow,seed=0") / "metrics.jsonl").write_text(
        '{"step": 5, "valid_nll": 2.0}\n{"step": 9, "valid_nll": NaN}\n'
    )
    (table, _) = rows(sweep.folder, read_sweep(sweep.folder.path), "sacrebleu")
    claim.release()
    assert table[1].states == {"running": 1} and curve(sweep.folder, "slow,seed=0") == [(5, 2.0)]


def test_failures_are_in_the_page_with_the_end_of_their_log(fake_sweep):
    sweep = fake_sweep({"bad": "fail", "good": "ok 1"})
    sweep.work(retries=0)
    text = report(sweep.folder.path)
    assert "1 failed" in text and "1 complete" in text
    assert "Traceback: out of something" in (sweep.folder.path / "report" / "index.html").read_text()


def test_a_report_of_what_is_no_sweep_is_refused(tmp_path):
    with pytest.raises(UserError, match="no sweep.json"):
        report(tmp_path)
    for text in ("", '{"config": "toy"', "[]", '{"config": "toy"}'):
        (tmp_path / "sweep.json").write_text(text)
        with pytest.raises(UserError, match="sweep.json is damaged"):
            report(tmp_path)


def test_a_sweep_of_parsers_is_told_by_f1(fake_sweep):
    """The same table for the other task: labelled F1, and its paired bootstrap."""
    sweep = fake_sweep({"good": "ok", "poor": "ok"})
    sweep.work()
    right = [f"(TOP (S (NP (DT the) (NN w{i})) (VP (VBD ran))))" for i in range(40)]
    for name, wrong in (("good,seed=0", 2), ("poor,seed=0", 20)):
        said = [tree.replace("VP", "XP") if i < wrong else tree for i, tree in enumerate(right)]
        made = record(sweep.folder.workdir(name) / "eval", "test-3", said, right, data={"task": "parsing"})
        f1 = 100 * (1 - wrong / 120)
        made.write_text(json.dumps(json.loads(made.read_text()) | {"scores": {"f1": {"score": f1}}}))
        marker = sweep.folder.workdir(name) / "complete.json"
        marker.write_text(json.dumps(json.loads(marker.read_text()) | {"record": "test-3.json"}))
    (good, poor), chosen = rows(sweep.folder, read_sweep(sweep.folder.path), "f1")
    assert chosen == "good" == good.name
    assert poor.against["difference"] == pytest.approx(poor.mean - good.mean, abs=1e-3)
    assert poor.against["score"] == "f1" and poor.against["p_value"] < 0.01
    assert "worse" in report(sweep.folder.path, score="f1")


def test_a_score_of_a_named_test_set_is_of_its_record(fake_sweep):
    """`SET:score`; without a name that of the first set."""
    sweep = fake_sweep({"good": "ok 2", "poor": "ok 4"})
    sweep.work()
    references = [f"sentence number {i} of the other test set" for i in range(40)]
    for name, wrong, score in (("good,seed=0", 30, 20.0), ("poor,seed=0", 1, 99.0)):
        said = [r.replace("sentence", "word") if i < wrong else r for i, r in enumerate(references)]
        workdir = sweep.folder.workdir(name)
        made = record(workdir / "eval", "other-3", said, references)
        made.write_text(json.dumps(json.loads(made.read_text()) | {"scores": {"sacrebleu": {"score": score}}}))
        marker = json.loads((workdir / "complete.json").read_text())
        records = {"first": marker["record"], "other": "other-3.json"}
        (workdir / "complete.json").write_text(json.dumps(marker | {"records": records}))
    for metric, best, scores in (
        ("sacrebleu", "good", [98.0, 96.0]),
        ("first:sacrebleu", "good", [98.0, 96.0]),
        ("other:sacrebleu", "poor", [99.0, 20.0]),
    ):
        table, chosen = rows(sweep.folder, read_sweep(sweep.folder.path), metric)
        assert chosen == best and [row.mean for row in table] == scores, metric
        assert table[1].against["score"] == "sacrebleu" and table[1].against["difference"] < 0
    with pytest.raises(UserError, match="no record of the test set 'third'"):
        trial_score(sweep.folder, "good,seed=0", "third:sacrebleu")
    config = load_config(TOY, {"data.test": "first=toy:test; other=toy:test:40"})
    check_score("other:chrf", config)
    check_score("sacrebleu", config)
    for wrong, message in (
        ("third:chrf", "there is no score third:chrf"),
        ("other:valid_nll", "of the validation set, which has no name: give --score=valid_nll"),
        ("other:nonsense", "there is no score 'nonsense'"),
    ):
        with pytest.raises(UserError, match=message):
            check_score(wrong, config)


def test_the_spread_of_a_table_is_that_of_all_its_rows(done):
    """Of `good` and `poor` the seeds agree to one sentence, of `same` they do not: all rows have the one spread."""
    table, _ = rows(done.folder, read_sweep(done.folder.path), "sacrebleu")
    same, poor = (row.against for row in table[1:])
    assert same["seed_spread"] == poor["seed_spread"] > 1 and same["freedom"] == poor["freedom"] == 2
    width = lambda against: against["interval"]["high"] - against["interval"]["low"]  # noqa: E731
    expected = [
        2 * np.sqrt((4.3027 * told["seed_spread"]) ** 2 + (1.96 * told["sentence_spread"]) ** 2)
        for told in (same, poor)
    ]
    assert [width(same), width(poor)] == pytest.approx(expected, rel=0.03)


def test_settings_that_change_no_score_leave_a_record_in_the_table(fake_sweep):
    sweep = fake_sweep({"good": "ok 2", "poor": "ok 4"})
    sweep.work()
    path = next((sweep.folder.workdir("good,seed=0") / "eval").glob("*.json"))
    made = json.loads(path.read_text())
    for key, value, kept in (("batch_size", 7, True), ("beam_size", 7, False)):
        decode = made["config"].get("decode", {}) | {key: value}
        path.write_text(json.dumps(made | {"config": made["config"] | {"decode": decode}}))
        table, _ = rows(sweep.folder, read_sweep(sweep.folder.path), "sacrebleu")
        (good,) = (row for row in table if row.name == "good")
        assert (good.mean is not None) == kept, key
