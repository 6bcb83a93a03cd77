"""The table of a sweep: means, spreads and significance, as text, CSV and page."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from t2t_flax.errors import UserError
from t2t_flax.evaluation.compare import compare
from t2t_flax.evaluation.compare_seeds import compare_seeds, over_seeds
from t2t_flax.sweeps.folder import read_sweep
from t2t_flax.sweeps.pictures import parallel
from t2t_flax.sweeps.report import report
from t2t_flax.sweeps.results import Row, _corrected, curve, rows, trial_score
from t2t_flax.sweeps.worker import Listed


@pytest.fixture
def done(fake_sweep):
    """Three rows with two seeds: 0 and 1, 1 and 11, 20 and 21 of 40 sentences wrong."""
    sweep = fake_sweep({"good": "ok {seed}", "same": "ok {seed}1", "poor": "ok 2{seed}"}, seeds=2)
    sweep.work()
    return sweep


def test_mean_and_spread_over_seeds(done):
    table, chosen = rows(done.folder, read_sweep(done.folder.path), "sacrebleu")
    assert [row.name for row in table] == ["good", "same", "poor"] and chosen == "good"
    for row, wrong in zip(table, ([0, 1], [1, 11], [20, 21]), strict=True):
        assert row.mean == pytest.approx(100 - np.mean(wrong)) and row.spread == pytest.approx(np.std(wrong, ddof=1))
    assert table[0].against is None
    assert table[2].against["p_value"] < 0.01 and table[2].against["interval"]["high"] < 0
    assert table[1].against["p_value"] > 0.05 and table[1].against["seeds"] == [0, 1]


def test_less_is_better_for_nll(done):
    table, chosen = rows(done.folder, read_sweep(done.folder.path), "nll")
    assert chosen == "good" and table[0].mean == pytest.approx(0.05) and table[0].against is None
    assert trial_score(done.folder, "poor,seed=1", "valid_nll") == 1.5


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


def test_pictures_are_in_the_page(done):
    pytest.importorskip("matplotlib")
    report(done.folder.path)
    page = (done.folder.path / "report" / "index.html").read_text()
    assert sorted(path.name for path in (done.folder.path / "report").glob("*.svg")) == ["curves.svg", "effects.svg"]
    assert page.count("<svg") == 2 and "Learning curves" in page and "Effects" in page


def test_several_keys_are_drawn_side_by_side():
    pytest.importorskip("matplotlib")
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


def test_a_page_without_matplotlib_says_what_to_install(done, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report(done.folder.path)
    page = (done.folder.path / "report" / "index.html").read_text()
    assert "pip install &#x27;t2t-flax[plot]&#x27;" in page or "pip install 't2t-flax[plot]'" in page
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


def record(folder: Path, name: str, said: list[str], references: list[str]) -> Path:
    """A record with its texts, as `evaluate` writes it."""
    import hashlib

    digests = {}
    for kind, end, texts in (("hypotheses", "hyp", said), ("references", "ref", references)):
        data = "".join(t + "\n" for t in texts).encode()
        (folder / f"{name}.{end}.txt").write_bytes(data)
        digests[kind] = hashlib.sha256(data).hexdigest()
    content = {
        "record_version": 1, "digests": digests, "hypotheses": f"{name}.hyp.txt", "references": f"{name}.ref.txt",
        "data": {"spec": "t", "digest": "d", "sentences": len(said)},
        "config": {"data": {"tokenized": False, "target_language": "en"}},
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(content))
    return folder / f"{name}.json"


def noisy(references: list[str], share: float, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join("x" if rng.random() < share else w for w in r.split()) for r in references]


def test_a_sweep_of_parsers_is_told_by_f1(fake_sweep):
    """The same table for the other task: labelled F1, and its paired bootstrap."""
    sweep = fake_sweep({"good": "ok", "poor": "ok"})
    sweep.work()
    right = [f"(TOP (S (NP (DT the) (NN w{i})) (VP (VBD ran))))" for i in range(40)]
    for name, wrong in (("good,seed=0", 2), ("poor,seed=0", 20)):
        said = [tree.replace("VP", "XP") if i < wrong else tree for i, tree in enumerate(right)]
        made = record(sweep.folder.workdir(name) / "eval", "test-3", said, right)
        f1 = 100 * (1 - wrong / 120)
        content = json.loads(made.read_text())
        content["config"]["data"]["task"] = "parsing"
        made.write_text(json.dumps(content | {"scores": {"f1": {"score": f1}}}))
        marker = sweep.folder.workdir(name) / "complete.json"
        marker.write_text(json.dumps(json.loads(marker.read_text()) | {"record": "test-3.json"}))
    (good, poor), chosen = rows(sweep.folder, read_sweep(sweep.folder.path), "f1")
    assert chosen == "good" == good.name
    assert poor.against["difference"] == pytest.approx(poor.mean - good.mean, abs=1e-3)
    assert poor.against["score"] == "f1" and poor.against["p_value"] < 0.01
    assert "worse" in report(sweep.folder.path, score="f1")


def test_one_seed_is_the_paired_bootstrap_over_sentences(tmp_path):
    """With one pair of runs nothing but the sentences is drawn: what `compare` does with other draws."""
    references = [f"a sentence of eight words is number {i} here" for i in range(300)]
    a = record(tmp_path, "a", noisy(references, 0.20, 1), references)
    b = record(tmp_path, "b", noisy(references, 0.24, 2), references)
    seeds, plain = compare_seeds([(a, b)]), compare(a, b)
    assert seeds["difference"] == plain["difference"]
    for end in ("low", "high"):
        assert seeds["interval"][end] == pytest.approx(plain["interval"][end], abs=0.5)


@pytest.mark.parametrize("seeds, most", [(2, 0.15), (3, 0.1), (5, 0.08)])
@pytest.mark.parametrize("sentences", [0.0, 0.2, 0.5, 1.0, 3.0])
def test_equal_recipes_are_rarely_told_apart(seeds, most, sentences):
    """False alarms at 5 %, for any share of chance that comes from the sentences; a bootstrap over two seeds has 52 %."""
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(1500):
        low, high, p_value = over_seeds(rng.normal(size=seeds) + sentences * rng.normal(), sentences**2)
        assert (p_value < 0.05) == (not low <= 0 <= high)
        alarms += p_value < 0.05
    assert alarms / 1500 < most


def test_p_values_are_corrected_for_the_number_of_comparisons():
    found = [Row(str(i), {}, (), {}, (), against={"p_value": p}) for i, p in enumerate((0.03, 0.01, 0.2))]
    base = Row("base", {}, (), {}, ())
    told = lambda named: [row.against and row.against["p_corrected"] for row in _corrected([base, *found], named=named)]  # noqa: E731
    assert told(True) == [None, pytest.approx(0.06), pytest.approx(0.03), pytest.approx(0.2)]
    assert told(False) == [None, pytest.approx(0.18), pytest.approx(0.06), pytest.approx(1.0)]


def test_seeds_that_disagree_widen_the_interval(tmp_path):
    """Two systems equal on the mean, of which one varies from seed to seed: sentences alone would call it significant."""
    references = [f"a sentence of eight words is number {i} here" for i in range(300)]
    steady = [record(tmp_path, f"s{i}", noisy(references, 0.2, i), references) for i in range(3)]
    shares = (0.1, 0.2, 0.3)
    varies = [record(tmp_path, f"v{i}", noisy(references, share, 10 + i), references) for i, share in enumerate(shares)]
    alone = compare_seeds([(varies[0], steady[0])])
    together = compare_seeds(list(zip(varies, steady, strict=True)))
    width = lambda c: c["interval"]["high"] - c["interval"]["low"]  # noqa: E731
    assert alone["p_value"] < 0.01 and together["p_value"] > 0.1 and width(together) > 2 * width(alone)
    assert together == compare_seeds(list(zip(varies, steady, strict=True)))


def test_no_difference_is_rarely_called_one(tmp_path):
    """False alarms at 5 %: of 40 pairs of equal systems about 2."""
    references = [f"a sentence of eight words is number {i} here" for i in range(100)]
    alarms = 0
    for i in range(40):
        a = record(tmp_path, f"a{i}", noisy(references, 0.2, 2 * i), references)
        b = record(tmp_path, f"b{i}", noisy(references, 0.2, 2 * i + 1), references)
        alarms += compare_seeds([(a, b)], resamples=300)["p_value"] < 0.05
    assert alarms <= 6
