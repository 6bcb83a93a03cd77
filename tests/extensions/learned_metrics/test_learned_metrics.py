"""Learned metrics: the real process protocol with a stand-in for the packages, and, where they are installed, the packages
themselves with tiny models.
"""

import dataclasses
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.records import without_search
from helpers.thread_groups import run_processes

from t2t_flax.__main__ import main
from t2t_flax.config import Config
from t2t_flax.errors import UserError
from t2t_flax.evaluation.evaluate import compute_scores
from t2t_flax.extensions.learned_metrics import LearnedMetrics, metrics
from t2t_flax.extensions.learned_metrics.metrics import COMET, of_entry
from t2t_flax.extensions.learned_metrics.process import PACKAGES, prepare_environment, score_sentences
from t2t_flax.extensions.sweeps.compare import compare
from t2t_flax.jobs import check_scores
from t2t_flax.tasks import Predictions, task_of

COMET_PYTHON = os.environ.get("T2T_FLAX_COMET", "")
"""The interpreter of an environment with unbabel-comet."""
needs_comet = pytest.mark.skipif(
    not COMET_PYTHON, reason="needs unbabel-comet: T2T_FLAX_COMET=INTERPRETER of an environment that has it"
)
STAND_IN = '''
"""A stand-in for unbabel-comet: the score is the share of the reference's words that the translation has."""
import types

class Model:
    def to(self, dtype): pass
    def predict(self, samples, batch_size, gpus, num_workers, progress_bar):
        if samples[0]["mt"] == "long": raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        share = lambda s: len(set(s["mt"].split()) & set(s.get("ref", s["src"]).split())) / len(s.get("ref", s["src"]).split())
        return {"scores": [float("nan") if s["mt"] == "nan" else share(s) for s in samples]}

def download_model(name):
    if name == "missing": raise KeyError("Model 'missing' not supported by COMET.")
    if name == "broken": raise SystemExit("the model is broken")
    return name + "/checkpoints/model.ckpt"

def load_from_checkpoint(path):
    return Model()
'''
TORCH = "float32 = bfloat16 = float16 = None\nclass cuda: is_available = staticmethod(lambda: False)\n"


@pytest.fixture
def environments(tmp_path):
    """A folder of environments in which the packages are stand-ins."""
    folder = tmp_path / "environments"
    site = folder / "site"
    (site / "unbabel_comet-2.2.7.dist-info").mkdir(parents=True)
    (site / "unbabel_comet-2.2.7.dist-info" / "METADATA").write_text("Name: unbabel-comet\nVersion: 2.2.7\n")
    (site / "comet.py").write_text(STAND_IN)
    (site / "torch.py").write_text(TORCH)
    python = folder / PACKAGES["comet"].folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return folder


def config_with(environments, **values):
    group = LearnedMetrics(names="comet", environments=str(environments), **values)
    return Config().with_extensions({"learned_metrics": group})


SOURCES, REFERENCES = ["a b", "c d e f", "g h"], ["x y", "x y z w", "v w"]


def test_scores_and_their_mean_and_what_a_record_says_of_them(environments):
    predictions = Predictions(["x y", "x q r s", "q q"], [REFERENCES], SOURCES)
    statistics = COMET.statistics(predictions, config_with(environments))
    entry = statistics.entry()
    assert entry["sentences"] == [100.0, 25.0, 0.0]
    assert entry["score"] == pytest.approx(125 / 3, abs=1e-4)
    assert entry["signature"] == "model:Unbabel/wmt22-comet-da|package:unbabel-comet 2.2.7|precision:float32|device:cpu"
    assert entry["licence"] == "not stated"
    again = of_entry(json.loads(json.dumps(entry)))
    assert again.corpus_score == statistics.corpus_score and again.entry() == entry


def test_tokenized_text_is_scored_as_plain_text(environments, monkeypatch):
    """Moses tokens with escapes, as in data.pretokenized, are no text that the metrics were trained on."""
    asked = []

    def score(name, samples, group):
        asked.extend(samples)
        return {"scores": [0.5] * len(samples), "model": "m"}

    monkeypatch.setattr(metrics, "score_sentences", score)
    predictions = Predictions(["es ist &apos; spät &apos; ."], [["es ist spät ."]], ["it &apos;s late ."])
    config = config_with(environments).with_values({"data.pretokenized": True})
    entry = COMET.statistics(predictions, config).entry()
    assert asked == [{"src": "it's late.", "mt": "es ist 'spät'.", "ref": "es ist spät."}]
    assert entry["text"] == "detokenized and unescaped by sacremoses"


def test_of_several_references_the_mean_counts(environments):
    predictions = Predictions(["x y"], [["x y"], ["x q"]], ["a"])
    assert COMET.statistics(predictions, config_with(environments)).corpus_score == 75.0


def test_without_weights_the_error_says_what_to_fetch(environments):
    predictions = Predictions(["x"], [["x"]], ["a"])
    with pytest.raises(UserError, match=r"snapshot_download\('missing'\).*--config.learned_metrics.comet=FOLDER"):
        COMET.statistics(predictions, config_with(environments, comet="missing"))
    with pytest.raises(UserError, match="exit code 1.*the model is broken"):
        COMET.statistics(predictions, config_with(environments, comet="broken"))
    with pytest.raises(UserError, match=r"exit code 1.*Lower learned_metrics.batch_size \(now \d+\).*75 %"):
        COMET.statistics(Predictions(["long"], [["x"]], ["a"]), config_with(environments))
    with pytest.raises(UserError, match="snapshot_download"):  # before anything is decoded
        task_of(config_with(environments, comet="missing")).check_requirements()
    task_of(config_with(environments)).check_requirements()
    absent = config_with(environments, comet="missing").with_values({"data.test": "toy:test"})
    check_scores(absent, ["test"], SimpleNamespace(is_lead=False))  # process 0 scores
    with pytest.raises(UserError, match="snapshot_download"):
        check_scores(absent, ["test"], SimpleNamespace(is_lead=True))


def test_an_environment_that_cannot_be_made_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    refused = subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found for unbabel-comet==2.2.7")
    monkeypatch.setattr("t2t_flax.extensions.learned_metrics.process.venv.create", lambda *_, **__: None)
    monkeypatch.setattr("t2t_flax.extensions.learned_metrics.process.subprocess.run", lambda *_, **__: refused)
    with pytest.raises(UserError, match="No matching distribution.*pip install 'unbabel-comet==2.2.7'"):
        prepare_environment(PACKAGES["comet"], LearnedMetrics(environments=str(tmp_path)))
    assert not list(tmp_path.iterdir())


def test_an_environment_that_another_process_made_meanwhile_is_used(tmp_path, monkeypatch):
    home = tmp_path / PACKAGES["comet"].folder

    def install(*_, **__):
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "python").touch()
        return subprocess.CompletedProcess([], 0)

    monkeypatch.setattr("t2t_flax.extensions.learned_metrics.process.venv.create", lambda *_, **__: None)
    monkeypatch.setattr("t2t_flax.extensions.learned_metrics.process.subprocess.run", install)
    group = LearnedMetrics(environments=str(tmp_path))
    assert prepare_environment(PACKAGES["comet"], group) == str(home / "bin" / "python")
    assert list(tmp_path.iterdir()) == [home]
    (home / "bin" / "python").unlink()
    monkeypatch.setattr(
        "t2t_flax.extensions.learned_metrics.process.subprocess.run",
        lambda *_, **__: subprocess.CompletedProcess([], 0),
    )
    with pytest.raises(UserError, match="could not be made .*: remove that folder"):
        prepare_environment(PACKAGES["comet"], group)


def test_the_process_sees_no_modules_of_ours(environments):
    """Neither PYTHONPATH nor the folder of its script, which has a `metrics` and a `process`."""
    (environments / "site" / "comet.py").write_text(
        STAND_IN + "\nimport importlib.util\nassert not importlib.util.find_spec('process')\n"
    )
    predictions = Predictions(["x"], [["x"]], ["a"])
    assert COMET.statistics(predictions, config_with(environments)).corpus_score == 100.0


def test_scores_that_are_no_numbers_are_refused(environments):
    predictions = Predictions(["nan", "x"], [["x", "x"]], ["a", "a"])
    with pytest.raises(UserError, match="gives 1 of 2 sentences a score that is no finite number.*precision = float32"):
        COMET.statistics(predictions, config_with(environments))


def test_one_process_computes_them_for_all(environments):
    asked = []

    def statistics(predictions, config):
        asked.append(predictions)
        return COMET.statistics(predictions, config)

    metric = dataclasses.replace(COMET, statistics=statistics)

    def scores(group, model="some"):
        predictions = Predictions(["x y"], [["x y"]], ["a"])
        return compute_scores(config_with(environments, comet=model), [metric], predictions, group=group)

    first, second = run_processes(2, scores)
    assert first == second and first["comet"]["score"] == 100.0 and len(asked) == 1

    def error(group):
        with pytest.raises(UserError, match="snapshot_download"):
            scores(group, "missing")
        return "raised"

    assert run_processes(2, error) == ["raised", "raised"]


def test_mbr_is_scored_with_the_sources(environments, tmp_path, capsys):
    for name, lines in (("flat", ["x y", "x", "z", "z"]), ("target", ["x y", "z"]), ("sources", ["a", "b"])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    words = [
        "mbr", f"--candidates={tmp_path / 'flat'}", "--num-candidates=2", "--utility=bleu", f"--output={tmp_path / 'out'}",
        f"--score-against={tmp_path / 'target'}", "--config.learned_metrics.names=comet",
        f"--config.learned_metrics.environments={environments}",
    ]  # fmt: skip
    assert main(words) == 2
    assert "comet of --score-against needs the source lines: --input=FILE" in capsys.readouterr().err
    assert main([*words, f"--input={tmp_path / 'sources'}"]) == 0
    entry = json.loads((tmp_path / "out.json").read_text())["scores"]["comet"]
    assert len(entry["sentences"]) == 2 and "biased" not in entry
    assert main([*words, f"--input={tmp_path / 'flat'}"]) == 2
    assert "flat has 4 lines, and there are candidates of 2 sources" in capsys.readouterr().err


def mbr_words(tmp_path, flat, *more):
    for name, lines in (("flat", flat), ("sources", ["a", "b"])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    files = [f"--candidates={tmp_path / 'flat'}", f"--input={tmp_path / 'sources'}", f"--output={tmp_path / 'out'}"]
    return ["mbr", *files, f"--num-candidates={len(flat) // 2}", *more]


def test_mbr_chooses_by_a_learned_metric(environments, tmp_path, capsys, monkeypatch):
    """All pairs in one process, equal ones once; the choice, and its mean, by hand."""
    asked = []

    def counted(name, samples, group):
        asked.append(len(samples))
        return score_sentences(name, samples, group)

    monkeypatch.setattr("t2t_flax.extensions.learned_metrics.metrics.score_sentences", counted)
    flat = ["x", "x y", "z", "q r", "r s", "r"]
    group = f"--config.learned_metrics.environments={environments}"
    words = mbr_words(tmp_path, flat, "--utility=comet", group)
    assert main(words) == 0
    assert (tmp_path / "out").read_text().splitlines() == ["x y", "q r"]  # 2 / 3 of x y, and 2.5 / 3, the first of two
    assert asked == [0, 18]
    record = json.loads((tmp_path / "out.json").read_text())["utility"]
    assert record["expected"] == pytest.approx(75.0, abs=1e-3) and "wmt22-comet-da" in record["signature"]
    (tmp_path / "target").write_text("x y\nq\n")
    assert main([*words, f"--score-against={tmp_path / 'target'}", "--config.learned_metrics.names=comet,kiwi"]) == 0
    scores = json.loads((tmp_path / "out.json").read_text())["scores"]
    assert [name for name, entry in scores.items() if "biased" in entry] == ["comet", "kiwi"]
    asked.clear()
    assert main(mbr_words(tmp_path, flat, "--utility=kiwi", group)) == 0
    assert asked == [0, 6]  # which reads no references
    capsys.readouterr()
    assert main([word for word in words if not word.startswith("--input")]) == 2
    assert "--utility=comet needs the source lines: --input=FILE" in capsys.readouterr().err
    assert main([*words, "--method=aggregate"]) == 2
    assert "--utility=comet has no mean reference" in capsys.readouterr().err
    (tmp_path / "sources").write_text("a\nb\nc\n")
    assert main(words) == 2
    assert "sources has 3 lines, and there are candidates of 2 sources" in capsys.readouterr().err
    asked.clear()
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        assert main([*words, "--method=aggregate_to_fine"]) == 2
    assert "the utility chrf needs the package fastchrf" in capsys.readouterr().err and not asked
    assert main([*words[:-2], "--utility=bleurt"]) == 2
    assert "expected one of chrf, bleu," in capsys.readouterr().err


@pytest.mark.smoke
def test_names_and_task_are_checked():
    with pytest.raises(UserError, match="'bleurt' is none of comet, kiwi, metricx"):
        LearnedMetrics(names="comet,bleurt").check(Config())
    parsing = Config().with_values({"data.task": "parsing"})
    with pytest.raises(UserError, match="scores translations, not outputs of data.task = parsing"):
        LearnedMetrics(names="comet").check(parsing)
    assert "comet" not in [metric.name for metric in task_of(Config()).metrics]


@pytest.mark.slow
def test_evaluate_writes_them_and_compare_tests_their_difference(environments, tmp_path, monkeypatch, capsys):
    without_search(monkeypatch)
    flags = [
        "--workdir=pretrained:toy",
        "--split=valid",
        "--config.mesh.cpu_devices=8",
        f"--config.learned_metrics.environments={environments}",
    ]
    for name in ("a", "b"):
        assert main(["evaluate", *flags, "--metric=comet", f"--output={tmp_path / name}"]) == 0
    assert "COMET" in capsys.readouterr().out
    a, b = (next((tmp_path / name / "eval").glob("*.json")) for name in ("a", "b"))
    entry = json.loads(a.read_text())["scores"]["comet"]
    assert len(entry["sentences"]) == 500 and "confidence" in entry
    result = compare(a, b, score="comet")
    assert result["difference"] == 0 and "model:Unbabel/wmt22-comet-da" in result["signature"]
    record = json.loads(a.read_text())
    record["config"]["learned_metrics"]["names"] = ""
    without = a.with_name("without.json")
    without.write_text(json.dumps(record))
    with pytest.raises(UserError, match="without.json has no comet: evaluate again with --metric=comet"):
        compare(without, a, score="comet")
    record = json.loads(b.read_text())
    record["scores"]["comet"]["precision"] = "float16"
    b.write_text(json.dumps(record))
    with pytest.raises(UserError, match="different models or settings"):
        compare(a, b, score="comet")
    del record["scores"]["comet"]
    b.write_text(json.dumps(record))
    with pytest.raises(UserError, match="has no comet: evaluate again with --metric=comet"):
        compare(a, b, score="comet")


def test_flag_and_key_must_agree(capsys):
    flags = ["--workdir=pretrained:toy", "--metric=comet", "--config.learned_metrics.names=kiwi"]
    assert main(["evaluate", *flags]) == 2
    assert "--metric=comet and --config.learned_metrics.names=kiwi differ" in capsys.readouterr().err


TINY_MODELS = Path(__file__).with_name("tiny_models.py")


@pytest.fixture(scope="module")
def tiny_models(tmp_path_factory):
    """A COMET, a COMET-KIWI and a MetricX with random weights, and what their packages give for two sentences."""
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([COMET_PYTHON, TINY_MODELS, folder], check=True)
    python = folder / "environments" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(COMET_PYTHON)
    for packages in PACKAGES.values():
        link = folder / "environments" / packages.folder / "bin"
        link.mkdir(parents=True, exist_ok=True)
        if not (link / "python").exists():
            (link / "python").write_text(f'#!/bin/sh\nexec {COMET_PYTHON} "$@"\n')
            (link / "python").chmod(0o755)
    return folder


@pytest.mark.slow
@needs_comet
@pytest.mark.parametrize("name", ["comet", "kiwi", "metricx"])
def test_scores_are_those_of_the_package(tiny_models, name):
    expected = json.loads((tiny_models / "expected.json").read_text())
    models = {f"{kind}": str(tiny_models / kind) for kind in ("comet", "kiwi", "metricx")}
    group = LearnedMetrics(
        names=name,
        environments=str(tiny_models / "environments"),
        metricx_tokenizer=str(tiny_models / "metricx"),
        batch_size=1,
        **models,
    )
    config = Config().with_extensions({"learned_metrics": group})
    (metric,) = (metric for metric in task_of(config).metrics if metric.name == name)
    samples = expected["samples"]
    predictions = Predictions([s["mt"] for s in samples], [[s["ref"] for s in samples]], [s["src"] for s in samples])
    entry = metric.statistics(predictions, config).entry()
    scale = 1 if name == "metricx" else 100
    assert entry["sentences"] == pytest.approx([scale * score for score in expected[name]], abs=2e-3)
    assert len(set(entry["sentences"])) == len(samples) and entry["licence"] == "apache-2.0"


@pytest.mark.slow
@needs_comet
@pytest.mark.parametrize("name, sign", [("comet", 1), ("metricx", -1)])
def test_mbr_by_a_package_is_that_of_each_pair(tiny_models, tmp_path, name, sign):
    """Of MetricX, an error, the lowest mean."""
    keys = {
        "environments": tiny_models / "environments", name: tiny_models / name, "metricx_tokenizer": tiny_models / "metricx",
    }  # fmt: skip
    flat = ["Der Hund schläft.", "Der Hund.", "Ein Haus schläft jetzt.", "Wo ist es?", "Es ist ein Baum.", "Ein Haus?"]
    flags = [f"--config.learned_metrics.{key}={value}" for key, value in keys.items()]
    assert main(mbr_words(tmp_path, flat, f"--utility={name}", *flags)) == 0
    group = LearnedMetrics(names=name, batch_size=1, **{key: str(value) for key, value in keys.items()})
    config, best = Config().with_extensions({"learned_metrics": group}), []
    (metric,) = (metric for metric in task_of(config).metrics if metric.name == name)
    for source, own in (("a", flat[:3]), ("b", flat[3:])):
        pairs = [(h, r) for h in own for r in own]
        predictions = Predictions([h for h, _ in pairs], [[r for _, r in pairs]], [source] * 9)
        means = sign * metric.statistics(predictions, config).values[:, 0].reshape(3, 3).mean(1)
        best.append(means.max())
        chosen = (tmp_path / "out").read_text().splitlines()[len(best) - 1]
        assert means[own.index(chosen)] == pytest.approx(means.max(), abs=2e-3)  # padding changes the last digits
    record = json.loads((tmp_path / "out.json").read_text())["utility"]
    assert record["expected"] == pytest.approx(sum(best) / 2, abs=2e-3)
