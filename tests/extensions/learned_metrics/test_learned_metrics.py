"""Learned metrics: the real process protocol with a stand-in for the packages.

Where they are installed, the packages themselves with tiny models.
"""

import dataclasses
import json
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.foreign import foreign_model
from helpers.records import without_search
from helpers.refusals import refused, refused_command
from helpers.thread_groups import run_processes

from t2t_flax.__main__ import main
from t2t_flax.config import Config
from t2t_flax.evaluation.evaluate import compute_scores
from t2t_flax.evaluation.restore import stored_config
from t2t_flax.evaluation.sets import check_scores
from t2t_flax.extensions.learned_metrics import LearnedMetrics, metrics
from t2t_flax.extensions.learned_metrics.metrics import COMET, of_entry
from t2t_flax.extensions.learned_metrics.process import PACKAGES, prepare_environment
from t2t_flax.extensions.sweeps.compare import compare
from t2t_flax.tasks import Predictions, task_of

COMET_PYTHON = os.environ.get("T2T_FLAX_COMET", "")
"""The interpreter of an environment with unbabel-comet."""
needs_comet = pytest.mark.skipif(
    not COMET_PYTHON,
    reason="needs unbabel-comet: T2T_FLAX_COMET=INTERPRETER of an environment that has it",
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
TORCH = (
    "float32 = bfloat16 = float16 = None\nclass cuda: is_available = staticmethod(lambda: False)\n"
)


@pytest.fixture
def environments(tmp_path):
    """A folder of environments in which the packages are stand-ins."""
    folder = tmp_path / "environments"
    site = folder / "site"
    (site / "unbabel_comet-2.2.7.dist-info").mkdir(parents=True)
    (site / "unbabel_comet-2.2.7.dist-info" / "METADATA").write_text(
        "Name: unbabel-comet\nVersion: 2.2.7\n"
    )
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
    assert (
        entry["signature"]
        == "model:Unbabel/wmt22-comet-da|package:unbabel-comet 2.2.7|precision:float32|device:cpu"
    )
    assert entry["licence"] == "not stated"
    again = of_entry(json.loads(json.dumps(entry)))
    assert again.corpus_score == statistics.corpus_score and again.entry() == entry


def test_tokenized_text_is_scored_as_plain_text(environments, monkeypatch):
    """The metrics were not trained on Moses tokens with escapes, as in data.pretokenized."""
    asked = []

    def score(name, samples, group):
        asked.extend(samples)
        return {"scores": [0.5] * len(samples), "model": "m"}

    monkeypatch.setattr(metrics, "score_sentences", score)
    predictions = Predictions(
        ["es ist &apos; spät &apos; ."], [["es ist spät ."]], ["it &apos;s late ."]
    )
    config = config_with(environments).with_values({"data.pretokenized": True})
    entry = COMET.statistics(predictions, config).entry()
    assert asked == [{"src": "it's late.", "mt": "es ist 'spät'.", "ref": "es ist spät."}]
    assert entry["text"] == "detokenized and unescaped by sacremoses"


def test_of_several_references_the_mean_counts(environments):
    predictions = Predictions(["x y"], [["x y"], ["x q"]], ["a"])
    assert COMET.statistics(predictions, config_with(environments)).corpus_score == 75.0
    missing = Predictions(["x y", "x y"], [["x y", " "], ["x q", "x q"]], ["a", "a"])
    assert COMET.statistics(missing, config_with(environments)).entry()["sentences"] == [75.0, 50.0]


@pytest.mark.parametrize(
    "model, output, names",
    [
        ("missing", "x", ["snapshot_download('missing')", "--config.learned_metrics.comet=FOLDER"]),
        ("broken", "x", ["broken"]),
        ("some", "long", ["learned_metrics.batch_size"]),
        ("some", "nan", ["1 of", "learned_metrics.precision"]),
    ],
)
def test_a_model_that_does_not_score_is_refused(environments, model, output, names):
    with refused(*names):
        COMET.statistics(
            Predictions([output], [["x"]], ["a"]), config_with(environments, comet=model)
        )


def test_a_missing_model_is_refused_before_anything_is_decoded(environments):
    task_of(config_with(environments)).check_requirements()
    absent = config_with(environments, comet="missing").with_values({"data.test": "toy:test"})
    with refused("snapshot_download('missing')"):
        task_of(absent).check_requirements()
    check_scores(absent, ["test"], SimpleNamespace(is_lead=False))  # process 0 scores
    with refused("snapshot_download('missing')"):
        check_scores(absent, ["test"], SimpleNamespace(is_lead=True))


def test_an_environment_that_cannot_be_made_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess(
        [], 1, "", "ERROR: No matching distribution found for unbabel-comet==2.2.7"
    )
    monkeypatch.setattr(
        "t2t_flax.extensions.learned_metrics.process.venv.create", lambda *_, **__: None
    )
    monkeypatch.setattr(
        "t2t_flax.extensions.learned_metrics.process.subprocess.run", lambda *_, **__: failed
    )
    with refused("unbabel-comet==2.2.7", "No matching") as error:
        prepare_environment(
            PACKAGES["comet"], LearnedMetrics(environments=str(tmp_path / "a folder"))
        )
    assert not list((tmp_path / "a folder").iterdir())
    words = shlex.split(str(error.value))
    assert words[words.index("venv") + 1] == str(tmp_path / "a folder" / PACKAGES["comet"].folder)
    assert words[-3:] == list(PACKAGES["comet"].requirements)


def test_without_a_home_folder_the_key_of_the_folder_is_named(no_home):
    with refused("learned_metrics.environments", "HOME"):
        prepare_environment(PACKAGES["comet"], LearnedMetrics())


def test_an_environment_that_another_process_made_meanwhile_is_used(tmp_path, monkeypatch):
    home = tmp_path / PACKAGES["comet"].folder

    def install(*_, **__):
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "python").touch()
        return subprocess.CompletedProcess([], 0)

    monkeypatch.setattr(
        "t2t_flax.extensions.learned_metrics.process.venv.create", lambda *_, **__: None
    )
    monkeypatch.setattr("t2t_flax.extensions.learned_metrics.process.subprocess.run", install)
    group = LearnedMetrics(environments=str(tmp_path))
    assert prepare_environment(PACKAGES["comet"], group) == str(home / "bin" / "python")
    assert list(tmp_path.iterdir()) == [home]
    (home / "bin" / "python").unlink()
    monkeypatch.setattr(
        "t2t_flax.extensions.learned_metrics.process.subprocess.run",
        lambda *_, **__: subprocess.CompletedProcess([], 0),
    )
    with refused(str(home)):
        prepare_environment(PACKAGES["comet"], group)


@pytest.mark.parametrize("umask", [0o022, 0o027])
def test_the_environment_of_a_shared_folder_has_the_permissions_of_the_umask(
    tmp_path, monkeypatch, umask
):
    def create(folder, **_):
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").touch()

    monkeypatch.setattr("t2t_flax.extensions.learned_metrics.process.venv.create", create)
    done = subprocess.CompletedProcess([], 0)
    monkeypatch.setattr(
        "t2t_flax.extensions.learned_metrics.process.subprocess.run", lambda *_, **__: done
    )
    before = os.umask(umask)
    try:
        prepare_environment(PACKAGES["comet"], LearnedMetrics(environments=str(tmp_path)))
    finally:
        os.umask(before)
    (home,) = tmp_path.iterdir()
    assert stat.S_IMODE(home.stat().st_mode) == 0o777 & ~umask


def test_an_environment_of_another_user_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    def unreadable(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", unreadable)
    with refused("learned_metrics.environments", str(tmp_path)):
        prepare_environment(PACKAGES["comet"], LearnedMetrics(environments=str(tmp_path)))


def test_a_model_from_elsewhere_runs_no_program_of_its_own(environments, tmp_path, monkeypatch):
    """The metric runs in the environment of the user."""
    monkeypatch.chdir(tmp_path)
    folder = foreign_model(
        tmp_path / "model",
        {"learned_metrics.names": "comet", "learned_metrics.environments": "model/environments"},
    )
    python = folder / "environments" / PACKAGES["comet"].folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\ntouch {tmp_path / 'RUN'}\n")
    python.chmod(0o755)
    monkeypatch.setattr("t2t_flax.extensions.learned_metrics.process._DEFAULT", str(environments))
    assert (
        COMET.statistics(Predictions(["x y"], [["x y"]], ["a"]), stored_config(folder)).corpus_score
        == 100.0
    )
    assert not (tmp_path / "RUN").exists()


def test_the_process_sees_no_modules_of_ours(environments):
    """Neither PYTHONPATH nor the folder of its script, which has a `metrics` and a `process`."""
    (environments / "site" / "comet.py").write_text(
        STAND_IN + "\nimport importlib.util\nassert not importlib.util.find_spec('process')\n"
    )
    predictions = Predictions(["x"], [["x"]], ["a"])
    assert COMET.statistics(predictions, config_with(environments)).corpus_score == 100.0


def test_one_process_computes_them_for_all(environments):
    asked = []

    def statistics(predictions, config):
        asked.append(predictions)
        return COMET.statistics(predictions, config)

    metric = dataclasses.replace(COMET, statistics=statistics)

    def scores(group, model="some"):
        predictions = Predictions(["x y"], [["x y"]], ["a"])
        return compute_scores(
            config_with(environments, comet=model), [metric], predictions, group=group
        )

    first, second = run_processes(2, scores)
    assert first == second and first["comet"]["score"] == 100.0 and len(asked) == 1

    def error(group):
        with refused("snapshot_download('missing')"):
            scores(group, "missing")
        return "raised"

    assert run_processes(2, error) == ["raised", "raised"]


@pytest.mark.smoke
def test_names_and_task_are_checked():
    with refused("learned_metrics.names", "bleurt"):
        LearnedMetrics(names="comet,bleurt").check(Config())
    parsing = Config().with_values({"data.task": "parsing"})
    with refused("learned_metrics.names", "data.task"):
        LearnedMetrics(names="comet").check(parsing)
    assert "comet" not in [metric.name for metric in task_of(Config()).metrics]


@pytest.mark.slow
def test_evaluate_writes_them_and_compare_tests_their_difference(
    environments, tmp_path, monkeypatch, capsys
):
    without_search(monkeypatch)
    flags = [
        "--workdir=pretrained:toy",
        "--split=valid",
        "--config.mesh.cpu_devices=1",
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
    with refused("without.json", "--metric=comet"):
        compare(without, a, score="comet")
    record = json.loads(b.read_text())
    record["scores"]["comet"]["precision"] = "float16"
    b.write_text(json.dumps(record))
    with refused("comet", "float16"):
        compare(a, b, score="comet")
    del record["scores"]["comet"]
    b.write_text(json.dumps(record))
    with refused(b.name, "--metric=comet"):
        compare(a, b, score="comet")


def test_flag_and_key_must_agree():
    flags = ["--metric=comet", "--config.learned_metrics.names=kiwi"]
    refused_command(["evaluate", "--workdir=pretrained:toy", *flags], *flags)


TINY_MODELS = Path(__file__).with_name("tiny_models.py")


@pytest.fixture(scope="module")
def tiny_models(tmp_path_factory):
    """Return COMET, COMET-KIWI and MetricX with random weights, and scores by their packages."""
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
    predictions = Predictions(
        [s["mt"] for s in samples], [[s["ref"] for s in samples]], [s["src"] for s in samples]
    )
    entry = metric.statistics(predictions, config).entry()
    scale = 1 if name == "metricx" else 100
    assert entry["sentences"] == pytest.approx(
        [scale * score for score in expected[name]], abs=2e-3
    )
    assert len(set(entry["sentences"])) == len(samples) and entry["licence"] == "apache-2.0"
