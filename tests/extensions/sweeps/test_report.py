"""The report of a sweep as text, CSV and page, and its plots."""

import csv
import shlex
import sys

import pytest

from t2t_flax.config import load_config
from t2t_flax.errors import UserError
from t2t_flax.extensions.sweeps.folder import read_sweep
from t2t_flax.extensions.sweeps.report import plot_differences, plot_effects, report
from t2t_flax.extensions.sweeps.resources import Resources
from t2t_flax.extensions.sweeps.results import Result
from t2t_flax.extensions.sweeps.rows import Row, rows


def test_report_explains_why_a_row_is_not_compared(finished_sweep):
    (finished_sweep.folder.workdir("same,seed=0") / "eval" / "test-3.json").unlink()
    text = report(finished_sweep.folder.path)
    assert "same: there is no record" in text and "see the note" in text and "worse" in text


def test_one_seed_allows_conclusions_for_bleu_only(fake_sweep):
    """BLEU is resampled over sentences; a loss would need two seeds, and the report says so."""
    sweep = fake_sweep({f"r{i}": f"ok {30 * (i > 0)}" for i in range(5)})
    sweep.work(resources=[Resources(), Resources()])
    text = report(sweep.folder.path)
    assert text.count("worse") == 4 and "over sentences, corrected for 5 rows" in text
    assert "No differences: for this score they need rows with two seeds" in report(sweep.folder.path, score="nll")


def test_report_as_text_csv_and_page(finished_sweep):
    text = report(finished_sweep.folder.path)
    assert "good" in text and "reference" in text and "worse" in text and "no clear difference" in text
    out = finished_sweep.folder.path / "report"
    with (out / "table.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["row"] for line in lines] == ["good", "same", "poor"] and lines[0]["sacrebleu"] == "99.50"
    with (out / "trials.csv").open() as file:
        trials = list(csv.DictReader(file))
    assert len(trials) == 6 and trials[1]["score"] == "99.0" and trials[1]["train.steps"] == "100"
    words = shlex.split(trials[1]["command"])
    assert words[3] == "train" and load_config(words[4].removeprefix("--config=")).seed.init == 1
    page = (out / "index.html").read_text()
    assert "no clear difference" in page
    assert report(finished_sweep.folder.path) == text and (out / "index.html").read_text() == page


def test_caption_names_the_sources_of_variation(finished_sweep):
    assert "two-sided p over sentences and seeds, corrected for 3 rows" in report(finished_sweep.folder.path)


def test_caption_for_one_seed_names_the_missing_variation(fake_sweep):
    single = fake_sweep({"good": "ok 0", "poor": "ok 20"})
    single.work()
    assert "One seed does not show the variation between seeds" in report(single.folder.path)


def test_page_contains_the_plots(finished_sweep):
    report(finished_sweep.folder.path)
    page = (finished_sweep.folder.path / "report" / "index.html").read_text()
    assert sorted(path.name for path in (finished_sweep.folder.path / "report").glob("*.svg")) == [
        "curves.svg",
        "differences.svg",
    ]
    assert page.count("<svg") == 2 and "two-sided p over" in page


def test_figure_has_the_intervals_of_the_table(finished_sweep):
    table, reference = rows(finished_sweep.folder, read_sweep(finished_sweep.folder.path), "sacrebleu")
    (axes,) = plot_differences(table, "sacrebleu", reference).axes
    bars = {line.get_ydata()[0]: line.get_xdata() for line in axes.lines if line.get_linewidth() == 2}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["good", "same", "poor"] and set(bars) == {1, 2}
    for y, ends in bars.items():
        comparison = table[y].comparison
        interval = comparison["interval_corrected"]
        assert ends == pytest.approx((comparison["b"] + interval["low"], comparison["b"] + interval["high"]))
    dots = [sorted(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"]
    assert dots == [[99.0, 100.0], [89.0, 99.0], [69.0, 70.0]]


def test_curves_of_runs_without_evaluations_are_those_of_training(finished_sweep):
    for name in finished_sweep.names:
        lines = "".join(f'{{"step": {step}, "loss": {9 - step}}}\n' for step in (1, 2, 3))
        (finished_sweep.folder.workdir(name) / "metrics.jsonl").write_text(lines)
    report(finished_sweep.folder.path, score="nll")
    assert "training loss (nats per token)" in (finished_sweep.folder.path / "report" / "curves.svg").read_text()


def test_effects_have_a_dot_for_each_trial(finished_sweep):
    table = [
        Row(
            f"{rate} {heads}",
            {"optimizer.peak_lr": rate, "model.num_heads": heads},
            (),
            {},
            (Result("t", "r", 0, 1.0),),
        )
        for rate in ("1e-3", "1e-2")
        for heads in ("8", "16", "4")
    ]
    rate, heads = plot_effects(table, "sacrebleu").axes[:2]
    assert [label.get_text() for label in heads.get_xticklabels()] == ["4", "8", "16"]
    assert (rate.get_xlabel(), heads.get_xlabel()) == ("peak_lr", "num_heads")
    assert [len(line.get_xdata()) for line in rate.lines if line.get_marker() == "o"] == [3, 3]


def test_page_without_matplotlib_says_what_to_install(finished_sweep, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report(finished_sweep.folder.path)
    page = (finished_sweep.folder.path / "report" / "index.html").read_text()
    assert "Plots need matplotlib" in page and "<svg" not in page
    assert not list((finished_sweep.folder.path / "report").glob("*.svg"))


def test_page_shows_logs_of_failed_trials(fake_sweep):
    sweep = fake_sweep({"bad": "fail", "good": "ok 1"})
    sweep.work(retries=0)
    text = report(sweep.folder.path)
    assert "1 failed" in text and "1 complete" in text
    assert "Traceback: out of something" in (sweep.folder.path / "report" / "index.html").read_text()


def test_report_of_a_folder_without_sweep_is_rejected(tmp_path):
    with pytest.raises(UserError, match="no sweep.json"):
        report(tmp_path)
    for text in ("", '{"config": "toy"', "[]", '{"config": "toy"}'):
        (tmp_path / "sweep.json").write_text(text)
        with pytest.raises(UserError, match="sweep.json is damaged"):
            report(tmp_path)
